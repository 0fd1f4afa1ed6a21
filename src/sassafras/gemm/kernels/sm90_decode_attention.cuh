// Attention of one query row, as a model that decodes has it: C = softmax(scale * Q K^T + mask) V for each batch and head. FP16 or BF16;
// sums and softmax in FP32, softmax's numerators rounded to the element type ahead of V, one rounding at the end.
//
// A cluster has a batch and a group of up to 8 heads that share keys and values; its warps take tiles of 16 keys in turn. Both products
// are mma.m16n8k16 with exchanged roles, so that the heads are its 8 columns:
//   S^T (16 keys x 8 heads) = K Q^T,   O^T (16 elements x 8 heads) += V^T P^T.
// K and V go from global memory to the registers from which they are multiplied: each lane loads 16 bytes at a time, and the instruction's
// k (of S^T) and rows (of O^T) are a permutation of D that makes them operands. The next tile's loads follow a tile's products at once.
// Q waits in shared memory: so that 16 warps find room on a multiprocessor, whose loads in flight fill its share of bandwidth.
// Warps and CTAs then add their sums in a fixed order: a head's bits depend on its operands, on the number of keys, and on warps and CTAs.
//
// A tile whose keys are masked by -inf for all heads of a group is not read: a cache costs what is filled. A head all of whose keys are
// masked so gives zeros. NaN propagates, of masked keys where their tile is read.
//
// Launch: grid (splits, groups, batches), cluster (splits): a power of two up to 8, WARPS * 32 threads, SHARED_BYTES of dynamic shared
// memory or more. Strides of q, k and v are multiples of 8 elements, their bases and c's aligned to 16 bytes; D elements, and keys of the mask,
// have no gaps. The launch behind starts at once: sm90_rows.cuh says why that is safe.
#pragma once
#include "ptx_attention.cuh"
#include "ptx_rows.cuh"
#include "epilogue.cuh"

