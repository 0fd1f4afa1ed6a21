// Staged HGEMM for small problems whose operands are worth sharing: C = A * B, FP16 or BF16 in and out, FP32
// accumulation.
//
// A CTA computes a BM x BN tile. Its operands pass through shared memory in k tiles of 64, STAGES of them in
// flight (cp.async); warps read fragments with ldmatrix, transposed for B in NN, and multiply with mma.m16n8k16.
// Rows are stored in 16-byte chunks whose order is permuted (xor with the row), so that neither copies nor
// ldmatrix meet bank conflicts. k may be split over the CTAs of a cluster; partial sums meet in distributed
// shared memory in a fixed order: results are bitwise reproducible.
//
// Template parameters
//   BM, BN            the CTA's tile; 32, 64 or 128
//   WARPS_M, WARPS_N  how its warps divide it; a warp's part is a multiple of 16 x 16
//   STAGES            k tiles in shared memory, at least 2
//   NN                B is K x N; otherwise N x K (TN)
//   ALIGN             elements that rows and bases are multiples of: 8 (16 bytes), 2, or 1. Below 8 the copies are
//                     smaller (for 1 ordinary loads and stores), and so are the stores of C
//   EPILOGUE          batches, and what epilogue.cuh describes; grid: tiles of M times matrices of the batch
//   BF16              elements are BF16, otherwise FP16
//
// Launch: grid (cluster, tiles of N, tiles of M), cluster (cluster, 1, 1), 32 * WARPS_M * WARPS_N threads,
// dynamic shared memory as `StagedConfig.shared_bytes` says.
//
// Requires K, N and leading dimensions to be multiples of ALIGN, bases aligned to 2 * ALIGN bytes. Any M, N, K otherwise.
#pragma once
#include "ptx.cuh"
#include "epilogue.cuh"

namespace sassafras {

struct StagedProblem {
    const u16 *a; // (m, k), row-major
    const u16 *b; // TN: (n, k); NN: (k, n), row-major
    u16 *c;       // (m, n), row-major
    int m, n, k;
    int lda, ldb, ldc;   // elements from row to row
    int tiles_per_slice; // 64-wide k tiles of each CTA of a cluster
};

template <int BM, int BN, int WARPS_M, int WARPS_N, int STAGES, bool NN, int ALIGN = 8, bool EPILOGUE = false, bool BF16 = false>
struct Staged {
    using Problem = typename ProblemOf<EPILOGUE, StagedProblem>::Type;
    static constexpr int BK = 64, CHUNK = 8; // elements; a chunk is 16 bytes
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MT = WM / 16, NT = WN / 8;
    static_assert(WM % 16 == 0 && WN % 16 == 0 && STAGES >= 2, "a warp's part is a multiple of 16 x 16");
    static constexpr int A_ELEMENTS = BM * BK, STAGE = (BM + BN) * BK;
    // chunks a row of B's tile in shared memory, and copies a thread
    static constexpr int B_CHUNKS = NN ? BN / CHUNK : BK / CHUNK, B_ROWS = NN ? BK : BN;
    static constexpr int A_COPIES = BM * (BK / CHUNK) / THREADS, B_COPIES = B_ROWS * B_CHUNKS / THREADS;
    static_assert(BM * (BK / CHUNK) % THREADS == 0 && B_ROWS * B_CHUNKS % THREADS == 0, "copies divide evenly");
    static constexpr int PARTIAL_ROW = BN + 4; // floats; the padding spreads rows over banks

    // Element offset of a chunk. Eight rows that are read together lie in eight different bank groups.
    template <int CHUNKS> static __device__ __forceinline__ int place(int row, int chunk) {
        const int twist = CHUNKS >= 8 ? row & 7 : (row >> 1) & 3;
        return (row * CHUNKS + (chunk ^ twist)) * CHUNK;
    }

