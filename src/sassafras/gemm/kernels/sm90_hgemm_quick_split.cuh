// The cluster-split kernel (sm90_gemm_split_k.cuh) with another way from launch to the last product; how CTAs add up and
// store is shared. What differs, and why (docs/experiments/hgemm-launch.md):
//   - The loading warp lets the multiplying ones go as soon as the barriers exist. There, they meet after its first STAGES copies
//     have been issued: what those take was added to what their products take.
//   - The first two stages' barriers are initialised first; the others, while the first copies are under way.
//   - A multiplying warp has what the next k tile needs in registers before the last one's products are done, and its accumulators
//     begin at zero, so that from a barrier's wait to the first product there is next to nothing.
//   - Slices of k that share no operands meet while they load, not after the last product, and exchange their sums beside the
//     stages: nobody has to wait until the others have read theirs.
//   - A stage may hold two blocks of 64 k: half as many waits, and releases, for tiles whose products are over sooner than these.
//
// Template parameters: those of ClusterSplit without EPILOGUE, and
//   BLOCKS       of 64 k in a stage; k_tiles and tiles_per_slice count stages
//   LEAD         stages by which the first of two multipliers is ahead at the end, so that it stores while the other multiplies
//   LEAVES       parts (two and more, of one slice) only leave their sums: a second launch adds them up (sm90_gemm_split_k_reduce.cuh)
// Dynamic shared memory: `with_sums(slices)`.
#pragma once
#include "sm90_gemm_split_k.cuh"

namespace sassafras {

template <int BM, int BN, int STAGES, int CONSUMERS, bool A_MN, bool B_MN, bool BF16, bool SWAPPED, bool SHARED, int BLOCKS,
          int LEAD = 0, bool LEAVES = false>
struct QuickSplit : ClusterSplit<BM, BN, STAGES * BLOCKS, CONSUMERS, A_MN, B_MN, BF16, SWAPPED, SHARED> {
    using Base = ClusterSplit<BM, BN, STAGES * BLOCKS, CONSUMERS, A_MN, B_MN, BF16, SWAPPED, SHARED>;
    using typename Base::A;
    using typename Base::B;
    using typename Base::Out;
    using typename Base::Problem;
    using typename Base::Tile;
    using Base::BARRIERS_AT, Base::OUT_AT, Base::REGISTERS, Base::THREADS, Base::OWN, Base::OTHERS;
    static constexpr int BLOCK = Base::STAGE, STAGE = BLOCKS * BLOCK;
    // Stages that are filled before the others' barriers exist (of operands that no other CTA reads). Not all (see `load`).
    static constexpr int EARLY = STAGES > 2 ? 2 : 1;
    static_assert(LEAD == 0 || (CONSUMERS == 2 && LEAD < STAGES), "the first is ahead by stages that are there");
    using At = Place<!SHARED, LEAVES>;
    static constexpr int LEADING = 3; // a named barrier: the first multiplier has issued its last stage

    // Where slices exchange their sums: beside all else, if they share no operands.
    static constexpr int SUMS_AT = SHARED ? 0 : (Base::BYTES + 127) / 128 * 128;
    static constexpr __device__ int with_sums(int slices) {
        if (SHARED || slices == 1) return Base::SHARED_BYTES;
        return 1024 + SUMS_AT + slices * ((Base::UNITS + slices - 1) / slices) * Base::UNIT;
    }

