// GEMM for at most 8 rows of A, bound by reading B once: C = A * B^T, FP16 or BF16 in and out, FP32 accumulation.
//
// A tile is 16 rows of B (columns of C) and all of k; a CTA has every gridDim.x-th one. Its warps take chunks of k in turn. Each warp
// has a ring of its own: the lanes copy a row of the chunk each (bulk copies, the rows of A behind those of B), wait at the stage's
// barrier, multiply, and copy the next chunk, of this tile or the next, into the stage that is free: the memory is busy while sums
// meet. They meet at the end of a tile, in the order of the warps, so results are reproducible bit for bit.
//
// B is the first operand of mma.m16n8k16, so that its 16 rows fill the instruction; A's rows are the 8 columns. Rows that A does not
// have are not copied: their columns hold anything and are not stored. Within 32 k a lane owns 8 that follow each other, of B and
// of A alike, so that every load from shared memory has 16 bytes; the sum over k does not depend on which k is called first.
//
// NORM: A is RMS-normalised first. The kernel multiplies A's elements by `norm`'s, rounded to the type, and their sums by
// 1 / sqrt(mean of the line's squares + eps). The squares are summed beside the products, as a product of A with itself whose
// diagonal they are, so that no launch and no CTA waits for them. In FP16, where a product with `norm` overflowed or a line is so small
// that its products lose bits, a CTA does its first tile once more with that line times a power of two, and the others so at once.
//
// `early`: what does not depend on the launch before, B and `norm`, is copied before its end. What wrote them has ended.
//
// SwiGLU's pair (EPILOGUE, activation SWIGLU): B is the gate's weight, n / 2 rows, and up's: behind it, or with its lines at the
// addend's address. A CTA has 8 rows of each, at the same place, and C (m, n / 2) is silu(gate) * up. n is a multiple of 16.
//
// JOINED (EPILOGUE): up to three matrices B, each a multiple of 16 rows, with a bias each (Parts). No addend, no activation SWIGLU.
//
// Template parameters
//   WARPS     a CTA has
//   STAGES    of a warp's ring, each of KC k (a multiple of 64)
//   BF16      elements are BF16, otherwise FP16
//   EPILOGUE  see epilogue.cuh; one matrix
//   NORM, JOINED   with EPILOGUE
//
// Launch: grid (CTAs, at most the tiles), 32 * WARPS threads, SHARED_BYTES of dynamic shared memory. Requires m <= 8 (with NORM m < 8),
// bases aligned to 16 bytes, k, lda and ldb that are multiples of 8. Any n and ldc.
#pragma once
#include "ptx_stream.cuh"
#include "epilogue.cuh"

namespace sassafras {

struct StreamProblem {
    const u16 *a, *b; // (m, k), (n, k)
    u16 *c;           // (m, n)
    int m, n, k, lda, ldb, ldc, early;
};
struct NormedStreamProblem : StreamProblem {
    const u16 *norm; // k values
    float eps;
};
template <bool NORM> struct StreamProblemOf {
    using Type = StreamProblem;
};
template <> struct StreamProblemOf<true> {
    using Type = NormedStreamProblem;
};

template <int WARPS, int STAGES, int KC, bool BF16, bool EPILOGUE = false, bool NORM = false, bool JOINED = false> struct Stream {
    using Plain = typename JoinedOf<JOINED, typename StreamProblemOf<NORM>::Type, u16>::Type;
    using Problem = typename ProblemOf<EPILOGUE, Plain>::Type;
    static constexpr int ROWS = 16, COLUMNS = 8, THREADS = 32 * WARPS;
    static_assert(KC % 64 == 0, "two rows that lanes read at once lie in different banks");
    static constexpr int PITCH = 2 * KC + 64, STAGE = (ROWS + COLUMNS) * PITCH;
    static constexpr int SUMS = ROWS + 1; // floats from a column's sums to the next one's
    static constexpr int BARRIERS_AT = WARPS * STAGES * STAGE, SUMS_AT = BARRIERS_AT + 8 * WARPS * STAGES;
    static constexpr int SQUARES_AT = SUMS_AT + 4 * WARPS * COLUMNS * SUMS;
    static constexpr int SHARED_BYTES = SQUARES_AT + NORM * 4 * (WARPS + 1) * COLUMNS;

    // Where one of a CTA's 16 rows begins, with EPILOGUE; `row`: the first of B.
    static __device__ __forceinline__ const u16 *row_of(const Problem &p, int row, int lane) {
        if constexpr (JOINED) {
            const u16 *const part = p.parts.of(row, p.b, p.parts.second, p.parts.third);
            return part + (long long)(p.parts.within(row) + lane) * p.ldb;
        } else if (p.out.activation != SWIGLU)
            return p.b + (long long)(row + lane) * p.ldb;
        else {
            const u16 *const up = p.out.addend ? p.out.addend : p.b + (long long)(p.n / 2) * p.ldb;
            return (lane < 8 ? p.b : up) + (long long)(row / 2 + lane % 8) * p.ldb;
        }
    }

    // The sums of squares of A's lines, a warp each; behind all warps', the powers of two that lines were multiplied by.
    static __device__ __forceinline__ float *squares_of(int warp) { return shared_floats() + SQUARES_AT / 4 + warp * COLUMNS; }

    struct Mean {
        float value; // of a line's squares
        bool wrong;  // in FP16, a product overflowed or lost bits
    };
    static __device__ __forceinline__ Mean mean_of(const Problem &p, int line) {
        float sum = 0;
        bool over = false;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float value = squares_of(w)[line];
            sum += fabsf(value);
            over |= value < 0;
        }
        const float mean = sum * reciprocal((float)p.k);
        return {mean, over || (mean > 0 && mean < 0x1p-20f)};
    }

