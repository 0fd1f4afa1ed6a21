// What happens to sums before they are rounded and stored, and where the matrices of a batch lie. For instances with
// EPILOGUE; the others know nothing of it.
//
//   C = activation(alpha * A B + beta * addend + bias), all in FP32, rounded once
//
// The thread that writes an element of C applies it, after the last of its partial sums has been added. The addend may be C
// itself: each element is read by the thread that holds its sum, before that thread's store of it.
// Comes after ptx.cuh or ptx_hopper.cuh.
#pragma once

namespace sassafras {

// Numbers as in `epilogue.ACTIVATIONS`.
enum Activation { NO_ACTIVATION, RELU, GELU, GELU_TANH, SILU, SWIGLU }; // the last: of the stream kernel, and of PAIR

struct Epilogue {
    const u16 *bias;   // one value a column of C; null: none
    const u16 *addend; // rows x columns; not read where beta is 0
    float alpha, beta;
    int activation;    // Activation
    int rows, columns; // of C
    int ld;            // elements from row to row of the addend
    int tiles;         // tiles along the kernel's m of each matrix of the batch (a cluster's, in a warp-specialised kernel)
    // elements from matrix to matrix; 0: all have the same. Of operands that tensor copies bring only that matters
    long long batch_a, batch_b, batch_c, batch_addend;
};

// A problem with an epilogue. The members of both lie one after the other in an initialiser's list.
template <class Base> struct General : Base {
    Epilogue out;
};
template <bool EPILOGUE, class Problem> struct ProblemOf {
    using Type = Problem;
};
template <class Problem> struct ProblemOf<true, Problem> {
    using Type = General<Problem>;
};

// Up to three matrices B with a bias each, whose products lie side by side in C. The first is the plain problem's.
template <class Operand> struct Parts {
    const Operand *second, *third;       // (n of their own, k), or their tensor maps
    const u16 *second_bias, *third_bias; // null: none
    int second_column, third_column;     // where they begin in C; n: there is no third

    // Of what the parts have, that of a column's.
    template <class T> __device__ __forceinline__ T of(int column, T first, T second_one, T third_one) const {
        return column < second_column ? first : column < third_column ? second_one : third_one;
    }
    // A column's place in its part.
    __device__ __forceinline__ int within(int column) const { return column - of(column, 0, second_column, third_column); }
};
template <class Base, class Operand> struct Joined : Base {
    Parts<Operand> parts;
};
template <bool JOINED, class Problem, class Operand> struct JoinedOf {
    using Type = Problem;
};
template <class Problem, class Operand> struct JoinedOf<true, Problem, Operand> {
    using Type = Joined<Problem, Operand>;
};

// Which tile along the kernel's m this CTA has, where the grid's z counts them over all matrices of the batch. (Kernels
// without an epilogue read blockIdx.z in place: a call, even of this, changes what the compiler makes of them.)
template <class Problem> __device__ __forceinline__ u32 tile_row(const Problem &) { return blockIdx.z; }
// A division's 100 cycles lie ahead of the first copy: one matrix has none.
template <class Problem> __device__ __forceinline__ int batch_of(const General<Problem> &p) {
    return (u32)p.out.tiles == gridDim.z ? 0 : blockIdx.z / p.out.tiles;
}
template <class Problem> __device__ __forceinline__ u32 tile_row(const General<Problem> &p) {
    return blockIdx.z - batch_of(p) * p.out.tiles;
}

// What of a problem lies elsewhere in each matrix of the batch.
template <class Problem> __device__ __forceinline__ void move_result(General<Problem> &p) {
    p.c += batch_of(p) * p.out.batch_c;
    p.out.addend += batch_of(p) * p.out.batch_addend;
}
template <class Problem> __device__ __forceinline__ void move_operands(General<Problem> &p) {
    p.a += batch_of(p) * p.out.batch_a;
    p.b += batch_of(p) * p.out.batch_b;
}

// By type: an element's value; two values, one value rounded to nearest even; `mma_m16n8k16`.
template <bool BF16> __device__ __forceinline__ float widened(u16 value) {
    return BF16 ? from_bf16(value) : from_f16(value);
}
template <bool BF16> __device__ __forceinline__ u32 rounded_pair(float first, float second) {
    return BF16 ? pack_bf16(first, second) : pack_f16(first, second);
}
template <bool BF16> __device__ __forceinline__ u16 rounded(float value) {
    return BF16 ? (u16)pack_bf16(value, 0) : to_f16(value);
}
template <bool BF16>
__device__ __forceinline__ void multiply_add(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if constexpr (BF16) mma_m16n8k16_bf16(d, a0, a1, a2, a3, b0, b1);
    else mma_m16n8k16(d, a0, a1, a2, a3, b0, b1);
}

// COUNT contiguous elements, the first `valid` of them (all or none where rows are ALIGNED to 16 bytes); zeros for the rest.
template <bool BF16, bool ALIGNED, int COUNT>
__device__ __forceinline__ void load_values(float (&to)[COUNT], const u16 *from, int valid) {
    if constexpr (ALIGNED && COUNT > 1) {
        u32 words[COUNT / 2];
        load_global(words, from, valid > 0);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = widened<BF16>((u16)(words[i / 2] >> (16 * (i % 2))));
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = widened<BF16>(load_global_u16(from + i, i < valid));
    }
}

// x / (1 + exp(-x (linear + cubic x^2))): SiLU, and GELU's tanh form, for (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)).
__device__ __forceinline__ float gated(float x, float linear, float cubic) {
    constexpr float LOG2_E = 1.4426950408889634f;
    return x * reciprocal(1.0f + exp2_approximate(-LOG2_E * x * (linear + cubic * x * x)));
}

// GELU's exact form, x Phi(x), with Phi(x) = 1 / (1 + 2^(-x q(x^2))): up to |x| = 5.6 within 0.02 of an FP16's last place, beyond
// within 0.25, where it is below FP16's smallest number. A third of the instructions of erff. q: least squares with
// Lawson's weights on log2(Phi / (1 - Phi)) / x, weighted by what an error of it moves in FP16's places.
__device__ __forceinline__ float gelu(float x) {
    const float u = fminf(x * x, 31.36f);
    float q = -8.18667842e-11f;
    q = q * u + 9.46580769e-09f;
    q = q * u - 4.57995611e-07f;
    q = q * u + 1.18154921e-05f;
    q = q * u - 0.000157116854f;
    q = q * u - 0.000123712802f;
    q = q * u + 0.104922391f;
    q = q * u + 2.30214047f;
    return x * reciprocal(1.0f + exp2_approximate(-x * q));
}

// In place, all alike: one branch for the lot. NaN stays NaN.
template <int FIRST, int COUNT, int SIZE> __device__ __forceinline__ void activate(int activation, float (&v)[SIZE]) {
    if (activation == RELU) {
#pragma unroll
        for (int i = FIRST; i < FIRST + COUNT; ++i) v[i] = v[i] < 0 ? 0.0f : v[i];
    } else if (activation == GELU) {
#pragma unroll
        for (int i = FIRST; i < FIRST + COUNT; ++i) v[i] = gelu(v[i]);
    } else if (activation == GELU_TANH || activation == SILU) {
        // 2 sqrt(2 / pi), and 0.044715 times as much
        const float linear = activation == SILU ? 1.0f : 1.5957691216057308f;
        const float cubic = activation == SILU ? 0.0f : 0.0713548162726f;
#pragma unroll
        for (int i = FIRST; i < FIRST + COUNT; ++i) v[i] = gated(v[i], linear, cubic);
    }
}

// COUNT contiguous columns of a row of C.
template <bool BF16, bool ALIGNED, int COUNT>
__device__ __forceinline__ void finish(const Epilogue &e, int row, int column, float (&v)[COUNT]) {
    const int valid = row < e.rows ? e.columns - column : 0;
    float more[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) v[i] *= e.alpha;
    if (e.beta != 0) {
        load_values<BF16, ALIGNED>(more, e.addend + (long long)row * e.ld + column, valid);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] += e.beta * more[i];
    }
    if (e.bias) {
        load_values<BF16, ALIGNED>(more, e.bias + column, valid);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] += more[i];
    }
    activate<0, COUNT>(e.activation, v);
}

