// How fast do multiprocessors stream a large matrix through tensor copies? A kernel without products, for benchmarks/hgemm_streams.py.
//
// One thread of the last warp keeps a ring of stages full, four warps wait for each stage, read a quarter of it (so that nothing
// can be skipped) and give it back, as in sm90_hgemm_quick_split.cuh. What is copied where is all in `Pattern`, chosen
// at launch: every variant is the same machine code, so that variants differ in nothing else, and none has to be compiled.
// A stage takes some 1,000 cycles at the speed of memory; what the choices cost (tens of cycles) does not show.
//
// The matrix is cut into slabs (what a CTA of an HGEMM would multiply: WIDTH columns of B), a slab into steps along k. A step
// is a stage: `copies` boxes of the matrix, and of a small operand, which every CTA reads, `small_copies` boxes.
#include "ptx_hopper.cuh"
#include "hgemm_streams_hints.cuh"

namespace sassafras {

struct Pattern {
    int stages;                       // of the ring
    int copies, box_bytes, rank;      // of the matrix: boxes in a stage, bytes of each, dimensions of its tensor map (2 or 3)
    int slab_x, slab_y, slab_z;       // a box begins at slab * (slab_x, slab_y, slab_z)
    int step_x, step_y, step_z;       //   + step * (step_x, ..)
    int copy_x, copy_y, copy_z;       //   + copy * (copy_x, ..)
    int hint;                         // for the L2, of the matrix: see `policy`; 0: none
    int small_copies, small_bytes;    // of the small operand: boxes in a stage (64 k each), bytes of one as it arrives
    int small_rows, small_hint;       // rows that this CTA loads of it
    int sharers;                      // CTAs of a cluster that load equal parts of it and send them to each other; 1: nobody does
    int cluster;                      // CTAs of a cluster
    int slabs, steps;                 // of the matrix; steps of a slab
    int parted;                       // 0: CTA i has a slab; 1: all steps of all slabs are cut into equal parts, one a CTA
    int slab_stride;                  // slab number i is i * slab_stride modulo slabs
    int stagger;                      // cluster i begins stagger * i steps into its slab, and ends with those left out
};

static constexpr int READERS = 4, WINDOW = 8 * 1024; // of so many bytes of a stage 2 KB are read: 16 bytes a thread

#ifndef SASSAFRAS_EMULATED
// PTX names these priorities for createpolicy; there is no "no allocate" for tensor copies (unchanged is nearest).
__device__ __forceinline__ u64 policy(int hint) {
    u64 made = 0;
    if (hint == 1) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(made));
    if (hint == 2) asm volatile("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(made));
    if (hint == 3) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(made));
    return made;
}
#endif

// Which step of which slab comes next.
struct Walk {
    int number, step, slab, ahead; // slabs passed, the step within, where that slab lies, steps that were left out at first

    __device__ __forceinline__ Walk(const Pattern &p, int first) {
        number = first / p.steps;
        step = first - number * p.steps;
        slab = (int)((long long)number * p.slab_stride % p.slabs);
        ahead = (int)((long long)(blockIdx.x / p.cluster) * p.stagger % p.steps);
    }

    __device__ __forceinline__ int at(const Pattern &p) const {
        return step + ahead < p.steps ? step + ahead : step + ahead - p.steps;
    }

    __device__ __forceinline__ void next(const Pattern &p) {
        if (++step < p.steps) return;
        step = 0;
        ++number;
        slab += p.slab_stride;
        while (slab >= p.slabs) slab -= p.slabs;
    }
};