    // acc += products of `tiles` stages. mine: the first stage's `empty`, where this lane tells who sends that it has read
    // (remote if SHARED); 0 for a lane that tells nobody.
    static __device__ __forceinline__ void multiply(float (&acc)[REGISTERS], u32 base, int row, int tiles, u32 mine) {
        const u32 first_b = B::describe_first(base + A::BYTES);
        const u32 to_a = A::describe_first(0) - B::describe_first(A::BYTES) + row * (ROW_BYTES / 16);
        int stage = 0, last = 0;
        u32 phase = 0, full = base + BARRIERS_AT, next = broadcast(first_b);
        const bool apart = LEAD > 0 && tiles > STAGES;
        const int pause = apart && row > 0 ? tiles - LEAD : -1;
        for (int k = 0; k < tiles; ++k) {
            const u32 b = next, a = b + to_a;
            if constexpr (LEAD > 0) {
                if (k == pause) { // the first one goes on alone; it needs all stages
                    products_wait<0>();
                    if (mine) release_at(mine + 16 * last);
                    sync_threads(LEADING, 256);
                }
            }
            barrier_wait<2>(full, phase);
            products_fence();
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
                for (int step = 0; step < TILE_K / 16; ++step)
                    Products<BN>::template issue<BF16, A_MN, B_MN>(acc, A::describe_from(a + block * (BLOCK / 16), 0, step),
                                                                  B::describe_from(b + block * (BLOCK / 16), 0, step), 1);
            products_commit();
            const u32 before = mine + 16 * last;
            last = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
            full = base + BARRIERS_AT + 16 * stage;
            next = first_b + stage * (STAGE / 16);
            products_wait<1>(); // the stage before this one has been read
            if (k > 0 && mine && !(LEAD > 0 && k == pause)) release_at(before);
        }
        if constexpr (LEAD > 0) {
            if (apart && row == 0) arrive_threads(LEADING, 256);
        }
        products_wait<0>();
        settle(acc);
    }

    static __device__ __forceinline__ void release_at(u32 empty) {
        if constexpr (SHARED)
            barrier_arrive_there(empty);
        else
            barrier_arrive(empty);
    }

    // By one thread (a lane for each stage would take turns: the instruction's address is uniform).
    template <int FROM, int TO> static __device__ __forceinline__ void initialise(const Problem &p, u32 base) {
        const int releases = SHARED ? 4 * CONSUMERS * (p.share_m + p.share_n - 1) : 4 * CONSUMERS;
#pragma unroll
        for (int stage = FROM; stage < TO; ++stage) {
            barrier_init(base + BARRIERS_AT + 16 * stage, 1);
            barrier_init(base + BARRIERS_AT + 16 * stage + 8, releases);
        }
        barrier_init_fence();
    }

