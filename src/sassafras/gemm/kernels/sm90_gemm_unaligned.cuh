// HGEMM for rows of any length, on tensor copies and WGMMA: C = A * B, FP16 or BF16 in and out, FP32 accumulation.
//
// B is N x K. Tensor copies want rows that lie a multiple of 16 bytes apart. Of rows of any length every eighth does: rows
// j, j + 8, j + 16 ... are a matrix whose rows lie 16 * length bytes apart. So a tile of R rows is brought by eight copies, of
// R / 8 rows each. In shared memory row 8i + j of the tile is then number j * R / 8 + i, which is undone when C is written.
// A copy has to begin at a multiple of 16 bytes, too (any other is an illegal instruction): those of kind j begin
// j * length mod 8 elements early, at every k tile. The multiplying warps move such rows to where they belong, in place,
// with what the next k tile's stage begins with, while the products of the k tile before are under way.
// What lies behind a row's end is the next row: those elements of the last k tile are made zeros (of both operands, since
// NaN times 0 is NaN). Nothing outside of the matrices is read: two tensor maps an operand, one of the rows that have one
// more of their kind than the others.
//
// k may be split over the CTAs of a cluster, as in sm90_gemm_split_k.cuh: sums in a fixed order, in distributed shared
// memory. C passes through shared memory as FP32; each row is shifted to 8-byte boundaries between lanes, so that all but
// the ends of a tile's rows leave in whole words.
//
// Template parameters
//   BM, BN    the CTA's tile: BM 64 or 128 (64 a multiplying warpgroup), BN 64, 128 or 256
//   STAGES    k tiles of 64 in flight
//   EPILOGUE  what epilogue.cuh describes, of one matrix
//   BF16      elements are BF16, otherwise FP16
//
// Launch: grid (slices, rows of a band * tiles of N, bands), bands of one row of tiles where there are slices or an epilogue (why
// there are bands: `Place` in sm90_gemm_split_k.cuh); cluster (slices, 1, 1) of 1 to 8 CTAs; 2 * BM + 128 threads; dynamic
// shared memory as `AnyRowsInstance.shared_bytes` says. Requires A and B at multiples of 16 bytes; C anywhere.
#pragma once
#include "hopper_tile.cuh"
#include "ptx_rows.cuh"

