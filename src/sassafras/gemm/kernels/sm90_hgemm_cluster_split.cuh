// HGEMM for few tiles, on tensor copies and WGMMA: C = A * B, FP16 or BF16 in and out, FP32 accumulation.
//
// One tile a CTA, as few steps as possible between launch and store: the loading warp initialises the barriers and sends
// its first copies before anybody else is ready; warps stage and store their own 16 rows without meeting the others.
// k may be split over the CTAs of a cluster. Their partial sums meet in distributed shared memory in a fixed order:
// every CTA sums an equal share of the tile, so results are reproducible bit for bit and nobody waits in turn.
//
// Template parameters
//   BM, BN       the CTA's tile. BM: 64 times the multiplying warpgroups; BN: 16 .. 256 (see Products)
//   STAGES       k tiles in flight
//   CONSUMERS    multiplying warpgroups: 1 or 2, 64 rows each
//   A_MN, B_MN   the operand is contiguous along m or n instead of k
//   BF16         elements are BF16, otherwise FP16
//   SWAPPED      the kernel computes the transpose of C: its A is the caller's B and its m the caller's n. For small m.
//
// Launch: grid (cluster, tiles of n, tiles of m), cluster (cluster, 1, 1) of 1 to 8, 128 * CONSUMERS + 32 threads, dynamic
// shared memory as `ClusterSplitConfig.shared_bytes` says. Requires leading dimensions that are multiples of 8 elements
// and bases aligned to 16 bytes (C's row length too: n % 8 == 0). Any m, n, k otherwise.
#pragma once
#include "hopper_tile.cuh"

namespace sassafras {

struct ClusterSplitProblem {
    const TensorMap *map_a, *map_b; // boxes: Operand's
    u16 *c;                         // (m, n), row-major; swapped: (n, m)
    int m, n;                       // the kernel's
    int ldc;
    int k_tiles;         // of 64
    int tiles_per_slice; // k tiles of each CTA of a cluster; the last may have fewer, none has 0
};

template <int BM, int BN, int STAGES, int CONSUMERS, bool A_MN, bool B_MN, bool BF16, bool SWAPPED> struct ClusterSplit {
    static constexpr int REGISTERS = BN / 2, MULTIPLIERS = 128 * CONSUMERS, THREADS = MULTIPLIERS + 32;
    static_assert(BM == 64 * CONSUMERS, "64 rows a warpgroup");
    using A = Operand<BM, A_MN, 1>;
    using B = Operand<BN, B_MN, 1>;
    static constexpr int STAGE = A::BYTES + B::BYTES;
    static constexpr int WIDTH = SWAPPED ? BN : BN % 64 ? 32 : 64;
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

    static __device__ __forceinline__ void multiply(float (&acc)[REGISTERS], u32 base, int row, int tiles, int lane) {
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
            if (k > 0 && lane == 0) barrier_arrive(base + BARRIERS_AT + 16 * last + 8);
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
        start_successors();
        char *const shared = (char *)shared_floats();
        const u32 start = shared_address(shared), base = (start + 1023) & ~1023u;
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const int rank = blockIdx.x, cluster = gridDim.x;
        const int row0 = blockIdx.z * BM, column0 = blockIdx.y * BN;
        const int first = rank * p.tiles_per_slice, tiles = min(p.tiles_per_slice, p.k_tiles - first);
        float acc[REGISTERS];

        if (warp == 4 * CONSUMERS) {
            if (lane == 0) {
                for (int s = 0; s < STAGES; ++s) {
                    barrier_init(base + BARRIERS_AT + 16 * s, 1);
                    barrier_init(base + BARRIERS_AT + 16 * s + 8, 4 * CONSUMERS);
                }
                barrier_init_fence();
                wait_for_predecessors(); // the others touch global memory only after what these copies bring
                load(p, base, row0, column0, first, 0, min(tiles, STAGES));
            }
            sync_warp();
            sync_cta(); // the others see the barriers
            if (lane == 0) load(p, base, row0, column0, first, STAGES, tiles);
            sync_warp();
        } else {
            sync_cta();
            multiply(acc, base, 64 * (warp >> 2), tiles, lane);
            if (cluster == 1)
                store<0>(p, acc, base + OUT_AT + warp * Out::SIZE, row0 + 16 * warp, column0, lane);
        }
        if (cluster == 1) return;

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
        sync_cluster();
        // each CTA sums every cluster-th share of the tile, eight columns of C at a time
        const int c_rows = SWAPPED ? p.n : p.m, c_columns = SWAPPED ? p.m : p.n;
        const int c_row0 = SWAPPED ? column0 : row0, c_column0 = SWAPPED ? row0 : column0;
        for (int u = rank * THREADS + thread; u < P_ROWS * P_COLUMNS / 8; u += cluster * THREADS) {
            const int r = u / (P_COLUMNS / 8), c = u % (P_COLUMNS / 8) * 8;
            if (c_row0 + r >= c_rows || c_column0 + c >= c_columns) continue;
            float sum[8] = {};
#pragma unroll 4
            for (int other = 0; other < cluster; ++other) {
                float low[4], high[4];
                load_remote(low, partial + r * P_ROW + c, other);
                load_remote(high, partial + r * P_ROW + c + 4, other);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[e] += low[e];
                    sum[4 + e] += high[e];
                }
            }
            const u32 words[4] = {pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7])};
            store_global(p.c + (long long)(c_row0 + r) * p.ldc + c_column0 + c, words);
        }
        sync_cluster(); // shared memory must live until the others have read it
    }

    // k tiles from..to-1 of this CTA's slice; those from STAGES on wait for their stage.
    static __device__ __forceinline__ void load(const ClusterSplitProblem &p, u32 base, int row, int column, int first, int from,
                                                int to) {
        int stage = 0;
        u32 phase = 0;
        for (int k = from; k < to; ++k) {
            const u32 full = base + BARRIERS_AT + 16 * stage, tile = base + stage * STAGE;
            if (from > 0) barrier_wait<1>(full + 8, phase);
            barrier_expect(full, STAGE);
            A::load(tile, p.map_a, row, (first + k) * TILE_K, 0, full);
            B::load(tile + A::BYTES, p.map_b, column, (first + k) * TILE_K, 0, full);
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
};

} // namespace sassafras