    // A warp's squares to shared memory: negative where a sum of products is no number, for an FP16 product may have overflowed.
    static __device__ __forceinline__ void keep(const float (&squares)[4], const float (&acc)[4], int lane, int warp) {
        const int group = lane >> 2;
        float sum = group & 1 ? squares[1] : squares[0];
        if constexpr (!BF16) {
            const u32 even = lanes_where(acc[0] - acc[0] != 0 || acc[2] - acc[2] != 0);
            const u32 odd = lanes_where(acc[1] - acc[1] != 0 || acc[3] - acc[3] != 0);
            if ((group & 1 ? odd : even) & 0x11111111u << (lane & 3)) sum = -sum;
        }
        if ((group >> 1) == (lane & 3)) squares_of(warp)[group] = sum; // the diagonal
    }

    // Whether a CTA does its work once more, with A's lines times `powers` of two.
    static __device__ __forceinline__ bool once_more(const Problem &p, int lane, int warp, u32 &powers) {
        const int line = lane >> 2;
        const Mean mean = mean_of(p, line);
        const bool wrong = line < p.m && mean.wrong;
        if (!lanes_where(wrong)) return false;
        float power = 1;
        if (wrong) { // 1 / the root of the mean, roughly
            const int exponent = ((int)(as_word(mean.value) >> 23 & 255) - 127) >> 1;
            power = as_float((u32)(127 - (exponent < -14 ? -14 : exponent)) << 23);
        }
        powers = pack_f16(power, power);
        if (warp == 0 && (lane & 3) == 0) squares_of(WARPS)[line] = power;
        return true;
    }

    // What an element of C takes beside its sum. `at` counts the CTA's elements.
    struct Extra {
        float bias, more; // more: the addend; of a pair, up's bias
    };
    static __device__ __forceinline__ Extra extra(const Problem &p, int row, int at) {
        const Epilogue &e = p.out;
        const bool pair = e.activation == SWIGLU;
        const int width = pair ? 8 : ROWS, line = at / width, column = (pair ? row / 2 : row) + at % width, half = p.n / 2;
        const bool inside = line < p.m && column < p.n;
        if constexpr (JOINED) {
            const u16 *const bias = p.parts.of(row, e.bias, p.parts.second_bias, p.parts.third_bias);
            return {widened<BF16>(load_global_u16(bias + p.parts.within(column), inside && bias)), 0.0f};
        }
        const u16 *const more = pair ? e.bias + half + column : e.addend + (long long)line * e.ld + column;
        return {widened<BF16>(load_global_u16(e.bias + column, inside && e.bias)),
                widened<BF16>(load_global_u16(more, inside && (pair ? e.bias != nullptr : e.beta != 0)))};
    }

    static __device__ __forceinline__ float *sums_of(int warp) { return shared_floats() + SUMS_AT / 4 + warp * COLUMNS * SUMS; }

