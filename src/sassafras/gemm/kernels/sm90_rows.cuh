// What stands between a model's products, row by row: RMS norm, layer norm, and SwiGLU's silu(gate) * up. FP16 or BF16, FP32 inside,
// one rounding.
//
// All let the launch behind them start at once. It is a product of ours, as a rule: its CTAs come up and copy their weights while
// the launch ahead of us ends and we are at work. That is safe though we have not waited yet:
//   - Whatever the launch behind reads or writes after its own wait is safe. That wait returns when our grid has ended and its writes
//     are visible; each of our threads has waited for the launch ahead before it ended, and so on: all that came before has ended.
//   - What it reads before its wait (`early`: weights) was written before a product that lies ahead of us, or before a launch of
//     another author. Those let no launch start before their own wait, so that what was written before them is visible to us all.
//
// RmsNorm: C = A * norm / sqrt(mean of a line's squares + eps). A CTA has a line.
// Launch: grid (lines), THREADS threads, SHARED_BYTES of dynamic shared memory. k is a multiple of 8 and at most MOST, lda and ldc are
// multiples of 8. `early`: `norm` is read before the launch ahead has ended.
//
// LayerNorm: C = (A - mean of a line) * norm / sqrt(variance of the line + eps) + bias, where there is one; launched alike, with twice
// the shared memory. The variance is that of what lies in registers, less their mean: nothing is subtracted from a sum of squares.
// `early`: of `bias`, too.
//
// Gated: C = silu(A) * B. Launch: grid (blocks of 8 * THREADS columns, lines), THREADS threads. n, lda, ldb and ldc are multiples of 8.
//
// Bases are aligned to 16 bytes.
#pragma once
#include "ptx_stream.cuh"
#include "ptx_rows.cuh"
#include "epilogue.cuh"

namespace sassafras {

// Eight elements.
template <bool BF16> __device__ __forceinline__ void widen(float (&to)[8], const u32 (&from)[4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = widened<BF16>((u16)(from[i / 2] >> 16 * (i % 2)));
}
template <bool BF16> __device__ __forceinline__ void store_rounded(u16 *to, const float (&from)[8]) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = rounded_pair<BF16>(from[2 * i], from[2 * i + 1]);
    store_global(to, words);
}

struct RmsNormProblem {
    const u16 *a, *norm; // (m, k), (k)
    u16 *c;              // (m, k)
    int k, lda, ldc, early;
    float eps;
};

struct LayerNormProblem {
    const u16 *a, *norm, *bias; // (m, k), (k), (k) or null
    u16 *c;                     // (m, k)
    int k, lda, ldc, early;
    float eps;
};

template <int THREADS_, int VECTORS, bool BF16, bool CENTRED, class Problem_> struct Norm {
    using Problem = Problem_;
    static constexpr int THREADS = THREADS_, WARPS = THREADS / 32, SHARED_BYTES = (CENTRED ? 8 : 4) * WARPS, MOST = 8 * THREADS * VECTORS;

    // The sum of all threads' values, in an order of its own; of each call in a place of its own.
    static __device__ __forceinline__ float total(float sum, float *const place, int lane, int warp) {
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sum += as_float(value_of(as_word(sum), lane ^ apart));
        if (lane == 0) place[warp] = sum;
        sync_cta();
        sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += place[w];
        return sum;
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const u16 *const from = p.a + (long long)blockIdx.x * p.lda;
        u16 *const to = p.c + (long long)blockIdx.x * p.ldc;
        start_successors_at_once();
        u32 norm[VECTORS][4], x[VECTORS][4], bias[CENTRED ? VECTORS : 1][4] = {};
        const auto column = [](int i) { return 8 * (int)(threadIdx.x + i * THREADS); };
        if (p.early) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                load_fixed(norm[i], p.norm + column(i), column(i) < p.k);
                if constexpr (CENTRED) load_fixed(bias[i], p.bias + column(i), p.bias && column(i) < p.k);
            }
        }
        wait_for_predecessors();
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) load_global(x[i], from + column(i), column(i) < p.k);
        if (!p.early) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                load_global(norm[i], p.norm + column(i), column(i) < p.k);
                if constexpr (CENTRED) load_global(bias[i], p.bias + column(i), p.bias && column(i) < p.k);
            }
        }
        const float each = reciprocal((float)p.k);
        float sum = 0, mean = 0;
        if constexpr (CENTRED) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                float values[8];
                widen<BF16>(values, x[i]); // zeros outside
#pragma unroll
                for (int j = 0; j < 8; ++j) sum += values[j];
            }
            mean = total(sum, shared_floats() + WARPS, lane, warp) * each;
            sum = 0;
        }
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            float values[8];
            widen<BF16>(values, x[i]);
            if (CENTRED && column(i) >= p.k) continue;
#pragma unroll
            for (int j = 0; j < 8; ++j) sum += (values[j] - mean) * (values[j] - mean);
        }
        const float scale = reciprocal_root(total(sum, shared_floats(), lane, warp) * each + p.eps);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (column(i) >= p.k) break;
            float values[8], factors[8], added[8];
            widen<BF16>(values, x[i]);
            widen<BF16>(factors, norm[i]);
            widen<BF16>(added, bias[CENTRED ? i : 0]);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                values[j] = (values[j] - mean) * scale * factors[j];
                if (CENTRED) values[j] += added[j];
            }
            store_rounded<BF16>(to + column(i), values);
        }
    }
};

template <int THREADS, int VECTORS, bool BF16> using RmsNorm = Norm<THREADS, VECTORS, BF16, false, RmsNormProblem>;
template <int THREADS, int VECTORS, bool BF16> using LayerNorm = Norm<THREADS, VECTORS, BF16, true, LayerNormProblem>;

struct GatedProblem {
    const u16 *a, *b; // (m, n) each
    u16 *c;           // (m, n)
    int n, lda, ldb, ldc;
};

template <int THREADS_, bool BF16> struct Gated {
    using Problem = GatedProblem;
    static constexpr int THREADS = THREADS_, SHARED_BYTES = 0;

    static __device__ __forceinline__ void run(const Problem &p) {
        const long long line = blockIdx.y;
        const int column = 8 * (int)(blockIdx.x * THREADS + threadIdx.x);
        start_successors_at_once();
        wait_for_predecessors();
        if (column >= p.n) return;
        u32 gate[4], up[4];
        load_global(gate, p.a + line * p.lda + column, true);
        load_global(up, p.b + line * p.ldb + column, true);
        float values[8], factors[8];
        widen<BF16>(values, gate);
        widen<BF16>(factors, up);
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = gated(values[j], 1.0f, 0.0f) * factors[j];
        store_rounded<BF16>(p.c + line * p.ldc + column, values);
    }
};

} // namespace sassafras
