// HGEMM for few tiles, on tensor copies and WGMMA: C = A * B, FP16 or BF16 in and out, FP32 accumulation.
//
// One tile a CTA, as few steps as possible between launch and store: the loading warp initialises the barriers and sends
// its first copies before anybody else is ready; warps stage and store their own 16 rows without meeting the others.
// k may be split over the CTAs of a cluster. Their partial sums meet in distributed shared memory in a fixed order:
// every CTA sums an equal share of the tile, so results are reproducible bit for bit and nobody waits in turn.
// Several clusters may split k further: each leaves its sums in a workspace, and whoever arrives last at a counter adds
// all of them, again in the order of k. Nobody waits; the counter is left at zero.
// CTAs of a cluster may also be neighbours that share operands: along m they share B's tile, along n A's. Each loads a
// part of what is shared and sends it to all; the L2 is read as often as if one large tile stood there.
//
// Template parameters
//   BM, BN       the CTA's tile. BM: 64 times the multiplying warpgroups; BN: 16 .. 256 (see Products)
//   STAGES       k tiles in flight
//   CONSUMERS    multiplying warpgroups: 1 or 2, 64 rows each
//   A_MN, B_MN   the operand is contiguous along m or n instead of k
//   BF16         elements are BF16, otherwise FP16
//   SWAPPED      the kernel computes the transpose of C: its A is the caller's B and its m the caller's n. For small m.
//   SHARED       neighbours of a cluster share operands; otherwise share_m and share_n are 1
//
// Launch: grid (slices * parts, tiles of n, tiles of m), the latter two rounded up to multiples of the cluster (slices, share_n,
// share_m) of 1 to 8 CTAs; share_m, share_n, and with several parts slices are powers of two; 128 * CONSUMERS + 32 threads; dynamic shared memory as `ClusterSplitConfig.shared_bytes` says. Requires leading dimensions that are multiples of 8 elements
// and bases aligned to 16 bytes (C's row length too: n % 8 == 0). Any m, n, k otherwise.
#pragma once
#include "hopper_tile.cuh"

namespace sassafras {

struct ClusterSplitProblem {
    const TensorMap *map_a, *map_b; // boxes: Operand's
    u16 *c;                         // (m, n), row-major; swapped: (n, m)
    float *workspace;               // parts * tiles * BM * BN sums
    u32 *counters;                  // tiles * slices; zero
    int m, n;                       // the kernel's
    int ldc;
    int k_tiles;         // of 64
    int tiles_per_slice; // k tiles of each slice of each part; the last may have fewer, none has 0
    int parts;           // clusters that split k
    int log2_slices;     // of slices, where there are several parts
    int late;            // successors may start when the operands have been read (0: at once)
    int share_m, share_n; // neighbours in a cluster
    int rows_a, rows_b;   // of a tile of A, of B, that each of them loads
    int all_a, all_b;     // masks of those that want the first CTA's A, B
};

// Where a CTA stands among its neighbours, and which ranks want the same tile of A, of B (itself included).
struct Neighbours {
    int m, n;
    u32 want_a, want_b;