    // One chunk, of which `valid` elements exist (all, some or, if not positive, none); the others become zero.
    static __device__ __forceinline__ void copy_chunk(u16 *to, const u16 *from, int valid) {
        if constexpr (ALIGN == 8) {
            copy_async(to, from, valid > 0);
        } else if constexpr (ALIGN > 1) {
#pragma unroll
            for (int e = 0; e < CHUNK; e += ALIGN) copy_async_part<2 * ALIGN>(to + e, from + e, e < valid);
        } else { // seen by the others after the barrier that precedes their reads
            u16 loaded[CHUNK];
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) loaded[e] = load_global_u16(from + e, e < valid);
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) to[e] = loaded[e];
        }
    }

    // Contiguous columns of a row of C; those from n on are left out.
    template <int COUNT>
    static __device__ __forceinline__ void store(const Problem &p, int row, int column, const u32 (&words)[COUNT]) {
        if (row >= p.m) return;
        u16 *const to = p.c + (long long)row * p.ldc + column;
        if constexpr (ALIGN == 8) {
            if (column < p.n) store_global(to, words);
        } else {
#pragma unroll
            for (int w = 0; w < COUNT; ++w) {
                if constexpr (ALIGN > 1) {
                    const u32 word[1] = {words[w]};
                    if (column + 2 * w < p.n) store_global(to + 2 * w, word);
                } else {
                    if (column + 2 * w < p.n) store_global_u16(to + 2 * w, (u16)words[w]);
                    if (column + 2 * w + 1 < p.n) store_global_u16(to + 2 * w + 1, (u16)(words[w] >> 16));
                }
            }
        }
    }

    struct Copies { // what this thread copies, running along k
        const u16 *a[A_COPIES], *b[B_COPIES];
        int a_to[A_COPIES], b_to[B_COPIES];
        int a_k, b_k[NN ? B_COPIES : 1]; // elements of k from the copy's first one to the end
        int b_columns[NN ? B_COPIES : 1]; // columns of B from the copy's first one to the end (NN, if not aligned)
        long long b_step;                // elements from a k tile of B to the next
    };

    static __device__ __forceinline__ void copy(u16 *stage, Copies &from) {
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) {
            copy_chunk(stage + from.a_to[i], from.a[i], from.a_k);
            from.a[i] += BK;
        }
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            const int k = from.b_k[NN ? i : 0];
            copy_chunk(stage + A_ELEMENTS + from.b_to[i], from.b[i], NN && ALIGN < 8 && k > 0 ? from.b_columns[NN ? i : 0] : k);
            from.b[i] += from.b_step;
        }
        from.a_k -= BK;