namespace sassafras {

struct DecodeAttentionProblem {
    const u16 *q, *k, *v, *mask; // (batch, heads, D), (batch, groups, keys, D) twice, (batch, heads, keys)
    u16 *c;                      // (batch, heads, D)
    long long q_batch, q_head, k_batch, k_head, k_row, v_batch, v_head, v_row, mask_batch, mask_head;
    int keys, group, parts, log2_splits; // group: heads of a cluster, of which `parts` in a row share keys and values
    float scale;
};

template <int D, int WARPS, bool MASKED, bool BF16> struct DecodeAttention {
    using Problem = DecodeAttentionProblem;
    static constexpr int THREADS = 32 * WARPS, HEADS = 8, TILE = 16, MOST_SPLITS = 8;
    static constexpr int CHUNKS = D / 4; // of 16 bytes, of a head's sums
    // in floats: a barrier; a maximum and a sum of each head of all warps, of all CTAs; sums of all warps; those that CTAs send
    static constexpr int STATS = 4, SENT_STATS = STATS + 2 * HEADS * WARPS, SUMS = SENT_STATS + 4 * HEADS * MOST_SPLITS;
    static constexpr int SENT = SUMS + WARPS * HEADS * D, SHARED_BYTES = 4 * (SENT + HEADS * D);

    // e to the power of the difference from the maximum
    static __device__ __forceinline__ float weight(float value, float most) {
        return exp2_approximate((value - (most == -infinity() ? 0.0f : most)) * 1.4426950408889634f);
    }
    static __device__ __forceinline__ float infinity() { return as_float(0x7f800000u); }
    static __device__ __forceinline__ float of_lane(float value, int lane) { return as_float(value_of(as_word(value), lane)); }
    // Elements: neither number has more than 31 bits, so that one instruction multiplies.
    static __device__ __forceinline__ u64 far(int count, long long stride) { return (u64)(u32)count * (u32)stride; }
    // Where a warp's sums of a head lie, by chunks: heads apart fall into other banks.
    static __device__ __forceinline__ int place(int warp, int head, int chunk) {
        return SUMS + 4 * ((warp * HEADS + head) * CHUNKS + (chunk ^ (head >> 1 & 1) ^ (head & 4)));
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
        const int splits = 1 << p.log2_splits, rank = blockIdx.x & (splits - 1), heads = p.group;
        const int first_head = (blockIdx.y * p.parts + (blockIdx.x >> p.log2_splits)) * heads;
        const u32 base = shared_address(shared_floats());
        start_successors_at_once();
        if (splits > 1) {
            if (threadIdx.x == 0) { // what the CTAs will send
                barrier_init(base, 1);
                barrier_init_fence();
                barrier_expect(base, 16 * heads * (CHUNKS + splits));
            }
            sync_warp();
            arrive_at_cluster();
        }

        const u16 *const q = p.q + far(blockIdx.z, p.q_batch) + far(first_head + g, p.q_head) + 8 * t;
        const int first = TILE * (warp + WARPS * rank), step = TILE * WARPS << p.log2_splits;
        const u16 *const k = p.k + far(blockIdx.z, p.k_batch) + far(blockIdx.y, p.k_head) + 8 * t;
        const u16 *const v = p.v + far(blockIdx.z, p.v_batch) + far(blockIdx.y, p.v_head) + 8 * g;
        const u16 *const masks = MASKED ? p.mask + far(blockIdx.z, p.mask_batch) + far(first_head, p.mask_head) : nullptr;

        u32 key[2][D / 32][4] = {}, value[4][D / 64][4] = {};
        const auto load_keys = [&](int at) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const bool ok = at + g + 8 * half < p.keys;
                const u16 *const from = k + far(at + g + 8 * half, p.k_row);
#pragma unroll
                for (int i = 0; i < D / 32; ++i) load_once(key[half][i], from + 32 * i, ok);
            }
        };
        const auto load_values = [&](int at) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = at + 2 * t + e % 2 + 8 * (e / 2);
                const u16 *const from = v + far(row, p.v_row);
#pragma unroll
                for (int half = 0; half < D / 64; ++half) load_once(value[e][half], from + 64 * half, row < p.keys);
            }
        };
        { // the first tiles' lines come while the launch ahead ends: 16 rows of D / 64 lines, of K and V
            const int row = lane & 15, more = 64 * (lane >> 4);
            const bool ok = first + row < p.keys;
            const u16 *const first_k = k + far(first + row, p.k_row) - 8 * t, *const first_v = v + far(first + row, p.v_row) - 8 * g;
            if constexpr (D == 128) {
                prefetch_line(first_k + more, ok);
                prefetch_line(first_v + more, ok);
            } else {
                prefetch_line(more ? first_v : first_k, ok);
            }
        }
        wait_for_predecessors();
        u32 query[D / 32][4];
#pragma unroll
        for (int i = 0; i < D / 32; ++i) load_global(query[i], q + 32 * i, g < heads);

        // the warp's tiles from `at` on: which of 32 are seen, of how many before them that has been asked
        u32 seen = 0;
        int at = first, asked = 0;
        const auto following = [&]() {
            if constexpr (MASKED) {
                while (seen == 0) {
                    if (first + asked * step >= p.keys) return first + asked * step;
                    seen = of_tiles(p, masks, first + asked * step, step);
                    asked += 32;
                }
                const int next = asked - 32 + lowest_bit(seen);
                seen &= seen - 1;
                return first + next * step;
            } else {
                return at + step;
            }
        };
#pragma unroll 1
        for (bool first_is_seen = !MASKED;; first_is_seen = true) { // which is asked while it is loaded
            load_keys(at);
            load_values(at);
            if (first_is_seen || (at = following()) == first) break;
        }
        const u32 queries = base + 4 * (SUMS + warp * HEADS * D) + 16 * lane; // each lane its own, where the warp's sums will lie
#pragma unroll
        for (int i = 0; i < D / 32; ++i) store_shared(queries + 512 * i, query[i]);

        // of heads 2t and 2t + 1
        float most[2] = {-infinity(), -infinity()}, sum[2] = {}, out[D / 16][4] = {};
        while (at < p.keys) {
            u16 added[2][2]; // of keys g and g + 8, heads 2t and 2t + 1
            if constexpr (MASKED) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        added[half][h] = load_global_u16(masks + far(2 * t + h, p.mask_head) + (at + g + 8 * half),
                                                         at + g + 8 * half < p.keys && 2 * t + h < heads);
            }
            float score[2][4] = {};