    __device__ __forceinline__ Neighbours(const ClusterSplitProblem &p, int slice, int slices)
        : m(blockIdx.z & (p.share_m - 1)), n(blockIdx.y & (p.share_n - 1)),
          want_a(p.all_a << (slice + slices * (p.share_n * m))), want_b(p.all_b << (slice + slices * n)) {}
};

template <int BM, int BN, int STAGES, int CONSUMERS, bool A_MN, bool B_MN, bool BF16, bool SWAPPED, bool SHARED>
struct ClusterSplit {
    static constexpr int REGISTERS = BN / 2, MULTIPLIERS = 128 * CONSUMERS, THREADS = MULTIPLIERS + 32;
    static_assert(BM == 64 * CONSUMERS, "64 rows a warpgroup");
    using A = Operand<BM, A_MN, 1>;
    using B = Operand<BN, B_MN, 1>;
    static constexpr int STAGE = A::BYTES + B::BYTES;
    static constexpr int WIDTH = SWAPPED ? BN : STAGED_COLUMNS<BN>;
    using Out = Staging<WIDTH, SWAPPED, BF16>;
    static_assert(BN % WIDTH == 0 && STAGE % 1024 == 0, "swizzles start afresh");
    // from a 1024-byte boundary on: stages, a staging buffer of each warp, barriers. Partial sums take the stages' place.
    static constexpr int OUT_AT = STAGES * STAGE, BARRIERS_AT = OUT_AT + CONSUMERS * 4 * Out::SIZE;
    // rows of the partial tile as C has them; the padding spreads what a warp writes at once over the banks
    static constexpr int P_ROWS = SWAPPED ? BN : BM, P_COLUMNS = SWAPPED ? BM : BN, P_ROW = P_COLUMNS + (SWAPPED ? 4 : 8);
    static constexpr int P_BYTES = 4 * P_ROWS * P_ROW, BYTES = BARRIERS_AT + 16 * STAGES;
    static_assert(P_BYTES <= BARRIERS_AT, "more stages: partial sums do not fit");
    static constexpr int SHARED_BYTES = 1024 + BYTES;

    static __device__ __forceinline__ u32 pack(float first, float second) {
        return BF16 ? pack_bf16(first, second) : pack_f16(first, second);
    }

    // Everybody who sends to this stage learns that a warp has read it.
    static __device__ __forceinline__ void release(u32 empty, u32 senders, int lane) {
        if constexpr (SHARED) {
            if (lane < 8 && (senders >> lane & 1)) barrier_arrive_remote(empty, lane);
        } else {
            if (lane == 0) barrier_arrive(empty);
        }
    }