    // Of the warps' sums of an element.
    static __device__ __forceinline__ float total(int column, int r) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums_of(w)[column * SUMS + r];
        return sum;
    }

    static __device__ __forceinline__ void store(const Problem &p, int line, int column, float value) {
        store_global_u16(p.c + (long long)line * p.ldc + column, rounded<BF16>(value));
    }

    // `again`: A's lines were multiplied by powers of two.
    static __device__ __forceinline__ void finish(const Problem &p, int row, int at, const Extra &extra, bool again) {
        const Epilogue &e = p.out;
        float alpha = e.alpha;
        if constexpr (NORM) {
            const int line = at / (e.activation == SWIGLU ? 8 : ROWS) % COLUMNS;
            alpha *= reciprocal_root(mean_of(p, line).value + p.eps);
            if (again) alpha /= squares_of(WARPS)[line];
        }
        if (e.activation == SWIGLU) {
            if (at >= 8 * p.m) return;
            const float gate = alpha * total(at / 8, at % 8) + extra.bias, up = alpha * total(at / 8, 8 + at % 8) + extra.more;
            store(p, at / 8, row / 2 + at % 8, gated(gate, 1.0f, 0.0f) * up);
        } else if (at < ROWS * p.m && row + at % ROWS < p.n) {
            float value[1] = {alpha * total(at / ROWS, at % ROWS) + e.beta * extra.more + extra.bias};
            activate<0, 1>(e.activation, value);
            store(p, at / ROWS, row + at % ROWS, value[0]);
        }
    }

    // A warp's place in its work: chunk after chunk of a tile, tile after tile.
    struct Place {
        int row, chunk; // of B, the tile's first
        __device__ __forceinline__ bool inside(const Problem &p) const { return row < p.n; }
        __device__ __forceinline__ void advance(int chunks, int warp) {
            if ((chunk += WARPS) < chunks) return;
            chunk = warp;
            row += ROWS * gridDim.x;
        }
    };

    // Copies a chunk's rows into a stage, by all lanes: what does not depend on the launch before (FIXED), A's, or both.
    template <bool FIXED = true, bool OF_A = true>
    static __device__ __forceinline__ void load(const Problem &p, const Place &at, u32 stage, u32 barrier, int lane) {
        const int first = at.chunk * KC, bytes = 2 * least(KC, p.k - first), rows = least(ROWS, p.n - at.row);
        if constexpr (FIXED) {
            if (lane == 0) barrier_expect(barrier, bytes * (rows + p.m + NORM));
            sync_warp();
        }
        if (FIXED && lane < rows) {
            if constexpr (EPILOGUE)
                copy_row_once(stage + lane * PITCH, row_of(p, at.row, lane) + first, bytes, barrier);
            else
                copy_row_once(stage + lane * PITCH, p.b + (long long)(at.row + lane) * p.ldb + first, bytes, barrier);
        } else if (OF_A && lane >= ROWS && lane < ROWS + p.m)
            copy_row(stage + lane * PITCH, p.a + (long long)(lane - ROWS) * p.lda + first, bytes, barrier);
        if constexpr (FIXED && NORM)
            if (lane == ROWS + p.m) copy_fixed_row(stage + lane * PITCH, p.norm + first, bytes, barrier);
    }

    // The same for a whole ring; the place behind it.
    template <bool FIXED = true, bool OF_A = true>
    static __device__ __forceinline__ Place fill(const Problem &p, Place at, int chunks, u32 ring, u32 barriers, int stage, int lane, int warp) {
        for (int i = 0; i < STAGES; ++i) {
            if (at.chunk < chunks && at.inside(p)) {
                load<FIXED, OF_A>(p, at, ring + stage * STAGE, barriers + 8 * stage, lane);
                at.advance(chunks, warp);
            }
            if (++stage == STAGES) stage = 0;
        }
        return at;
    }

    static __device__ __forceinline__ void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
        multiply_add<BF16>(d, a0, a1, a2, a3, b0, b1);
    }

    static __device__ __forceinline__ void run_batched(const Problem &p) { run(p); } // with EPILOGUE

    struct Sums {
        float acc[4], squares[4];
    };

    // Adds a stage's products, of 32 k from `k` on. PART: the chunk's last k elements may be missing. AGAIN: A's lines are multiplied by
    // `powers` of two.
    template <bool PART, bool AGAIN>
    static __device__ __forceinline__ void add(const Problem &p, Sums &sums, u32 from, int k, int left, int owned, int group, u32 powers) {
        u32 upper[4], lower[4], right[4];
        load_shared(upper, from + 2 * k);
        load_shared(lower, from + 2 * k + 8 * PITCH);
        load_shared(right, from + 2 * k + ROWS * PITCH);
        const bool past = PART && k + owned >= left; // a chunk's end may hold anything
        if (past) {
#pragma unroll
            for (int i = 0; i < 4; ++i) upper[i] = lower[i] = right[i] = 0;
        }
        if constexpr (NORM) {
            u32 norm[4];
            load_shared(norm, from + 2 * k + (ROWS + p.m - group) * PITCH);
#pragma unroll
            for (int half = 0; half < 4; half += 2)
                multiply(sums.squares, right[half], 0, right[half + 1], 0, right[half], right[half + 1]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                right[i] = products_of_two<BF16>(AGAIN ? products_of_two<false>(right[i], powers) : right[i], norm[i]);
            if (past) { // as norm's
#pragma unroll
                for (int i = 0; i < 4; ++i) right[i] = 0;
            }
        }
#pragma unroll
        for (int half = 0; half < 4; half += 2)
            multiply(sums.acc, upper[half], lower[half], upper[half + 1], lower[half + 1], right[half], right[half + 1]);
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const u32 base = shared_address(shared_floats());
        const u32 ring = base + warp * STAGES * STAGE, barriers = base + BARRIERS_AT + 8 * warp * STAGES;
        const int chunks = (p.k + KC - 1) / KC;
        const Place first = {(int)blockIdx.x * ROWS, warp};
        if (lane == 0) {
            for (int stage = 0; stage < STAGES; ++stage) barrier_init(barriers + 8 * stage, 1);
            barrier_init_fence();
        }
        sync_warp();
        if (!p.early) wait_for_predecessors();
        fill<true, false>(p, first, chunks, ring, barriers, 0, lane, warp);
        if (p.early) wait_for_predecessors();
        start_successors();
        Place next = fill<false, true>(p, first, chunks, ring, barriers, 0, lane, warp);

        int stage = 0;
        u32 phase = 0;
        tiles<false>(p, first, next, chunks, ring, barriers, stage, phase, lane, warp, 0);
    }

    // The tiles from `first` on; the ring is filled up to `next`.
    template <bool AGAIN>
    static __device__ __forceinline__ void tiles(const Problem &p, const Place &first, Place next, int chunks, u32 ring, u32 barriers, int &stage,
                                                 u32 &phase, int lane, int warp, u32 powers) {
        constexpr int EACH = (ROWS * COLUMNS + THREADS - 1) / THREADS;
        const int group = lane >> 2, owned = 8 * (lane & 3);
        const auto step = [&] {
            if (++stage < STAGES) return;
            stage = 0;
            phase ^= 1;
        };
        for (int row = first.row; row < p.n; row += ROWS * gridDim.x) {
            [[maybe_unused]] Extra extras[EACH];
            if constexpr (EPILOGUE) { // while B is on its way
#pragma unroll
                for (int i = 0; i < EACH; ++i) extras[i] = extra(p, row, threadIdx.x + i * THREADS);
            }
            Sums sums = {};
            for (int chunk = warp; chunk < chunks; chunk += WARPS) {
                barrier_wait<1>(barriers + 8 * stage, phase);
                const u32 from = ring + stage * STAGE + group * PITCH + 2 * owned;
                const int left = p.k - chunk * KC;
                if (left >= KC) {
#pragma unroll
                    for (int k = 0; k < KC; k += 32) add<false, AGAIN>(p, sums, from, k, left, owned, group, powers);
                } else {
#pragma unroll 1
                    for (int k = 0; k < left; k += 32) add<true, AGAIN>(p, sums, from, k, left, owned, group, powers);
                }
                sync_warp(); // all lanes have read the stage
                if (next.inside(p)) {
                    load(p, next, ring + stage * STAGE, barriers + 8 * stage, lane);
                    next.advance(chunks, warp);
                }
                step();
            }
            sync_cta(); // all have read the sums of the tile before
#pragma unroll
            for (int i = 0; i < 4; ++i) sums_of(warp)[(2 * (lane & 3) + (i & 1)) * SUMS + group + 8 * (i >> 1)] = sums.acc[i];
            if constexpr (NORM)
                if (row == first.row) keep(sums.squares, sums.acc, lane, warp); // which are A's alone
            sync_cta();
            if constexpr (NORM && !BF16 && !AGAIN) {
                if (row == first.row && once_more(p, lane, warp, powers)) { // before anything is stored: the addend may be C
                    Place at = {first.row + ROWS * (int)gridDim.x, warp};   // what was copied for the next tile goes
                    for (; warp < chunks && (at.row != next.row || at.chunk != next.chunk); at.advance(chunks, warp)) {
                        barrier_wait<1>(barriers + 8 * stage, phase);
                        step();
                    }
                    next = fill(p, first, chunks, ring, barriers, stage, lane, warp);
                    return tiles<true>(p, first, next, chunks, ring, barriers, stage, phase, lane, warp, powers);
                }
            }
            if constexpr (EPILOGUE) {
#pragma unroll
                for (int i = 0; i < EACH; ++i) finish(p, row, threadIdx.x + i * THREADS, extras[i], AGAIN);
            } else {
                for (int at = threadIdx.x; at < ROWS * p.m; at += THREADS) {
                    const int column = at / ROWS, r = at % ROWS;
                    if (row + r < p.n)
                        store_global_u16(p.c + (long long)column * p.ldc + row + r, rounded<BF16>(total(column, r)));
                }
            }
        }
    }
};

} // namespace sassafras