#pragma unroll
            for (int i = 0; i < D / 32; ++i) {
                u32 q[4];
                load_shared_again(q, queries + 512 * i);
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    product(score[j], key[0][i][2 * j], key[1][i][2 * j], key[0][i][2 * j + 1], key[1][i][2 * j + 1], q[2 * j], q[2 * j + 1]);
            }
            float x[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float raw = score[0][2 * half + h] + score[1][2 * half + h];
                    x[half][h] = MASKED ? raw * p.scale + widened<BF16>(added[half][h]) : raw * p.scale;
                    if (at + g + 8 * half >= p.keys) x[half][h] = -infinity();
                }
            const int next = following();
            load_keys(next);
            float shrunk[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float now = larger(most[h], larger(x[0][h], x[1][h]));
#pragma unroll
                for (int apart = 4; apart < 32; apart *= 2) now = larger(now, of_lane(now, lane ^ apart));
                shrunk[h] = weight(most[h], now);
                most[h] = now;
#pragma unroll
                for (int half = 0; half < 2; ++half) x[half][h] = weight(x[half][h], now);
                sum[h] = sum[h] * shrunk[h] + (x[0][h] + x[1][h]);
            }
            if (at + TILE > p.keys) { // zero times what is there may be NaN
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int half = 0; half < D / 64; ++half)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            if (at + 2 * t + e % 2 + 8 * (e / 2) >= p.keys) value[e][half][i] = 0;
            }
            const u32 low = transposed(rounded_pair<BF16>(x[0][0], x[0][1])), high = transposed(rounded_pair<BF16>(x[1][0], x[1][1]));
#pragma unroll
            for (int half = 0; half < D / 64; ++half)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float(&o)[4] = out[4 * half + i];
#pragma unroll
                    for (int j = 0; j < 4; ++j) o[j] *= shrunk[j % 2];
                    product(o, lower_halves(value[0][half][i], value[1][half][i]), upper_halves(value[0][half][i], value[1][half][i]),
                            lower_halves(value[2][half][i], value[3][half][i]), upper_halves(value[2][half][i], value[3][half][i]), low, high);
                }
            load_values(next);
            at = next;
        }

        // --- all warps' sums ---
        sync_warp(); // no lane reads its queries any more
        const float *const shared = shared_floats();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (2 * t + h >= heads) break;
