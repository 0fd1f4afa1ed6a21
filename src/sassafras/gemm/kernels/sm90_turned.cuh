// Rotary embedding of a token's queries and keys, an RMS norm of each head ahead of it or none, and the token's row of a cache of keys and
// values. FP16 or BF16, FP32 inside, one rounding.
//
// For each sequence and head: C = turned(Q), keys[at] = turned(K), values[at] = V, where for d < D/2
//   turned(x)[d] = x[d] * cos[d] - x[d + D/2] * sin[d],
//   turned(x)[d + D/2] = x[d + D/2] * cos[d + D/2] + x[d] * sin[d + D/2].
// With `q_norm` and `k_norm` x is first a head's x / sqrt(mean of its squares + eps) * norm.
// `at` is a number in memory, one for all sequences; negative ones count from the end. Outside of the cache the grid traps, nothing is
// written.
//
// A thread has 8 elements of a head and the 8 at D/2 from them: a unit. Units follow each other in the order heads of Q, of K, of V;
// those of a head are neighbours within a warp.
//
// Launch: grid (blocks of THREADS units, sequences), THREADS threads. Strides are multiples of 8 elements, bases aligned to 16 bytes;
// D elements have no gaps, C has none at all. The launch behind starts at once: sm90_rows.cuh says why that is safe.
#pragma once
#include "sm90_rows.cuh"
#include "ptx_turned.cuh"

namespace sassafras {

struct TurnedProblem {
    const u16 *q, *k, *v, *cos, *sin; // (batch, heads, D), (batch, groups, D) twice, (batch, D) twice
    u16 *keys, *values, *c;           // (batch, groups, rows, D) twice, (batch, heads, D)
    const u16 *q_norm, *k_norm;       // (D) each, or null
    const long long *at;
    long long q_batch, q_head, k_batch, k_head, v_batch, v_head, cos_batch, sin_batch;
    long long keys_batch, keys_head, keys_row, values_batch, values_head, values_row;
    int heads, groups, rows;
    float eps;
};

template <int D, int THREADS_, bool BF16> struct Turned {
    using Problem = TurnedProblem;
    static constexpr int THREADS = THREADS_, SHARED_BYTES = 0, HALF = D / 2, UNITS = HALF / 8; // of a head

    // Elements: neither number has more than 31 bits, so that one instruction multiplies.
    static __device__ __forceinline__ u64 far(int count, long long stride) { return (u64)(u32)count * (u32)stride; }

    static __device__ __forceinline__ void run(const Problem &p) {
        const u32 unit = blockIdx.x * THREADS + threadIdx.x;
        const int line = (int)(unit / UNITS), d = 8 * (int)(unit % UNITS), batch = blockIdx.y;
        start_successors_at_once();
        const bool of_q = line < p.heads, turns = line < p.heads + p.groups;
        const int head = of_q ? line : turns ? line - p.heads : line - p.heads - p.groups;
        const u16 *const from = d + (of_q    ? p.q + far(batch, p.q_batch) + far(head, p.q_head)
                                     : turns ? p.k + far(batch, p.k_batch) + far(head, p.k_head)
                                             : p.v + far(batch, p.v_batch) + far(head, p.v_head));
        u16 *const first = d + (of_q    ? p.c + far(batch * p.heads + head, D)
                                : turns ? p.keys + far(batch, p.keys_batch) + far(head, p.keys_head)
                                        : p.values + far(batch, p.values_batch) + far(head, p.values_head));
        const long long row = of_q ? 0 : turns ? p.keys_row : p.values_row;
        const u16 *const cosines = p.cos + far(batch, p.cos_batch) + d, *const sines = p.sin + far(batch, p.sin_batch) + d;
        const u16 *const weights = d + (of_q ? p.q_norm : p.k_norm);
        wait_for_predecessors();
        const bool live = line < p.heads + 2 * p.groups, norms = p.q_norm;
        u32 number[2], x[2][4], cos[2][4], sin[2][4], norm[2][4];
        load_global(number, p.at, true);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            load_global(x[half], from + half * HALF, live);
            load_global(cos[half], cosines + half * HALF, true);
            load_global(sin[half], sines + half * HALF, true);
            load_global(norm[half], weights + half * HALF, norms);
        }
        const long long given = (long long)((u64)number[1] << 32 | number[0]), at = given < 0 ? given + p.rows : given;
        if (at < 0 || at >= p.rows) trap();
        float value[2][8];
        widen<BF16>(value[0], x[0]);
        widen<BF16>(value[1], x[1]);
        if (norms) normalise(value, norm, p.eps);
        if (turns) turn(x, value, cos, sin);
        if (!live) return;
        u16 *const to = first + far((int)at, row);
        store_global(to, x[0]);
        store_global(to + HALF, x[1]);
    }

    // By all lanes of a warp.
    static __device__ __forceinline__ void normalise(float (&value)[2][8], const u32 (&norm)[2][4], float eps) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 16; ++j) sum += value[j / 8][j % 8] * value[j / 8][j % 8];
#pragma unroll
        for (int apart = UNITS / 2; apart > 0; apart /= 2)
            sum += as_float(value_of(as_word(sum), (int)(threadIdx.x & 31) ^ apart));
        const float scale = reciprocal_root(sum * (1.0f / D) + eps);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float factors[8];
            widen<BF16>(factors, norm[half]);
#pragma unroll
            for (int j = 0; j < 8; ++j) value[half][j] = value[half][j] * scale * factors[j];
        }
    }

    // x: both halves of a head, whose values these are.
    static __device__ __forceinline__ void turn(u32 (&x)[2][4], const float (&value)[2][8], const u32 (&cos)[2][4], const u32 (&sin)[2][4]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float cosine[8], sine[8], result[8];
            widen<BF16>(cosine, cos[half]);
            widen<BF16>(sine, sin[half]);
#pragma unroll
            for (int j = 0; j < 8; ++j)
                result[j] = value[half][j] * cosine[j] + (half ? value[0][j] : -value[1][j]) * sine[j];
#pragma unroll
            for (int i = 0; i < 4; ++i) x[half][i] = rounded_pair<BF16>(result[2 * i], result[2 * i + 1]);
        }
    }
};

} // namespace sassafras
