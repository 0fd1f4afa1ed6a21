// hole: configuration: the declared launch and the constants that go with it
// launch: {"entry": "gemm", "grid": [@GRID_X@, @GRID_Y@, 1], "threads": 256, "shared_bytes": @SHARED@,
//          "parameters": ["a", "b", "c"]}
constexpr int BM = @BM@, BN = @BN@, BK = 32, STAGES = 4, WARPS_M = 2, WARPS_N = 4;
// end hole
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

constexpr int M = GEMM_M, N = GEMM_N, K = GEMM_K, THREADS = 32 * WARPS_M * WARPS_N, PAD = 8;
constexpr int WM = BM / WARPS_M / 16, WN = BN / WARPS_N / 16, K_TILES = (K + BK - 1) / BK;
constexpr bool B_IS_N_BY_K = @TN@;
constexpr int A_LINE = BK + PAD, B_LINE = (B_IS_N_BY_K ? BK : BN) + PAD, B_LINES = B_IS_N_BY_K ? BN : BK;
constexpr int A_SIZE = BM * A_LINE, STAGE = A_SIZE + B_LINES * B_LINE, C_LINE = BN + 4;

static __device__ __forceinline__ void copy16(half *to, const half *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const half *__restrict__ a, const half *__restrict__ b, half *__restrict__ c) {
    extern __shared__ __align__(128) half shared[];
    const int thread = threadIdx.x, warp = thread / 32;
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
    const int warp_row = warp / WARPS_N * WM * 16, warp_column = warp % WARPS_N * WN * 16;

    // hole: copy: bring k tile `tile` of A and B into its stage of shared memory, asynchronously
    auto copy = [&](int tile) {
        half *const stage = shared + tile % STAGES * STAGE;
        const int k0 = tile * BK;
        for (int i = thread; i < BM * BK / 8; i += THREADS) {
            const int row = i / (BK / 8), k = i % (BK / 8) * 8;
            const bool there = row0 + row < M && k0 + k < K;
            copy16(stage + row * A_LINE + k, there ? a + (long long)(row0 + row) * K + k0 + k : a, there);
        }
        constexpr int WIDE = (B_LINE - PAD) / 8;
        for (int i = thread; i < B_LINES * WIDE; i += THREADS) {
            const int line = i / WIDE, at = i % WIDE * 8;
            const int n = column0 + (B_IS_N_BY_K ? line : at), k = k0 + (B_IS_N_BY_K ? at : line);
            const bool there = n < N && k < K;
            const half *const from = B_IS_N_BY_K ? b + (long long)n * K + k : b + (long long)k * N + n;
            copy16(stage + A_SIZE + line * B_LINE + at, there ? from : b, there);
        }
    };
    // end hole
    auto commit = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[WM][WN];
    for (int i = 0; i < WM; ++i)
        for (int j = 0; j < WN; ++j) wmma::fill_fragment(sums[i][j], 0.0f);
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        if (tile < K_TILES) copy(tile);
        commit();
    }
    // hole: loop: multiply all k tiles into `sums`
    for (int tile = 0; tile < K_TILES; ++tile) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (tile + STAGES - 1 < K_TILES) copy(tile + STAGES - 1);
        commit();
        const half *const a_tile = shared + tile % STAGES * STAGE, *const b_tile = a_tile + A_SIZE;
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left[WM];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, @B_MAJOR@> right[WN];
            for (int i = 0; i < WM; ++i)
                wmma::load_matrix_sync(left[i], a_tile + (warp_row + 16 * i) * A_LINE + k, A_LINE);
            for (int j = 0; j < WN; ++j) {
                const int n = warp_column + 16 * j;
                wmma::load_matrix_sync(right[j], b_tile + (B_IS_N_BY_K ? n * B_LINE + k : k * B_LINE + n), B_LINE);
            }
            for (int i = 0; i < WM; ++i)
                for (int j = 0; j < WN; ++j) wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
        }
    }
    // end hole
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    // hole: store: write the tile of C, rounded to FP16
    float *const tile = (float *)shared;
    for (int i = 0; i < WM; ++i)
        for (int j = 0; j < WN; ++j)
            wmma::store_matrix_sync(tile + (warp_row + 16 * i) * C_LINE + warp_column + 16 * j, sums[i][j], C_LINE,
                                    wmma::mem_row_major);
    __syncthreads();
    for (int i = thread; i < BM * BN / 8; i += THREADS) {
        const int row = i / (BN / 8), column = i % (BN / 8) * 8;
        if (row0 + row >= M || column0 + column >= N) continue;
        const float *const from = tile + row * C_LINE + column;
        __align__(16) half2 packed[4];
        for (int p = 0; p < 4; ++p) packed[p] = __floats2half2_rn(from[2 * p], from[2 * p + 1]);
        *(uint4 *)(c + (long long)(row0 + row) * N + column0 + column) = *(const uint4 *)packed;
    }
    // end hole
}