// One thread: fills the ring `count` times.
__device__ __forceinline__ void produce(const Pattern &p, const TensorMap *matrix, const TensorMap *small, u32 base, u32 barriers,
                                        int first, int count) {
    const int weights = p.copies * p.box_bytes, bytes = weights + p.small_copies * p.small_bytes;
    const u32 part = p.sharers > 1 ? cluster_rank() : 0, part_bytes = p.small_bytes / p.sharers;
    const u16 everybody = (u16)((1 << p.sharers) - 1);
    const u64 hint = policy(p.hint), small_hint = policy(p.small_hint);
    Walk walk(p, first);
    int stage = 0;
    u32 phase = 1; // of a barrier that was never used: its first waits end at once
    for (int i = 0; i < count; ++i) {
        const u32 full = barriers + 16 * stage;
        const int step = walk.at(p);
        u32 to = base + stage * bytes;
        barrier_wait<1>(full + 8, phase);
        barrier_expect(full, bytes);
        int x = walk.slab * p.slab_x + step * p.step_x, y = walk.slab * p.slab_y + step * p.step_y;
        int z = walk.slab * p.slab_z + step * p.step_z;
#pragma unroll 1
        for (int copy = 0; copy < p.copies; ++copy) {
            if (p.rank == 3)
                p.hint ? copy_tile_hinted(to, matrix, x, y, z, full, hint) : copy_tile(to, matrix, x, y, z, full);
            else
                p.hint ? copy_tile_hinted(to, matrix, x, y, full, hint) : copy_tile(to, matrix, x, y, full);
            to += p.box_bytes;
            x += p.copy_x, y += p.copy_y, z += p.copy_z;
        }
        to += part * part_bytes;
#pragma unroll 1
        for (int copy = 0; copy < p.small_copies; ++copy, to += p.small_bytes) {
            const int k = 64 * (step * p.small_copies + copy), row = part * p.small_rows;
            if (p.sharers > 1)
                p.small_hint ? copy_tile_multicast_hinted(to, small, k, row, full, everybody, small_hint)
                             : copy_tile_multicast(to, small, k, row, full, everybody);
            else
                p.small_hint ? copy_tile_hinted(to, small, k, row, full, small_hint) : copy_tile(to, small, k, row, full);
        }
        walk.next(p);
        if (++stage == p.stages) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// sums[128 * CTA + thread]: of the words this thread reads, those of its CTA's step number i times 2 i + 1, modulo 2^32.
__device__ __forceinline__ void consume(const Pattern &p, u32 *sums, u32 base, u32 barriers, int count) {
    const int bytes = p.copies * p.box_bytes + p.small_copies * p.small_bytes, lane = threadIdx.x & 31;
    u32 sum = 0, phase = 0;
    int stage = 0;
    for (int i = 0; i < count; ++i) {
        const u32 full = barriers + 16 * stage;
        barrier_wait<2>(full, phase);
        const u32 from = base + stage * bytes + 16 * threadIdx.x;
        for (int at = 0; at < bytes; at += WINDOW) {
            u32 words[4];
            load_shared(words, from + at);
            sum += (words[0] + words[1] + words[2] + words[3]) * (2 * i + 1);
        }
        sync_warp(); // all lanes have read
        if (p.sharers > 1 && lane < p.sharers) barrier_arrive_there(remote_address(full + 8, lane));
        if (p.sharers == 1 && lane == 0) barrier_arrive(full + 8);
        if (++stage == p.stages) {
            stage = 0;
            phase ^= 1;
        }
    }
    store_counter(sums + 32 * READERS * blockIdx.x + threadIdx.x, sum);
}

__device__ __forceinline__ void stream(const Pattern &p, const TensorMap *matrix, const TensorMap *small, u32 *sums) {
    const u32 start = shared_address(shared_floats()), base = (start + 1023) & ~1023u;
    const u32 barriers = base + p.stages * (p.copies * p.box_bytes + p.small_copies * p.small_bytes);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < p.stages; ++stage) {
            barrier_init(barriers + 16 * stage, 1);
            barrier_init(barriers + 16 * stage + 8, READERS * p.sharers);
        }
        barrier_init_fence();
    }
    sync_warp();
    if (p.sharers > 1)
        meet_cluster(); // nobody sends before all barriers are there
    else
        sync_cta();
    const long long units = (long long)p.slabs * p.steps;
    const int first = p.parted ? (int)(units * blockIdx.x / gridDim.x) : (int)blockIdx.x * p.steps;
    const int count = p.parted ? (int)(units * (blockIdx.x + 1) / gridDim.x) - first : p.steps;
    if (threadIdx.x >= 32 * READERS) {
        if (elected()) {
            wait_for_predecessors();
            start_successors();
            produce(p, matrix, small, base, barriers, first, count);
        }
        sync_warp();
    } else {
        consume(p, sums, base, barriers, count);
    }
    if (p.sharers > 1) meet_cluster(); // the other may still send here, and tell that it has read
}

} // namespace sassafras

extern "C" __global__ void __launch_bounds__(160, 1)
    stream_matrix(const __grid_constant__ sassafras::TensorMap matrix, const __grid_constant__ sassafras::TensorMap small,
                  sassafras::u32 *sums, const __grid_constant__ sassafras::Pattern pattern) {
    sassafras::stream(pattern, &matrix, &small, sums);
}
