// Rotary embedding of a token's queries and keys, and its row of a cache of keys and values. FP16 or BF16, FP32 inside, one rounding.
//
// For each sequence and head: C = turned(Q), keys[at] = turned(K), values[at] = V, where for d < D/2
//   turned(x)[d] = x[d] * cos[d] - x[d + D/2] * sin[d],
//   turned(x)[d + D/2] = x[d + D/2] * cos[d + D/2] + x[d] * sin[d + D/2].
// `at` is a number in memory, one for all sequences; negative ones count from the end. Outside of the cache the grid traps, nothing is
// written.
//
// A thread has 8 elements of a head and the 8 at D/2 from them: a unit. Units follow each other in the order heads of Q, of K, of V.
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
    const long long *at;
    long long q_batch, q_head, k_batch, k_head, v_batch, v_head, cos_batch, sin_batch;
    long long keys_batch, keys_head, keys_row, values_batch, values_head, values_row;
    int heads, groups, rows;
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
        wait_for_predecessors();
        if (line >= p.heads + 2 * p.groups) return;
        u32 number[2], x[2][4], cos[2][4], sin[2][4];
        load_global(number, p.at, true);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            load_global(x[half], from + half * HALF, true);
            load_global(cos[half], cosines + half * HALF, true);
            load_global(sin[half], sines + half * HALF, true);
        }
        const long long given = (long long)((u64)number[1] << 32 | number[0]), at = given < 0 ? given + p.rows : given;
        if (at < 0 || at >= p.rows) trap();
        if (turns) turn(x, cos, sin);
        u16 *const to = first + far((int)at, row);
        store_global(to, x[0]);
        store_global(to + HALF, x[1]);
    }

    // Both halves of a head, in place.
    static __device__ __forceinline__ void turn(u32 (&x)[2][4], const u32 (&cos)[2][4], const u32 (&sin)[2][4]) {
        float value[2][8];
        widen<BF16>(value[0], x[0]);
        widen<BF16>(value[1], x[1]);
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