    // Copies of stage contents from..to-1 of this CTA's slice. WHAT as in Base; AGAIN: some stages are used again.
    template <int WHAT, bool AGAIN>
    static __device__ __forceinline__ void load(const Problem &p, const Neighbours &near, const Tile &at_tile, u32 base, int first,
                                                int from, int to) {
        const int row = at_tile.row, column = at_tile.column;
        int stage = from; // below STAGES
        u32 phase = 1;
        for (int k = from; k < to; ++k) {
            const u32 full = base + BARRIERS_AT + 16 * stage, tile = base + stage * STAGE;
            if constexpr (WHAT & OWN) {
                if (AGAIN && k >= STAGES) barrier_wait<1>(full + 8, phase);
                barrier_expect(full, p.stage_bytes);
            }
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                const int at = ((first + k) * BLOCKS + block) * TILE_K;
                const u32 to_a = tile + block * BLOCK, to_b = to_a + A::BYTES;
                if constexpr (SHARED) {
                    if (p.share_n > 1) {
                        if constexpr (WHAT & OTHERS) A::load_part(to_a, p.map_a, row, at, near.n, p.rows_a, near.want_a, full);
                    } else if constexpr (WHAT & OWN) {
                        A::load(to_a, p.map_a, row, at, 0, 0, full);
                    }
                    if (p.share_m > 1) {
                        if constexpr (WHAT & OTHERS) B::load_part(to_b, p.map_b, column, at, near.m, p.rows_b, near.want_b, full);
                    } else if constexpr (WHAT & OWN) {
                        B::load(to_b, p.map_b, column, at, 0, 0, full);
                    }
                } else {
                    A::load(to_a, p.map_a, row, at, 0, 0, full);
                    B::load(to_b, p.map_b, column, at, 0, 0, full);
                }
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }

    // Leaves this warp's sums in the workspace, as its lanes hold them: part after part, in those tile after tile.
    static __device__ __forceinline__ void leave(const Problem &p, const At &at, const float (&acc)[REGISTERS], int warp, int lane) {
        const int across = SHARED || p.band > 0 ? gridDim.y : gridDim.x;
        const int down = SHARED ? gridDim.z : p.band > 0 ? gridDim.x : gridDim.y;
        const long long tile = at.column + across * (at.row + (long long)down * at.x);
        float *const to = p.workspace + tile * (BM * BN) + warp * (16 * BN) + 4 * lane;
#pragma unroll
        for (int i = 0; i < REGISTERS / 4; ++i) {
            const float v[4] = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
            store_partial(to + 128 * i, v);
        }
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        const u32 base = broadcast((shared_address(shared_floats()) + 1023) & ~1023u);
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const At place(p.band);
        const int slices = LEAVES ? 1 : p.parts > 1 ? 1 << p.log2_slices : !SHARED && p.band > 0 ? 1 : gridDim.x;
        const int slice = LEAVES ? 0 : p.parts == 1 ? place.x : place.x & (slices - 1);
        const Neighbours near(p, slice, slices);
        const Tile tile(p, place.row, place.column);
        const int first = place.x * p.tiles_per_slice, tiles = min(p.tiles_per_slice, p.k_tiles - first);
        float acc[REGISTERS];

        if (warp == 4 * CONSUMERS) {
            if (elected()) {
                prefetch_map(p.map_a); // under way while barriers are initialised
                prefetch_map(p.map_b);
                initialise<0, EARLY>(p, base);
                wait_for_predecessors(); // the others touch global memory only after what these copies bring
                if (!p.late) start_successors();
                load<OWN, false>(p, near, tile, base, first, 0, min(tiles, EARLY));
                initialise<EARLY, STAGES>(p, base);
                if (!SHARED && slices > 1) Base::expect_sums(base, slice, slices);
            }
            sync_warp();
            if constexpr (SHARED) {
                meet_cluster(); // nobody sends before all barriers are there
            } else {
                arrive_threads(2, THREADS); // the multiplying warps go on, this one does not wait for them
                if (slices > 1) arrive_at_cluster(); // the other slices may send
            }
            if (elected()) {
                if constexpr (SHARED) load<OTHERS, false>(p, near, tile, base, first, 0, min(tiles, EARLY));
                load<OWN | OTHERS, true>(p, near, tile, base, first, EARLY, tiles);
                if (SHARED && slices > 1) Base::expect_sums(base, slice, slices);
            }
            sync_warp();
            if (SHARED && slices == 1) arrive_at_cluster();
        } else {
#pragma unroll
            for (int i = 0; i < REGISTERS; ++i) acc[i] = 0;
            u32 mine = base + BARRIERS_AT + 8;
            if constexpr (SHARED)
                mine = lane < 8 && ((near.want_a | near.want_b) >> lane & 1) ? remote_address(mine, lane) : 0;
            else
                mine = lane == 0 ? mine : 0;
            keep(mine);
            if constexpr (SHARED) {
                meet_cluster();
            } else {
                if (slices > 1) arrive_at_cluster();
                sync_threads(2, THREADS); // the barriers are there
                // never; but without a branch here the compiler computes the descriptors in all lanes, and moves them
                if (tiles < 1) return;
            }
            multiply(acc, base, 64 * (int)broadcast(warp >> 2), tiles, mine);
            if (p.late) start_successors();
            if (SHARED && slices == 1) arrive_at_cluster();
            if constexpr (LEAVES)
                leave(p, place, acc, warp, lane);
            else if (slices == 1 && (p.parts == 1 || Base::add_parts(p, acc, base, thread)))
                Base::template store<0>(p, acc, base + OUT_AT + warp * Out::SIZE, tile.row + 16 * warp, tile.column, lane);
        }
        if (slices == 1) {
            if constexpr (SHARED) wait_for_cluster(); // others may still arrive at our barriers
            return;
        }
        if constexpr (SHARED)
            meet_cluster(); // all stages of all slices have been read, and they expect each other's sums
        else
            wait_for_cluster(); // they expect each other's sums
        if (warp < 4 * CONSUMERS)
            Base::template sum_up<SUMS_AT>(p, acc, base, SHARED ? slices * (near.n + p.share_n * near.m) : 0, slice, slices, tile.row,
                                           tile.column, thread);
    }
};

} // namespace sassafras
