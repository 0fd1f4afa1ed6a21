// The second of two launches that split k: adds up, on all multiprocessors, what the parts of a SplitK with LEAVES have left in
// the workspace, in the order of k, and stores C.
//
// The sums lie as the lanes of the first kernel held them. A unit of 16 rows x 16 columns is 1 KB of every part: a lane reads two
// 16-byte vectors of it, those of TERMS parts at once, and what it has then is again a fragment of a warp's accumulators, which is
// staged and stored as the first kernel would have done it. Units are dealt to CTAs first and to their warps after that, so that few
// of them meet on one multiprocessor.
//
// Launched with programmatic stream serialization its CTAs are there, with all that they compute beforehand, when the first kernel
// ends: they want little shared memory, to fit beside a CTA of 210 KB. They also have some 32,000 registers each, so that not all of
// them crowd where the first kernel left multiprocessors free: two fit there, one beside a CTA of the first kernel.
//
// Template parameters
//   TERMS        parts whose loads are under way at once; parts are a multiple of it
//   WARPS        of a CTA
//   SWAPPED      the first kernel computed the transpose of C
//   BF16         elements are BF16, otherwise FP16
//
// Launch: any grid along x; 32 * WARPS threads; dynamic shared memory SHARED_BYTES. C's rows are multiples of 8 elements.
#pragma once
#include "hopper_tile.cuh"
#include "ptx_sums.cuh"

namespace sassafras {

struct SplitKReduceProblem {
    u16 *c;                 // (m, n), row-major; swapped: (n, m)
    const float *workspace; // parts * tiles_m * tiles_n * rows * columns sums
    int m, n;               // the first kernel's
    int ldc;
    int parts;
    int tiles_m, tiles_n; // of the first kernel's grid
    int rows, columns;    // of a tile: multiples of 16
    int last_row, last_column; // where the first kernel's last tiles begin, at most
};

template <int TERMS, int WARPS, bool SWAPPED, bool BF16> struct SplitKReduce {
    using Problem = SplitKReduceProblem;
    using Piece = Staging<16, SWAPPED, BF16>;
    static constexpr int THREADS = 32 * WARPS, SHARED_BYTES = WARPS * Piece::SIZE, UNIT = 256; // sums of a unit

    // sum = all parts' vectors of this lane, in the order of k. from: the first part's.
    static __device__ __forceinline__ void add(float (&sum)[8], const float *from, long long stride, int parts) {
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] = 0;
#pragma unroll 1
        for (int part = 0; part < parts; part += TERMS, from += TERMS * stride) {
            float term[TERMS][2][4];
            // Backwards: the first addition wants what is loaded last. Else ptxas mixes loads and additions to save registers.
#pragma unroll
            for (int t = TERMS - 1; t >= 0; --t)
#pragma unroll
                for (int h = 1; h >= 0; --h) load_partial_in_order(term[t][h], from + t * stride + h * (UNIT / 2));
#pragma unroll
            for (int t = 0; t < TERMS; ++t)
#pragma unroll
                for (int e = 0; e < 8; ++e) sum[e] += term[t][e / 4][e % 4];
        }
    }

    // A unit's 16 x 16 sums to C, by way of the warp's buffer; row, column: its first, as the first kernel counts them.
    static __device__ __forceinline__ void store(const Problem &p, const float (&sum)[8], u32 buffer, int row, int column, int lane) {
        Piece::template write<0>(buffer, sum, lane);
        sync_warp();
        const int r = (SWAPPED ? column : row) + lane / 2, at = (SWAPPED ? row : column) + 8 * (lane & 1);
        u32 words[4];
        load_shared(words, buffer + Piece::place(lane / 2, lane & 1));
        if (r < (SWAPPED ? p.n : p.m) && at < (SWAPPED ? p.m : p.n)) store_global(p.c + (long long)r * p.ldc + at, words);
        sync_warp();
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        const int lane = threadIdx.x & 31, warp = broadcast(threadIdx.x >> 5);
        const u32 buffer = shared_address(shared_floats()) + warp * Piece::SIZE;
        const int across = p.columns / 16, down = p.rows / 16, units = p.tiles_m * p.tiles_n * down * across;
        const long long stride = (long long)units * UNIT;
        bool waited = false;
#pragma unroll 1
        for (int unit = blockIdx.x + gridDim.x * warp; unit < units; unit += gridDim.x * WARPS) {
            const int strip = unit / across, tile = strip / down; // a strip: what one warp of the first kernel held
            const int row = min(tile / p.tiles_n * p.rows, p.last_row) + strip % down * 16;
            const int column = min(tile % p.tiles_n * p.columns, p.last_column) + unit % across * 16;
            if (row >= p.m || column >= p.n) continue; // outside
            const float *const from = p.workspace + (long long)unit * UNIT + 4 * lane;
            if (!waited) { // CTAs without a unit end without a wait: other CTAs of the grid have units
                wait_for_predecessors();
                start_successors();
            }
            waited = true;
            float sum[8];
            add(sum, from, stride, p.parts);
            store(p, sum, buffer, row, column, lane);
        }
    }
};

} // namespace sassafras
