// A layer of at most 8 rows of A, bound by reading B once: C = epilogue(A * B^T), FP16 or BF16 in and out, FP32 accumulation.
//
// A tile is ROWS rows of B (columns of C) and all of k; a CTA has every gridDim.x-th one. One warp copies B by tensor copies into a ring
// of stages of 256 k, of this tile and the next: the memory is busy while sums meet. Eight warps multiply: each has 32 k of every stage,
// and all rows. A's elements, and `norm`'s, come from the L2 into registers, a stage ahead. At the end of a tile the warps' sums meet in
// their order, so results are reproducible bit for bit.
//
// B is the first operand of mma.m16n8k16, so that 16 of its rows fill the instruction; A's rows are the 8 columns. A stage has four blocks
// of 64 k (a row: 128 bytes, swizzled), in each the tile's first half of rows, then its second. Lane 4g + t of warp w reads 16 bytes of
// row g of either half: k 8 * (2t + w % 2) of block w / 2. Lanes that read at once lie in different banks, and the sum over k does not
// depend on which k is called first.
//
// NORM: A is RMS-normalised first, in FP32, and rounded: each CTA sums up the squares while the ring fills.
//
// SwiGLU's pair (activation SWIGLU): a tile's first half of rows is of the gate's weight, the second of up's: a layer further in
// map_up's tensor, or another tensor. C (m, n / 2) is silu(gate) * up.
//
// `early`: what does not depend on the launch before, B, is copied before its end. What wrote it has ended.
//
// Template parameters
//   ROWS    16, 32, 48 or 64
//   STAGES  of the ring
//   BF16    elements are BF16, otherwise FP16
//   NORM    see above
//
// Launch: grid (CTAs, at most the tiles), 288 threads, SHARED_BYTES of dynamic shared memory. Requires m <= 8, bases aligned to 16 bytes,
// k, lda and B's leading dimension that are multiples of 8. Any n and ldc.
#pragma once
#include "ptx_stream.cuh"
#include "hopper_tile.cuh"
#include "sm90_rows.cuh"

namespace sassafras {

struct SkinnyProblem {
    const TensorMap *map_b, *map_up; // boxes of ROWS / 2 rows of 64 k
    const u16 *a;                    // (m, k)
    u16 *c;                          // (m, n)
    int m, n, k, lda, ldc, early;
};
struct NormedSkinnyProblem : SkinnyProblem {
    const u16 *norm; // k values
    float eps;
};
template <bool NORM> struct SkinnyProblemOf {
    using Type = SkinnyProblem;
};
template <> struct SkinnyProblemOf<true> {
    using Type = NormedSkinnyProblem;
};

template <int ROWS, int STAGES, bool BF16, bool NORM> struct Skinny {
    using Problem = typename ProblemOf<true, typename SkinnyProblemOf<NORM>::Type>::Type;
    static constexpr int WARPS = 8, MULTIPLIERS = 32 * WARPS, THREADS = MULTIPLIERS + 32, COLUMNS = 8;
    static constexpr int HALF = ROWS / 2, GROUPS = ROWS / 16, BLOCK = ROWS * ROW_BYTES, BLOCKS = 4, KC = BLOCKS * TILE_K;
    static_assert(ROWS % 16 == 0, "halves are whole swizzles");
    static constexpr int STAGE = BLOCKS * BLOCK, BARRIERS_AT = STAGES * STAGE, SUMS_AT = BARRIERS_AT + 16 * STAGES;
    static constexpr int SUMS = ROWS + 1; // floats from a column's sums to the next one's
    static constexpr int BUFFER = WARPS * COLUMNS * SUMS, SQUARES_AT = SUMS_AT + 2 * 4 * BUFFER;
    static constexpr int SHARED_BYTES = 1024 + SQUARES_AT + NORM * 4 * WARPS * COLUMNS;
    static constexpr int EACH = (ROWS * COLUMNS + MULTIPLIERS - 1) / MULTIPLIERS;
    // named barriers: the ring's barriers are there; the multiplying warps meet
    static constexpr int READY = 2, MET = 3;

    static __device__ __forceinline__ bool paired(const Problem &p) { return p.out.activation == SWIGLU; }

    // By one thread: all stages of this CTA's tiles.
    static __device__ __forceinline__ void copy(const Problem &p, u32 base, int chunks) {
        const bool pair = paired(p);
        int stage = 0;
        u32 phase = 1;
        bool again = false;
        for (int row = blockIdx.x * ROWS; row < p.n; row += ROWS * gridDim.x) {
            const int first = pair ? row / 2 : row, second = pair ? first : row + HALF;
            for (int chunk = 0; chunk < chunks; ++chunk) {
                const u32 full = base + BARRIERS_AT + 16 * stage, to = base + stage * STAGE;
                const int k = chunk * KC, blocks = least(BLOCKS, (p.k - k + TILE_K - 1) / TILE_K);
                if (again) barrier_wait<1>(full + 8, phase);
                barrier_expect(full, blocks * BLOCK);
                for (int block = 0; block < blocks; ++block) {
                    const u32 at = to + block * BLOCK;
                    copy_tile(at, p.map_b, k + block * TILE_K, first, 0, full);
                    copy_tile(at + HALF * ROW_BYTES, pair ? p.map_up : p.map_b, k + block * TILE_K, second, pair ? (int)p.out.batch_b : 0,
                              full);
                }
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                    again = true;
                }
            }
        }
    }