namespace sassafras {

struct AnyRowsProblem {
    // Boxes of 64 elements by R / 8 rows. `more`: of rows j < rows % 8, the others of the rest; where
    // there are none of a kind, its map is never used.
    const TensorMap *a_more, *a_less, *b_more, *b_less;
    u16 *c;            // (m, n), row-major
    int m, n, k;
    int lda, ldb, ldc; // elements from row to row
    int tiles_per_slice; // k tiles of each slice; the last may have fewer, none has 0
    int late;            // successors may start when the operands have been read (0: after the wait)
    int log2_band;       // rows of tiles that are visited together, column after column; 0: row after row
};

template <int BM, int BN, int STAGES, bool EPILOGUE = false, bool BF16 = false> struct AnyRows {
    using Problem = typename ProblemOf<EPILOGUE, AnyRowsProblem>::Type;
    static constexpr int CONSUMERS = BM / 64, MULTIPLIERS = 128 * CONSUMERS, LOADERS = 4, THREADS = MULTIPLIERS + 32 * LOADERS;
    static constexpr int REGISTERS = BN / 2, KINDS = 8; // kinds of rows, by their number modulo 8
    using A = Operand<BM, false, 1>;
    using B = Operand<BN, false, 1>;
    static constexpr int STAGE = A::BYTES + B::BYTES, BARRIERS_AT = STAGES * STAGE;
    // FP32 sums take the stages' place: natural columns, rows as the accumulators have them. A row's 16-byte chunks are
    // exchanged in pairs where bit 3 of their number is set: with 8 words of padding nothing meets bank conflicts.
    static constexpr int P_ROW = BN + 8, P_BYTES = 4 * BM * P_ROW;
    static constexpr int BYTES = (BARRIERS_AT > P_BYTES ? BARRIERS_AT : P_BYTES) + 16 * STAGES, SHARED_BYTES = 1024 + BYTES;
    static constexpr int FULL_AT = BYTES - 16 * STAGES;
    static_assert(BM % 64 == 0 && BN % 64 == 0 && STAGES >= 3, "eight kinds of rows, eight of each; a row may end in the next stage");

    // The CTA's tile: columns of a band follow each other along y. Computed where it is used, so that no register holds it
    // meanwhile. The last band may be short of rows: such CTAs multiply zeros and store nothing.
    static __device__ __forceinline__ int column(const Problem &p) { return EPILOGUE ? blockIdx.y : blockIdx.y >> p.log2_band; }
    static __device__ __forceinline__ int row(const Problem &p) {
        if constexpr (EPILOGUE) return blockIdx.z;
        return (blockIdx.z << p.log2_band) + (blockIdx.y & ((1 << p.log2_band) - 1));
    }

    // --- from global to shared memory ------------------------------------------------------------------------

    // Elements by which a row of this kind begins after the multiple of 8 that its copies begin at.
    static __device__ __forceinline__ int shift_of(int kind, int ld) { return kind * ld & 7; }

    // Whether rows begin elsewhere than at multiples of 8 elements.
    static __device__ __forceinline__ bool shifted(const Problem &p) { return ((p.lda | p.ldb) & 7) != 0; }

    // k tiles to bring for the `tiles` from `first` on: the last one's rows may end in the next.
    static __device__ __forceinline__ int brought(const Problem &p, int first, int tiles) {
        return tiles + (shifted(p) && p.k - (first + tiles - 1) * TILE_K > TILE_K - 7);
    }

    // Loading warp `warp` brings kinds `warp` and `warp + 4` of both operands; lane 0 does it all.
    static __device__ __forceinline__ void load(const Problem &p, u32 base, int warp, int first, int tiles) {
        constexpr int A_BOX = BM / KINDS, B_BOX = BN / KINDS;
        const int a_y = row(p) * A_BOX, b_y = column(p) * B_BOX;
        // a kind that no row is of is not brought: what its place holds ends in rows and columns that are not stored
        u32 bytes = 0;
#pragma unroll
        for (int i = 0; i < KINDS / LOADERS; ++i) {
            const int kind = warp + LOADERS * i;
            bytes += (kind < p.m ? A_BOX * ROW_BYTES : 0) + (kind < p.n ? B_BOX * ROW_BYTES : 0);
        }
        int stage = 0;
        u32 phase = 0;
        for (int k = 0, all = brought(p, first, tiles); k < all; ++k) {
            const u32 full = base + FULL_AT + 16 * stage, tile = base + stage * STAGE;
            const int at = (first + k) * TILE_K;
            if (k >= STAGES) barrier_wait<1>(full + 8, phase ^ 1);
            barrier_expect(full, bytes);
#pragma unroll
            for (int i = 0; i < KINDS / LOADERS; ++i) {
                const int kind = warp + LOADERS * i;
                if (kind < p.m)
                    copy_tile(tile + kind * A_BOX * ROW_BYTES, kind < (p.m & 7) ? p.a_more : p.a_less, (kind * p.lda & ~7) + at, a_y, full);
                if (kind < p.n)
                    copy_tile(tile + A::BYTES + kind * B_BOX * ROW_BYTES, kind < (p.n & 7) ? p.b_more : p.b_less,
                              (kind * p.ldb & ~7) + at, b_y, full);
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }

    // --- products --------------------------------------------------------------------------------------------

    // Every row of both tiles moves to where it belongs, in place; what it lacks begins the next k tile. A warp moves four
    // rows of one kind at a time, 16 bytes a lane, and reads four such steps before it writes: first A's, then B's.
    static __device__ __forceinline__ void move_rows(const Problem &p, u32 tile, u32 next, int warp, int lane) {
        constexpr int WARPS = MULTIPLIERS / 32, AT_ONCE = BM / 4 / WARPS, STEPS = (BM + BN) / 4 / WARPS;
        static_assert(STEPS % AT_ONCE == 0);
        const int chunk = lane & 7;
#pragma unroll 1
        for (int first = 0; first < STEPS; first += AT_ONCE) {
            const int ld = first ? p.ldb : p.lda, each = (first ? BN : BM) / KINDS, begins = first ? BM : 0;
            u32 x[AT_ONCE][4], y[AT_ONCE][4];
            const auto place = [&](int i, int which) { // of one's own 16 bytes and of the next ones
                const int row = 4 * (warp + WARPS * (first + i)) + (lane >> 3);
                return (chunk + which < 8 ? tile : next) + row * ROW_BYTES + (((chunk + which & 7) ^ (row & 7)) << 4);
            };
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                load_shared(x[i], place(i, 0));
                load_shared(y[i], place(i, 1));
            }
            sync_warp(); // all have read
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int shift = shift_of((4 * (warp + WARPS * (first + i)) - begins) / each, ld);
                u32 by_four[6], by_two[5], out[4];
#pragma unroll
                for (int w = 0; w < 6; ++w) {
                    const u32 here = w < 4 ? x[i][w] : y[i][w - 4], there = w < 2 ? x[i][w + 2] : y[i][w - 2];
                    by_four[w] = shift & 4 ? there : here;
                }
#pragma unroll
                for (int w = 0; w < 5; ++w) by_two[w] = shift & 2 ? by_four[w + 1] : by_four[w];
#pragma unroll
                for (int w = 0; w < 4; ++w) out[w] = shift & 1 ? middle_halves(by_two[w], by_two[w + 1]) : by_two[w];
                store_shared(place(i, 0), out);
            }
        }
        async_fence();
        sync_threads(1, MULTIPLIERS);
    }

    // Elements `valid` .. 63 of every row of both tiles become zeros.
    static __device__ __forceinline__ void end_rows(u32 tile, int valid, int thread) {
#pragma unroll 1
        for (int row = thread; row < BM + BN; row += MULTIPLIERS) {
            const u32 at = tile + row * ROW_BYTES;
#pragma unroll 1
            for (int chunk = valid >> 3; chunk < TILE_K / 8; ++chunk) {
                const u32 place = at + ((chunk ^ (row & 7)) << 4);
                u32 words[4];
                load_shared(words, place);
#pragma unroll
                for (int w = 0; w < 4; ++w) words[w] = first_of(words[w], valid - 8 * chunk - 2 * w);
                store_shared(place, words);
            }
        }
        async_fence();
        sync_threads(1, MULTIPLIERS);
    }

    // A word of two elements, of which `valid` are kept.
    static __device__ __forceinline__ u32 first_of(u32 word, int valid) {
        return valid >= 2 ? word : valid == 1 ? word & 0xffff : 0;
    }

    static __device__ __forceinline__ void multiply(const Problem &p, float (&acc)[REGISTERS], u32 base, int first, int tiles,
                                                    int thread) {
        const int row = 64 * (int)broadcast(thread >> 7), lane = thread & 31;
        int stage = 0, last = 0;
        u32 phase = 0;
        const u32 first_b = B::describe_first(base + A::BYTES);
        const auto begin = [&](u32 &b) { // from lane 0, so that the compiler knows it to be uniform
            b = broadcast(first_b + stage * (STAGE / 16));
            barrier_wait<2>(base + FULL_AT + 16 * stage, phase);
        };
        const auto end = [&](int k) {
            products_commit();
            products_wait<1>(); // the k tile before this one has been read
            if (k > 0 && lane == 0) barrier_arrive(base + FULL_AT + 16 * last + 8);
            last = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        };
        const u32 to_a = A::describe_first(0) - B::describe_first(A::BYTES) + row * (ROW_BYTES / 16);
        const bool moves = shifted(p);
        const int all = brought(p, first, tiles), warp = (int)broadcast(thread >> 5);
        for (int k = 0; k < tiles; ++k) {
            u32 b;
            begin(b);
            const u32 a = b + to_a;
            if (moves) {
                const int next = stage + 1 < STAGES ? stage + 1 : 0;
                if (k + 1 < all) barrier_wait<2>(base + FULL_AT + 16 * next, phase ^ (next == 0));
                move_rows(p, base + stage * STAGE, base + next * STAGE, warp, lane);
            }
            const int left = p.k - (first + k) * TILE_K;
            if (left < TILE_K) end_rows(base + stage * STAGE, left, thread);
            products_fence();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
                Products<BN>::template issue<BF16, false, false>(acc, A::describe_from(a, 0, step), B::describe_from(b, 0, step),
                                                                 k > 0 || step > 0);
            end(k);
        }
        products_wait<0>();
        settle(acc);
    }

    // --- C ---------------------------------------------------------------------------------------------------

    // Accumulators to shared memory: rows as they are, columns in their natural order.
    static __device__ __forceinline__ void leave(const float (&acc)[REGISTERS], u32 partial, int thread) {
        const int lane = thread & 31, g = lane >> 2, t = lane & 3, row = 16 * (thread >> 5) + g;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 at = partial + 4 * P_ROW * (row + 8 * half);
            // column 8x + 2t + b of the tile is kind x / (BN / 64): eight kinds are eight neighbours
            constexpr int GROUPS = BN / 64;
#pragma unroll
            for (int h = 0; h < GROUPS; ++h)
#pragma unroll
                for (int b = 0; b < 2; ++b)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const u32 chunk = 16 * h + 4 * t + 2 * b + (e ^ (t >> 1));
                        const auto of = [&](int kind) { return acc[4 * (kind * GROUPS + h) + 2 * half + b]; };
                        store_shared(at + 16 * chunk, of(4 * e), of(4 * e + 1), of(4 * e + 2), of(4 * e + 3));
                    }
        }
    }

    // Sums over the slices, in their order, and out: each CTA has every slices-th row (or pair of rows, for BN = 64).
    static __device__ __forceinline__ void store(const Problem &p, const float *partial, int row0, int column0, int slice,
                                                 int slices, int thread) {
        constexpr int LANES = BN / 4 < 32 ? BN / 4 : 32, PIECES = BN / 4 / LANES, AT_ONCE = 32 / LANES;
        const int lane = thread & 31, l = lane % LANES, columns = p.n - column0;
        const int begin = (slice + slices * (thread >> 5)) * AT_ONCE, step = slices * (MULTIPLIERS / 32) * AT_ONCE;
#pragma unroll 1
        for (int r0 = begin; r0 < BM; r0 += step) {
            const int r = r0 + lane / LANES, row = row0 + r;
            const bool wanted = row < p.m;
            const float *const from = partial + ((r % KINDS) * (BM / KINDS) + r / KINDS) * P_ROW;
            u16 *const to = p.c + (long long)row * p.ldc + column0;
            // elements from the 8-byte boundary before the row's first one: so far each lane's columns have to move up
            const int shift = (int)((u64)to >> 1 & 3);
            u32 before[2] = {0, 0}; // of the lane before the first: the last lane's of the piece before
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                const int chunk = l + LANES * piece, column = 4 * chunk;
                const float *const vector = from + 4 * (chunk ^ (chunk >> 3 & 1));
                float sum[4] = {0, 0, 0, 0};
                if (slices == 1) {
                    u32 words[4];
                    load_shared(words, shared_address(vector));
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[e] = as_float(words[e]);
                } else {
#pragma unroll 1
                    for (int first = 0; first < slices; first += 4) {
                        float v[4][4] = {};
#pragma unroll
                        for (int i = 0; i < 4; ++i) load_remote(v[i], vector, first + i, first + i < slices && wanted);
#pragma unroll
                        for (int i = 0; i < 4; ++i)
#pragma unroll
                            for (int e = 0; e < 4; ++e) sum[e] += v[i][e];
                    }
                }
                if constexpr (EPILOGUE) finish<BF16, false>(p.out, row, column0 + column, sum);
                const u32 own[2] = {rounded_pair<BF16>(sum[0], sum[1]), rounded_pair<BF16>(sum[2], sum[3])};
                u32 previous[2];
#pragma unroll
                for (int w = 0; w < 2; ++w) {
                    previous[w] = value_of(own[w], (lane + 31) & 31);
                    if (l == 0) previous[w] = before[w];
                    if (piece + 1 < PIECES) before[w] = value_of(own[w], 31);
                }
                // columns column - shift to column - shift + 3
                const bool far = shift & 2, half = shift & 1;
                const u32 x = far ? previous[0] : previous[1], y = far ? previous[1] : own[0], z = far ? own[0] : own[1];
                const u32 out[2] = {half ? middle_halves(x, y) : y, half ? middle_halves(y, z) : z};
                const int start = column - shift;
                if (wanted) {
                    if (start >= 0 && start + 4 <= columns) {
                        store_global(to + start, out);
                    } else {
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            if (start + e >= 0 && start + e < columns) store_global_u16(to + start + e, (u16)(out[e / 2] >> (16 * (e % 2))));
                    }
                    if (column == BN - 4) { // what was moved beyond the tile's last lane
#pragma unroll
                        for (int e = 1; e < 4; ++e)
                            if (e >= 4 - shift && column + e < columns) store_global_u16(to + column + e, (u16)(own[e / 2] >> (16 * (e % 2))));
                    }
                }
            }
        }
    }

    // --- all of it -------------------------------------------------------------------------------------------

    static __device__ __forceinline__ void run_batched(const Problem &p) { run(p); } // with EPILOGUE; of one matrix

    static __device__ __forceinline__ void run(const Problem &p) {
        char *const shared = (char *)shared_floats();
        const u32 start = shared_address(shared), base = (start + 1023) & ~1023u;
        const int thread = threadIdx.x, warp = (int)broadcast(thread >> 5);
        const int slice = blockIdx.x, slices = gridDim.x;
        const int first = slice * p.tiles_per_slice, tiles = min(p.tiles_per_slice, (p.k + TILE_K - 1) / TILE_K - first);

        if (thread == MULTIPLIERS) {
            for (int s = 0; s < STAGES; ++s) {
                barrier_init(base + FULL_AT + 16 * s, LOADERS);
                barrier_init(base + FULL_AT + 16 * s + 8, MULTIPLIERS / 32);
            }
            barrier_init_fence();
        }
        sync_cta();
        if (warp >= MULTIPLIERS / 32) {
            if ((thread & 31) == 0) {
                wait_for_predecessors();
                if (!p.late) start_successors();
                load(p, base, warp - MULTIPLIERS / 32, first, tiles); // uniform: one lane's copies need no loop over lanes
            }
            sync_warp();
            if (slices > 1) {
                sync_cluster();
                meet_cluster();
            }
        } else {
            float acc[REGISTERS];
            if constexpr (EPILOGUE) wait_for_predecessors(); // all threads read bias and addend
            multiply(p, acc, base, first, tiles, thread);
            if (p.late) start_successors();
            sync_threads(1, MULTIPLIERS); // all stages have been read
            leave(acc, base, thread);
            if (slices == 1)
                sync_threads(1, MULTIPLIERS);
            else
                sync_cluster();
            store(p, (float *)(shared + (base - start)), row(p) * BM, column(p) * BN, slice, slices, thread);
            if (slices > 1) meet_cluster(); // shared memory must live until the others have read it
        }
    }
};

} // namespace sassafras