// COUNT contiguous rows of a column of C (kernels that compute the transpose).
template <bool BF16, int COUNT>
__device__ __forceinline__ void finish_column(const Epilogue &e, int row, int column, float (&v)[COUNT]) {
    const bool inside = column < e.columns;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) v[i] *= e.alpha;
    if (e.beta != 0) {
        const u16 *const from = e.addend + (long long)row * e.ld + column;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            v[i] += e.beta * widened<BF16>(load_global_u16(from + (long long)i * e.ld, inside && row + i < e.rows));
    }
    if (e.bias) {
        const float more = widened<BF16>(load_global_u16(e.bias + column, inside));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] += more;
    }
    activate<0, COUNT>(e.activation, v);
}

// The addend and the bias of WIDTH columns of a warp's accumulators, as `finish_fragment` adds them. All loads are issued together.
// Issued ahead of the products they are hidden; behind them, each would wait for the copies of B that keep memory busy.
template <int WIDTH, bool SWAPPED> struct Added {
    static constexpr int PAIRS = WIDTH / 4; // pair i: columns 8 * (i / 2) and the next, upper or lower rows
    u16 single[SWAPPED ? 2 * PAIRS : 1], single_bias[2];
    u32 pair[SWAPPED ? 1 : PAIRS], pair_bias[SWAPPED ? 1 : PAIRS / 2];

    // COUNT columns, a multiple of 16, from the first on; row, column: the kernel's first, SWAPPED: C's column and row.
    template <int COUNT = WIDTH> __device__ __forceinline__ void load(const Epilogue &e, int row, int column, int lane) {
        if (e.beta != 0) load_addend<COUNT>(e, row, column, lane);
        if (e.bias) load_bias<COUNT>(e, row, column, lane);
    }

    template <int COUNT> __device__ __forceinline__ void load_addend(const Epilogue &e, int row, int column, int lane) {
        const u16 *const from = e.addend;
        row += lane >> 2;
        column += 2 * (lane & 3);
#pragma unroll
        for (int i = 0; i < COUNT / 4; ++i) {
            const int r = row + 8 * (i % 2), c = column + 8 * (i / 2);
            if constexpr (SWAPPED) {
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    single[2 * i + j] = load_global_u16(from + (long long)(c + j) * e.ld + r, r < e.columns && c + j < e.rows);
            } else {
                load_word(pair[i], from + (long long)r * e.ld + c, r < e.rows && c < e.columns);
            }
        }
    }

    template <int COUNT> __device__ __forceinline__ void load_bias(const Epilogue &e, int row, int column, int lane) {
        row += lane >> 2;
        column += 2 * (lane & 3);
        if constexpr (SWAPPED) {
            single_bias[0] = load_global_u16(e.bias + row, row < e.columns);
            single_bias[1] = load_global_u16(e.bias + row + 8, row + 8 < e.columns);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT / 8; ++i) load_word(pair_bias[i], e.bias + column + 8 * i, column + 8 * i < e.columns);
        }
    }

    static __device__ __forceinline__ void load_word(u32 &to, const u16 *from, bool ok) {
        u32 word[1];
        load_global(word, from, ok);
        to = word[0];
    }

    // Value j of pair i, and its bias.
    template <bool BF16> __device__ __forceinline__ float of(int i, int j) const {
        return widened<BF16>(SWAPPED ? single[SWAPPED ? 2 * i + j : 0] : (u16)(pair[SWAPPED ? 0 : i] >> (16 * j)));
    }
    template <bool BF16> __device__ __forceinline__ float bias_of(int i, int j) const {
        return widened<BF16>(SWAPPED ? single_bias[i % 2] : (u16)(pair_bias[SWAPPED ? 0 : i / 2] >> (16 * j)));
    }
};

