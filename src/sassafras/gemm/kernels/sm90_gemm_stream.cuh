// HGEMM that streams B: C = A * B for up to 16 rows of A and a B (n x k, k contiguous) that comes from memory once,
// FP16 or BF16 in and out, FP32 accumulation. Decoding a token multiplies by every weight of a model like this.
//
// Only the bytes in flight matter, so each lane keeps a ring of 16-byte loads in registers, refilled right after
// their use; nothing passes through shared memory and no barrier is in the loop. The method (B's fragments straight
// from global memory, k split over the warps by whole 128-byte lines, a ring in registers) is of kernels that a
// language model wrote under `sassafras evolve` (benchmarks/results/llm-evolve.json).
//
// mma sums over k, so k may be permuted as long as A and B agree: lane 4*g + t loads the eight elements k = 8t ..
// 8t+7 of its row of A and of its rows of B; their first four serve as the fragment of one mma, the last four as the
// next one's. Line l, 64 elements of k, is warp (l % WARPS)'s. Partial sums of the warps are added in shared memory
// in a fixed order, which depends on neither m nor n: the bits of a row do not depend on the other rows.
//
// Template parameters
//   ROWS    of A: 8 or 16
//   TILES   8-row tiles of B a CTA
//   DEPTH   32-wide steps of the ring, even
//   WARPS   of a CTA, over which k is split
//   BF16    operands and C are BF16
//   EPILOGUE  batches, and what epilogue.cuh describes; the grid's z counts the matrices
//
// Launch: grid (1, tiles of n, 1), 32 * WARPS threads; dynamic shared memory for WARPS tiles of FP32 sums.
// Requires m <= ROWS, k % 8 == 0, n % 8 == 0, leading dimensions % 8 == 0, bases aligned to 16 bytes.
#pragma once
#include "ptx.cuh"
#include "epilogue.cuh"

namespace sassafras {

struct StreamProblem {
    const u16 *a; // (m, k), row-major
    const u16 *b; // (n, k)
    u16 *c;       // (m, n), row-major
    int m, n, k, lda, ldb, ldc;
};

template <int ROWS, int TILES, int DEPTH, int WARPS, bool BF16 = false, bool EPILOGUE = false> struct Stream {
    static_assert((ROWS == 8 || ROWS == 16) && DEPTH % 2 == 0, "");
    using Problem = typename ProblemOf<EPILOGUE, StreamProblem>::Type;
    static constexpr int HALVES = ROWS / 8, COLUMNS = 8 * TILES, LINE = 64;

    // One step of a lane: 16 bytes of each of its rows.
    struct Step {
        u32 a[HALVES][4], b[TILES][4];
    };
    // Where its rows begin, and how many there are of A; `k` elements each.
    struct Source {
        const u16 *a[HALVES], *b[TILES];
        bool there[HALVES];
        int k;
    };

    static __device__ __forceinline__ void load(Step &to, const Source &from, int at) {
        const bool ok = at < from.k;
#pragma unroll
        for (int i = 0; i < TILES; ++i) load_streamed(to.b[i], from.b[i] + at, ok);
#pragma unroll
        for (int h = 0; h < HALVES; ++h) load_global(to.a[h], from.a[h] + at, ok && from.there[h]);
    }

    static __device__ __forceinline__ void multiply(float (&d)[TILES][4], const Step &s) {
#pragma unroll
        for (int half = 0; half < 4; half += 2)
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                const u32 upper = HALVES == 2 ? s.a[HALVES - 1][half] : 0;
                const u32 upper_next = HALVES == 2 ? s.a[HALVES - 1][half + 1] : 0;
                if constexpr (BF16)
                    mma_m16n8k16_bf16(d[i], s.a[0][half], upper, s.a[0][half + 1], upper_next, s.b[i][half],
                                      s.b[i][half + 1]);
                else
                    mma_m16n8k16(d[i], s.a[0][half], upper, s.a[0][half + 1], upper_next, s.b[i][half],
                                 s.b[i][half + 1]);
            }
    }

    // Of step s of the ring, in elements of k from the lane's first.
    static __device__ __forceinline__ constexpr int place(int s) { return s / 2 * WARPS * LINE + s % 2 * (LINE / 2); }

    static __device__ __forceinline__ void run(const Problem &p) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
        const int column0 = blockIdx.y * COLUMNS;
        Source from;
        from.k = p.k;
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            from.there[h] = 8 * h + g < p.m;
            from.a[h] = p.a + (long long)(8 * h + g) * p.lda;
        }
#pragma unroll
        for (int i = 0; i < TILES; ++i) from.b[i] = p.b + (long long)min(column0 + 8 * i + g, p.n - 1) * p.ldb;

        constexpr int TURN = DEPTH / 2 * WARPS * LINE;
        int at = warp * LINE + 8 * t;
        Step ring[DEPTH];
        float d[TILES][4] = {};
        wait_for_predecessors();
        start_successors();
#pragma unroll
        for (int s = 0; s < DEPTH; ++s) load(ring[s], from, at + place(s));
        for (; at - 8 * t < p.k; at += TURN) {
#pragma unroll
            for (int s = 0; s < DEPTH; ++s) {
                multiply(d, ring[s]);
                load(ring[s], from, at + TURN + place(s));
            }
        }

        float *const sums = shared_floats(); // [warp][row of A][column]
        float *const mine = sums + warp * ROWS * COLUMNS + 2 * t;
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int h = 0; h < HALVES; ++h) {
                mine[(8 * h + g) * COLUMNS + 8 * i] = d[i][2 * h];
                mine[(8 * h + g) * COLUMNS + 8 * i + 1] = d[i][2 * h + 1];
            }
        sync_cta();
        for (int u = threadIdx.x; u < ROWS * COLUMNS / 2; u += 32 * WARPS) {
            const int row = u / (COLUMNS / 2), column = u % (COLUMNS / 2) * 2;
            if (row >= p.m || column0 + column >= p.n) continue;
            float v[2] = {};
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                v[0] += sums[(w * ROWS + row) * COLUMNS + column];
                v[1] += sums[(w * ROWS + row) * COLUMNS + column + 1];
            }
            if constexpr (EPILOGUE) finish<BF16, true>(p.out, row, column0 + column, v);
            const u32 packed[1] = {BF16 ? pack_bf16(v[0], v[1]) : pack_f16(v[0], v[1])};
            store_global(p.c + (long long)row * p.ldc + column0 + column, packed);
        }
    }

    static __device__ __forceinline__ void run_batched(Problem p) { // with EPILOGUE
        move_operands(p);
        move_result(p);
        run(p);
    }
};

} // namespace sassafras