#pragma unroll
            for (int half = 0; half < D / 64; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i) { // elements 64 * half + 8 * g + 4 * i and on
                    const float(&lower)[4] = out[4 * half + 2 * i], (&upper)[4] = out[4 * half + 2 * i + 1];
                    store_shared(base + 4 * place(warp, 2 * t + h, 16 * half + 2 * g + i), lower[h], lower[2 + h], upper[h], upper[2 + h]);
                }
        }
        sync_warp();
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) {
            const float others[2] = {of_lane(sum[0], lane ^ apart), of_lane(sum[1], lane ^ apart)};
            sum[0] += others[0];
            sum[1] += others[1];
        }
        if (g == 0) store_shared(base + 4 * (STATS + 2 * (warp * HEADS + 2 * t)), most[0], sum[0], most[1], sum[1]);
        sync_cta();
        if (splits == 1) {
            for (int at = threadIdx.x; at < heads * CHUNKS; at += THREADS) {
                float total[4], stats[2];
                of_cta(total, stats, shared, at);
                finish(p, first_head, at, total, stats[1]);
            }
            return;
        }
        wait_for_cluster(); // they expect each other's sums
        for (int at = threadIdx.x; at < heads * CHUNKS; at += THREADS) {
            float total[4], stats[4] = {};
            of_cta(total, stats, shared, at);
            const int to = at & (splits - 1);
            store_async(remote_address(base + 4 * (SENT + 4 * (at - to + rank)), to), total, remote_address(base, to), true);
            store_async(remote_address(base + 4 * (SENT_STATS + 4 * (rank * HEADS + at / CHUNKS)), to), stats, remote_address(base, to),
                        at % CHUNKS < splits); // one to each
        }
        if (splits == 2) of_cluster<2>(p, shared, base, first_head);
        else if (splits == 4) of_cluster<4>(p, shared, base, first_head);
        else of_cluster<8>(p, shared, base, first_head);
    }

    // Which of 32 tiles, the first from key `first`, have a key that some head sees.
    static __device__ __forceinline__ u32 of_tiles(const Problem &p, const u16 *masks, int first, int step) {
        constexpr u16 HIDDEN = BF16 ? 0xff80 : 0xfc00; // -inf
        const int lane = threadIdx.x & 31, heads = p.mask_head ? p.group : 1;
        u32 seen = 0;
#pragma unroll 1
        for (int n = 0; n < 32 && first + n * step < p.keys; n += 8) {
            const int at = first + (n + (lane >> 4)) * step + (lane & 15); // two tiles at a time
#pragma unroll 1
            for (int h = 0; h < heads; ++h) {
                const u16 *const from = masks + far(h, p.mask_head) + at;
                u16 added[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) added[i] = load_global_u16(from + 2 * i * step, at + 2 * i * step < p.keys);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const u32 found = lanes_where(at + 2 * i * step < p.keys && added[i] != HIDDEN);
                    seen |= ((found & 0xffff ? 1u : 0u) | (found >> 16 ? 2u : 0u)) << (n + 2 * i);
                }
            }
        }
        return seen;
    }

    // Every SPLITS-th chunk of the heads, of all CTAs.
    template <int SPLITS>
    static __device__ __forceinline__ void of_cluster(const Problem &p, const float *shared, u32 base, int first_head) {
        const int rank = blockIdx.x % SPLITS;
        for (int at = (int)threadIdx.x * SPLITS + rank; at < p.group * CHUNKS; at += THREADS * SPLITS) {
            barrier_wait<4>(base, 0);
            const float *const stats = shared + SENT_STATS + 4 * (at / CHUNKS), *const parts = shared + SENT + 4 * (at - rank);
            float total[4] = {}, most = -infinity(), sum = 0;
#pragma unroll
            for (int from = 0; from < SPLITS; ++from) most = larger(most, stats[4 * HEADS * from]);
#pragma unroll
            for (int from = 0; from < SPLITS; ++from) {
                const float factor = weight(stats[4 * HEADS * from], most);
                sum += factor * stats[4 * HEADS * from + 1];
#pragma unroll
                for (int i = 0; i < 4; ++i) total[i] += factor * parts[4 * from + i];
            }
            finish(p, first_head, at, total, sum);
        }
    }

    static __device__ __forceinline__ void product(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
        if constexpr (BF16) mma_m16n8k16_bf16(d, a0, a1, a2, a3, b0, b1);
        else mma_m16n8k16(d, a0, a1, a2, a3, b0, b1);
    }

    // Four elements of all warps, of chunk `at` of the heads: sums, and the head's maximum and sum of weights.
    template <int COUNT>
    static __device__ __forceinline__ void of_cta(float (&total)[4], float (&stats)[COUNT], const float *shared, int at) {
        const int head = at / CHUNKS;
        const float *const from = shared + STATS + 2 * head;
        float most = -infinity(), sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) most = larger(most, from[2 * HEADS * w]);
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float factor = weight(from[2 * HEADS * w], most), *const part = shared + place(w, head, at % CHUNKS);
            sum += factor * from[2 * HEADS * w + 1];
#pragma unroll
            for (int i = 0; i < 4; ++i) total[i] += factor * part[i];
        }
        stats[0] = most;
        stats[1] = sum;
    }

    static __device__ __forceinline__ void finish(const Problem &p, int first_head, int at, const float (&total)[4], float sum) {
        const float factor = sum == 0.0f ? 0.0f : reciprocal(sum);
        const u32 words[2] = {rounded_pair<BF16>(total[0] * factor, total[1] * factor), rounded_pair<BF16>(total[2] * factor, total[3] * factor)};
        store_global(p.c + 4 * (far(blockIdx.z * gridDim.y * p.parts * p.group + first_head, CHUNKS) + at), words);
    }
};

} // namespace sassafras