#pragma unroll
        for (int i = 0; i < (NN ? B_COPIES : 1); ++i) from.b_k[i] -= BK;
    }

    static __device__ __forceinline__ void multiply(float (&acc)[MT][NT][4], const u16 *stage, int warp_m, int warp_n,
                                                    int lane) {
        const u16 *const b_tile = stage + A_ELEMENTS;
#pragma unroll
        for (int kk = 0; kk < BK / 16; ++kk) {
            u32 a[MT][4], b[NT / 2][4];
#pragma unroll
            for (int i = 0; i < MT; ++i)
                load_matrices(a[i], stage + place<BK / CHUNK>(warp_m * WM + 16 * i + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
            for (int j = 0; j < NT / 2; ++j) { // 16 columns: words 0, 1 of the first eight, 2, 3 of the others
                const int column = warp_n * WN + 16 * j;
                if constexpr (NN)
                    load_matrices_transposed(
                        b[j], b_tile + place<B_CHUNKS>(16 * kk + (lane & 15), column / CHUNK + (lane >> 4)));
                else
                    load_matrices(b[j], b_tile + place<B_CHUNKS>(column + (lane & 7) + ((lane >> 4) << 3),
                                                                 2 * kk + ((lane >> 3) & 1)));
            }
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int j = 0; j < NT; ++j)
                    multiply_add<BF16>(acc[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][2 * (j & 1)],
                                 b[j / 2][2 * (j & 1) + 1]);
        }
    }

    static __device__ __forceinline__ void run_batched(Problem p) { // with EPILOGUE
        move_operands(p);
        move_result(p);
        run(p);
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        u16 *const shared = (u16 *)shared_floats();
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
        const int rank = blockIdx.x, cluster = gridDim.x;
        const int row0 = (EPILOGUE ? tile_row(p) : blockIdx.z) * BM, column0 = blockIdx.y * BN;
        const int first = rank * p.tiles_per_slice;
        const int tiles = min(p.tiles_per_slice, (p.k + BK - 1) / BK - first);
        const int k0 = first * BK;

        Copies from;
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) {
            const int at = thread + i * THREADS, row = at / (BK / CHUNK), chunk = at % (BK / CHUNK);
            from.a[i] = p.a + (long long)min(row0 + row, p.m - 1) * p.lda + k0 + chunk * CHUNK;
            from.a_to[i] = place<BK / CHUNK>(row, chunk);
        }
        from.a_k = p.k - k0 - (thread % (BK / CHUNK)) * CHUNK; // THREADS is a multiple of a row's chunks
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            const int at = thread + i * THREADS, row = at / B_CHUNKS, chunk = at % B_CHUNKS;
            from.b_to[i] = place<B_CHUNKS>(row, chunk);
            if constexpr (NN) {
                const int column = column0 + chunk * CHUNK;
                from.b[i] = p.b + (long long)(k0 + row) * p.ldb + (ALIGN == 8 ? min(column, p.n - CHUNK) : column);
                from.b_k[i] = p.k - k0 - row;
                from.b_columns[i] = p.n - column;
            } else {
                from.b[i] = p.b + (long long)min(column0 + row, p.n - 1) * p.ldb + k0 + chunk * CHUNK;
            }
        }
        if constexpr (!NN) from.b_k[0] = from.a_k;
        from.b_step = NN ? (long long)BK * p.ldb : BK;

        float acc[MT][NT][4] = {};
        wait_for_predecessors();
        start_successors();
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (s < tiles) copy(shared + s * STAGE, from);
            copy_commit();
        }
        int read = 0, write = STAGES - 1;
        for (int tile = 0; tile < tiles; ++tile) {
            copy_wait<STAGES - 2>();
            sync_cta(); // this tile has arrived for all, and the stage to be written has been read by all
            if (tile + STAGES - 1 < tiles) copy(shared + write * STAGE, from);
            copy_commit();
            multiply(acc, shared + read * STAGE, warp_m, warp_n, lane);
            read = read + 1 == STAGES ? 0 : read + 1;
            write = write + 1 == STAGES ? 0 : write + 1;
        }

        const int row = warp_m * WM + (lane >> 2), column = warp_n * WN + 2 * (lane & 3); // in the CTA's tile
        if (cluster == 1) {
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int j = 0; j < NT; ++j)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int r = row0 + row + 16 * i + 8 * h, c = column0 + column + 8 * j;
                        if constexpr (EPILOGUE) {
                            float v[2] = {acc[i][j][2 * h], acc[i][j][2 * h + 1]};
                            finish<BF16, ALIGN == 8>(p.out, r, c, v);
                            acc[i][j][2 * h] = v[0];
                            acc[i][j][2 * h + 1] = v[1];
                        }
                        const u32 pair[1] = {rounded_pair<BF16>(acc[i][j][2 * h], acc[i][j][2 * h + 1])};
                        store(p, r, c, pair);
                    }
            return;
        }

        copy_wait<0>();
        sync_cta(); // the stages are read; their memory now takes the partial tile
        float *const partial = shared_floats();
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float *to = partial + (row + 16 * i + 8 * h) * PARTIAL_ROW + column + 8 * j;
                    to[0] = acc[i][j][2 * h];
                    to[1] = acc[i][j][2 * h + 1];
                }
        sync_cluster();
        // each CTA sums every cluster-th share of the tile, four columns at a time
        for (int u = rank * THREADS + thread; u < BM * BN / 4; u += cluster * THREADS) {
            const int r = u / (BN / 4), c = u % (BN / 4) * 4;
            float sum[4] = {};
            for (int other = 0; other < cluster; ++other) {
                float part[4];
                load_remote(part, partial + r * PARTIAL_ROW + c, other);
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[e] += part[e];
            }
            if constexpr (EPILOGUE) finish<BF16, ALIGN == 8>(p.out, row0 + r, column0 + c, sum);
            const u32 packed[2] = {rounded_pair<BF16>(sum[0], sum[1]), rounded_pair<BF16>(sum[2], sum[3])};
            store(p, row0 + r, column0 + c, packed);
        }
        meet_cluster(); // shared memory must live until the others have read it
    }
};

} // namespace sassafras