// Columns FROM .. FROM + WIDTH - 1 of a warp's accumulators as WGMMA leaves them (see Products). With NOW, `more` is of these
// columns alone and loaded here, step by step: for kernels that have no registers for all of it.
template <int FROM, int WIDTH, bool BF16, bool NOW, int HELD, bool SWAPPED, int SIZE>
__device__ __forceinline__ void finish_fragment(const Epilogue &e, Added<HELD, SWAPPED> &more, float (&d)[SIZE], int row, int column,
                                                int lane) {
    constexpr int FIRST = FROM / 2, PAIRS = WIDTH / 4, AT = NOW ? 0 : FROM;
#pragma unroll
    for (int i = FIRST; i < FIRST + 2 * PAIRS; ++i) d[i] *= e.alpha;
    if (e.beta != 0) {
        if constexpr (NOW) more.template load_addend<WIDTH>(e, row, column + FROM, lane);
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; ++i) d[FIRST + i] += e.beta * more.template of<BF16>(AT / 4 + i / 2, i % 2);
    }
    if (e.bias) {
        if constexpr (NOW) more.template load_bias<WIDTH>(e, row, column + FROM, lane);
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; ++i) d[FIRST + i] += more.template bias_of<BF16>(AT / 4 + i / 2, i % 2);
    }
    activate<FIRST, 2 * PAIRS>(e.activation, d);
}

// SwiGLU's pair: the first half of the accumulators are of the gate's columns, the others of up's, the same ones. Columns
// FROM .. FROM + WIDTH - 1 of the first half become silu(gate) * up. column: C's first; bias: the gate's, up's behind it.
template <int FROM, int WIDTH, bool BF16, int SIZE>
__device__ __forceinline__ void finish_pair(const Epilogue &e, int column, float (&d)[SIZE], int lane) {
    constexpr int FIRST = FROM / 2, LAST = FIRST + WIDTH / 2, UP = SIZE / 2;
    column += FROM + 2 * (lane & 3);
#pragma unroll
    for (int i = FIRST; i < LAST; ++i) d[i] *= e.alpha, d[UP + i] *= e.alpha;
    if (e.bias) {
        const int half = e.columns / 2;
#pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i) { // two columns of two rows
            float gate[2], up[2];
            load_values<BF16, true>(gate, e.bias + column + 8 * i, half - column - 8 * i);
            load_values<BF16, true>(up, e.bias + half + column + 8 * i, half - column - 8 * i);
#pragma unroll
            for (int j = 0; j < 4; ++j) d[FIRST + 4 * i + j] += gate[j % 2], d[UP + FIRST + 4 * i + j] += up[j % 2];
        }
    }
#pragma unroll
    for (int i = FIRST; i < LAST; ++i) d[i] = gated(d[i], 1.0f, 0.0f) * d[UP + i];
}

} // namespace sassafras