    static __device__ __forceinline__ void multiply(float (&acc)[REGISTERS], u32 base, int row, int tiles, u32 senders, int lane) {
        int stage = 0, last = 0;
        u32 phase = 0;
        for (int k = 0; k < tiles; ++k) {
            const u32 a = base + stage * STAGE, b = a + A::BYTES;
            barrier_wait<2>(base + BARRIERS_AT + 16 * stage, phase);
            products_fence();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
                Products<BN>::template issue<BF16, A_MN, B_MN>(acc, A::describe(a, row, step), B::describe(b, 0, step),
                                                              k > 0 || step > 0);
            products_commit();
            products_wait<1>(); // the k tile before this one has been read
            if (k > 0) release(base + BARRIERS_AT + 16 * last + 8, senders, lane);
            last = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        products_wait<0>();
        settle(acc);
    }

    template <int FROM>
    static __device__ __forceinline__ void store(const ClusterSplitProblem &p, const float (&d)[REGISTERS], u32 buffer, int row,
                                                 int column, int lane) {
        if constexpr (FROM < BN) {
            Out::template write<FROM>(buffer, d, lane);
            sync_warp();
            const int c_rows = SWAPPED ? p.n : p.m, c_columns = SWAPPED ? p.m : p.n;
            const int row0 = SWAPPED ? column + FROM : row, column0 = SWAPPED ? row : column + FROM;
#pragma unroll
            for (int i = 0; i < (Out::ROWS * Out::CHUNKS + 31) / 32; ++i) {
                const int at = i * 32 + lane, r = at / Out::CHUNKS, chunk = at % Out::CHUNKS;
                u32 words[4];
                load_shared(words, buffer + Out::place(r, chunk));
                if (row0 + r < c_rows && column0 + 8 * chunk < c_columns)
                    store_global(p.c + (long long)(row0 + r) * p.ldc + column0 + 8 * chunk, words);
            }
            sync_warp();
            store<FROM + WIDTH>(p, d, buffer, row, column, lane);
        }
    }

    static __device__ __forceinline__ void run(const ClusterSplitProblem &p) {
        if (!p.late) start_successors();
        char *const shared = (char *)shared_floats();
        const u32 start = shared_address(shared), base = (start + 1023) & ~1023u;
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        // along x lie the slices of the first part, of the next ...
        const int slices = p.parts == 1 ? gridDim.x : 1 << p.log2_slices;
        const int slice = p.parts == 1 ? blockIdx.x : blockIdx.x & (slices - 1);
        const Neighbours near(p, slice, slices);
        const int row0 = blockIdx.z * BM, column0 = blockIdx.y * BN;
        const int first = blockIdx.x * p.tiles_per_slice, tiles = min(p.tiles_per_slice, p.k_tiles - first);
        float acc[REGISTERS];

        if (warp == 4 * CONSUMERS) {
            if (lane == 0) {
                const int releases = SHARED ? 4 * CONSUMERS * (p.share_m + p.share_n - 1) : 4 * CONSUMERS;
                for (int s = 0; s < STAGES; ++s) {
                    barrier_init(base + BARRIERS_AT + 16 * s, 1);
                    barrier_init(base + BARRIERS_AT + 16 * s + 8, releases);
                }
                barrier_init_fence();
                wait_for_predecessors(); // the others touch global memory only after what these copies bring
                if constexpr (!SHARED) load(p, near, base, row0, column0, first, 0, min(tiles, STAGES));
            }
            sync_warp();
        }
        if constexpr (SHARED)
            meet_cluster(); // nobody sends before all barriers are there
        else
            sync_cta(); // the others see the barriers
        if (warp == 4 * CONSUMERS) {
            if (lane == 0) {
                if constexpr (SHARED) load(p, near, base, row0, column0, first, 0, min(tiles, STAGES));
                load(p, near, base, row0, column0, first, STAGES, tiles);
            }
            sync_warp();
        } else {
            multiply(acc, base, 64 * (warp >> 2), tiles, near.want_a | near.want_b, lane);
            if (p.late) start_successors();
            if (gridDim.x == 1) store<0>(p, acc, base + OUT_AT + warp * Out::SIZE, row0 + 16 * warp, column0, lane);
        }
        if (gridDim.x == 1) {
            if constexpr (SHARED) meet_cluster(); // others may still arrive at our barriers
            return;
        }

        sync_cta(); // all stages have been read
        float *const partial = (float *)(shared + (base - start));
        if (warp < 4 * CONSUMERS) {
#pragma unroll
            for (int j = 0; j < BN / 8; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int r = 16 * warp + 8 * h + (lane >> 2), c = 8 * j + 2 * (lane & 3);
                    const float x = acc[4 * j + 2 * h], y = acc[4 * j + 2 * h + 1];
                    if constexpr (SWAPPED) {
                        partial[c * P_ROW + r] = x;
                        partial[(c + 1) * P_ROW + r] = y;
                    } else {
                        partial[r * P_ROW + c] = x;
                        partial[r * P_ROW + c + 1] = y;
                    }
                }
        }
        if (slices > 1 || SHARED)
            sync_cluster();
        else
            sync_cta();
        sum_up(p, partial, SHARED ? slices * (near.n + p.share_n * near.m) : 0, slice, slices, row0, column0, thread);
        if (slices > 1 || SHARED) meet_cluster(); // shared memory must live until the others have read it
    }

    // Each CTA sums an equal share of the tile over the cluster's slices, eight columns of C at a time. rank0: slice 0's.
    static __device__ __forceinline__ void sum_up(const ClusterSplitProblem &p, const float *partial, int rank0, int slice,
                                                  int slices, int row0, int column0, int thread) {
        constexpr int UNITS = P_ROWS * P_COLUMNS / 8;
        const int c_row0 = SWAPPED ? column0 : row0, c_column0 = SWAPPED ? row0 : column0;
        const int rows = (SWAPPED ? p.n : p.m) - c_row0, columns = (SWAPPED ? p.m : p.n) - c_column0;
        u16 *const c = p.c + (long long)c_row0 * p.ldc + c_column0;
        // this share's sums of all parts, part after part
        const int tile = blockIdx.y + gridDim.y * blockIdx.z, part = p.parts == 1 ? 0 : blockIdx.x >> p.log2_slices;
        const long long stride = (long long)gridDim.y * gridDim.z * UNITS * 8;
        float *const sums = p.workspace + (long long)tile * UNITS * 8;
        u32 *const counter = p.counters + slice + slices * tile;
        for (int u = slice * THREADS + thread; u < UNITS; u += slices * THREADS) {
            const int r = u / (P_COLUMNS / 8), at = u % (P_COLUMNS / 8) * 8;
            if (r >= rows || at >= columns) continue;
            float sum[8] = {};
#pragma unroll 4
            for (int other = 0; other < slices; ++other) {
                float low[4], high[4];
                load_remote(low, partial + r * P_ROW + at, rank0 + other);
                load_remote(high, partial + r * P_ROW + at + 4, rank0 + other);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[e] += low[e];
                    sum[4 + e] += high[e];
                }
            }
            if (p.parts == 1) {
                store_sums(c + (long long)r * p.ldc + at, sum);
            } else {
                const float low[4] = {sum[0], sum[1], sum[2], sum[3]}, high[4] = {sum[4], sum[5], sum[6], sum[7]};
                store_partial(sums + part * stride + 8 * u, low);
                store_partial(sums + part * stride + 8 * u + 4, high);
            }
        }
        if (p.parts == 1) return;
        u32 *const arrived = (u32 *)(partial + P_BYTES / 4 - 1); // padding of the last row: nobody reads it
        sync_cta();
        if (thread == 0) *arrived = count_up(counter); // releases what all threads have written
        sync_cta();
        if (*(volatile u32 *)arrived != (u32)p.parts - 1) return;
        if (thread == 0) store_counter(counter, 0);
        for (int u = slice * THREADS + thread; u < UNITS; u += slices * THREADS) {
            const int r = u / (P_COLUMNS / 8), at = u % (P_COLUMNS / 8) * 8;
            if (r >= rows || at >= columns) continue;
            float sum[8] = {};
#pragma unroll 4
            for (int other = 0; other < p.parts; ++other) {
                float low[4], high[4];
                load_partial(low, sums + other * stride + 8 * u);
                load_partial(high, sums + other * stride + 8 * u + 4);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[e] += low[e];
                    sum[4 + e] += high[e];
                }
            }
            store_sums(c + (long long)r * p.ldc + at, sum);
        }
    }

    static __device__ __forceinline__ void store_sums(u16 *to, const float (&sum)[8]) {
        const u32 words[4] = {pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7])};
        store_global(to, words);
    }

    // k tiles from..to-1 of this CTA's slice; those from STAGES on wait for their stage.
    static __device__ __forceinline__ void load(const ClusterSplitProblem &p, const Neighbours &near, u32 base, int row,
                                                int column, int first, int from, int to) {
        int stage = 0;
        u32 phase = 0;
        for (int k = from; k < to; ++k) {
            const u32 full = base + BARRIERS_AT + 16 * stage, tile = base + stage * STAGE;
            const int at = (first + k) * TILE_K;
            if (from > 0) barrier_wait<1>(full + 8, phase);
            barrier_expect(full, STAGE);
            if constexpr (SHARED) {
                A::load_part(tile, p.map_a, row, at, near.n, p.rows_a, near.want_a, full);
                B::load_part(tile + A::BYTES, p.map_b, column, at, near.m, p.rows_b, near.want_b, full);
            } else {
                A::load(tile, p.map_a, row, at, 0, full);
                B::load(tile + A::BYTES, p.map_b, column, at, 0, full);
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
};

} // namespace sassafras