    // What an element of C takes beside its sum.
    struct Extra {
        float bias, more; // more: the addend; of a pair, up's bias
    };
    struct Element {
        int line, r, column; // r: of the tile
        bool inside;
        __device__ __forceinline__ Element(const Problem &p, int row, int at) {
            const bool pair = paired(p);
            const int width = pair ? HALF : ROWS;
            line = at / width;
            r = at % width;
            column = (pair ? row / 2 : row) + r;
            inside = line < p.m && column < (pair ? p.n / 2 : p.n);
        }
    };
    static __device__ __forceinline__ Extra extra(const Problem &p, const Element &of) {
        const Epilogue &e = p.out;
        const bool pair = paired(p);
        const u16 *const more = pair ? e.bias + p.n / 2 + of.column : e.addend + (long long)of.line * e.ld + of.column;
        return {widened<BF16>(load_global_u16(e.bias + of.column, of.inside && e.bias)),
                widened<BF16>(load_global_u16(more, of.inside && (pair ? e.bias != nullptr : e.beta != 0)))};
    }

    // Of the warps' sums.
    static __device__ __forceinline__ float total(const float *sums, int line, int r) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums[(w * COLUMNS + line) * SUMS + r];
        return sum;
    }

    static __device__ __forceinline__ void finish(const Problem &p, const float *sums, const Element &of, const Extra &extra) {
        if (!of.inside) return;
        const Epilogue &e = p.out;
        float value[1] = {e.alpha * total(sums, of.line, of.r) + extra.bias};
        if (paired(p)) {
            const float up = e.alpha * total(sums, of.line, HALF + of.r) + extra.more;
            value[0] = gated(value[0], 1.0f, 0.0f) * up;
        } else {
            value[0] += e.beta * extra.more;
            activate<0, 1>(e.activation, value);
        }
        store_global_u16(p.c + (long long)of.line * p.ldc + of.column, rounded<BF16>(value[0]));
    }

    // 1 / the root of the mean of the squares of A's line `line`, by all multiplying warps.
    static __device__ __forceinline__ float factor(const Problem &p, float *squares, int line, int lane, int warp) {
        for (int i = 0; i < p.m; ++i) {
            float sum = 0;
            for (int k = 8 * threadIdx.x; k < p.k; k += 8 * MULTIPLIERS) {
                u32 words[4];
                float values[8];
                load_global(words, p.a + (long long)i * p.lda + k, true);
                widen<BF16>(values, words);
#pragma unroll
                for (int j = 0; j < 8; ++j) sum += values[j] * values[j];
            }
#pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) sum += as_float(value_of(as_word(sum), lane ^ apart));
            if (lane == 0) squares[i * WARPS + warp] = sum;
        }
        sync_threads(MET, MULTIPLIERS);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += line < p.m ? squares[line * WARPS + w] : 0.0f;
        return reciprocal_root(sum * reciprocal((float)p.k) + p.eps);
    }

    struct Lines {
        u32 a[4], norm[NORM ? 4 : 1];
    };
    // A lane's elements of A in a chunk.
    static __device__ __forceinline__ void fetch(const Problem &p, Lines &to, int chunk, int line, int own) {
        const int k = chunk * KC + own;
        load_global(to.a, p.a + (long long)line * p.lda + k, line < p.m && k < p.k);
        if constexpr (NORM) load_global(to.norm, p.norm + k, k < p.k);
    }

    static __device__ __forceinline__ void run_batched(const Problem &p) { run(p); }

    static __device__ __forceinline__ void run(const Problem &p) {
        const u32 start = shared_address(shared_floats()), base = broadcast((start + 1023) & ~1023u);
        float *const floats = shared_floats() + (base - start) / 4;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunks = (p.k + KC - 1) / KC;
        if (warp == WARPS) {
            if (elected()) {
                prefetch_map(p.map_b);
                if (paired(p)) prefetch_map(p.map_up);
                for (int stage = 0; stage < STAGES; ++stage) {
                    barrier_init(base + BARRIERS_AT + 16 * stage, 1);
                    barrier_init(base + BARRIERS_AT + 16 * stage + 8, WARPS);
                }
                barrier_init_fence();
            }
            sync_warp();
            arrive_threads(READY, THREADS);
            if (elected()) {
                if (p.early == 0) wait_for_predecessors();
                copy(p, base, chunks);
            }
            sync_warp();
            return;
        }
        const int line = lane >> 2, block = warp >> 1, piece = 2 * (lane & 3) + (warp & 1), own = block * TILE_K + 8 * piece;
        const u32 mine = block * BLOCK + line * ROW_BYTES + ((piece ^ line) << 4); // of a stage
        sync_threads(READY, THREADS);
        wait_for_predecessors();
        start_successors();
        Lines next;
        fetch(p, next, 0, line, own);
        [[maybe_unused]] float scale = 1;
        if constexpr (NORM) scale = factor(p, floats + SQUARES_AT / 4, line, lane, warp);

        int stage = 0, parity = 0;
        u32 phase = 0;
        for (int row = blockIdx.x * ROWS; row < p.n; row += ROWS * gridDim.x) {
            Extra extras[EACH];
#pragma unroll
            for (int i = 0; i < EACH; ++i) extras[i] = extra(p, Element(p, row, threadIdx.x + i * MULTIPLIERS));
            float acc[GROUPS][4] = {};
            for (int chunk = 0; chunk < chunks; ++chunk) {
                u32 right[4];
                if constexpr (NORM) {
                    float values[8], factors[8];
                    widen<BF16>(values, next.a);
                    widen<BF16>(factors, next.norm);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        right[i] = rounded_pair<BF16>(values[2 * i] * scale * factors[2 * i], values[2 * i + 1] * scale * factors[2 * i + 1]);
                } else {
#pragma unroll
                    for (int i = 0; i < 4; ++i) right[i] = next.a[i];
                }
                fetch(p, next, chunk + 1 < chunks ? chunk + 1 : 0, line, own);
                const u32 full = base + BARRIERS_AT + 16 * stage, from = base + stage * STAGE + mine;
                barrier_wait<2>(full, phase);
                if (chunk * KC + block * TILE_K < p.k) { // blocks behind the end of k are not copied
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group) {
                        u32 upper[4], lower[4];
                        load_shared(upper, from + group * 8 * ROW_BYTES);
                        load_shared(lower, from + (HALF + group * 8) * ROW_BYTES);
#pragma unroll
                        for (int half = 0; half < 4; half += 2)
                            multiply_add<BF16>(acc[group], upper[half], lower[half], upper[half + 1], lower[half + 1], right[half],
                                               right[half + 1]);
                    }
                }
                sync_warp(); // all lanes have read the stage
                if (lane == 0) barrier_arrive(full + 8);
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
            }
            float *const sums = floats + SUMS_AT / 4 + parity * BUFFER;
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sums[(warp * COLUMNS + 2 * (lane & 3) + (i & 1)) * SUMS + 8 * group + line + HALF * (i >> 1)] = acc[group][i];
            sync_threads(MET, MULTIPLIERS); // who comes here has read the sums of the tile before the last
#pragma unroll
            for (int i = 0; i < EACH; ++i) finish(p, sums, Element(p, row, threadIdx.x + i * MULTIPLIERS), extras[i]);
            parity ^= 1;
        }
    }
};

} // namespace sassafras
