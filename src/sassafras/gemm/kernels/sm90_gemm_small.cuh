// Lean HGEMM for tiny and skinny problems: C = A * B, FP16 or BF16 in and out, FP32
// accumulation.
//
// Small problems are bound by latency, so this kernel has as few steps as possible between launch and store:
// operands go from global memory straight to registers in wide loads and from there to mma.m16n8k16; no
// staging in shared memory, no descriptors, no barrier in the main loop.
//
// Why no transposition is needed. mma sums over k, so k may be permuted as long as A and B agree. Lane 4*g + t
// loads the eight contiguous elements k = 8t .. 8t+7 of its rows (16 bytes); their first four serve as the
// fragment of one mma, the last four as the next one's. The columns of a warp's tile are permuted too: mma
// number j computes columns c*NT + j, so that a lane ends with 2*NT contiguous columns of C, and
//   TN (B is N x K, k contiguous): lane (g, t) loads 16 bytes of row g*NT + j for each j;
//   NN (B is K x N, n contiguous): lane (g, t) loads columns g*NT .. g*NT+NT-1 of rows 8t .. 8t+7, and pairs of
//       rows are interleaved in registers (prmt). The warp reads whole lines: 8*NT columns of a row.
//
// K is split over the warps of a CTA and over the CTAs of a cluster. Partial sums meet in shared memory, then in
// distributed shared memory, in a fixed order: results are bitwise reproducible.
//
// Template parameters
//   MT      16-row tiles a warp: 1, 2, 4
//   NT      8-column tiles a warp: 1 (TN only), 2, 4, 8
//   STEPS   32-wide k steps loaded at once; two such groups are kept in registers, one in flight
//   LAYOUT  TN, NN, or TN_SWAPPED: A and B have changed roles (A is the N x K operand, B the M x K one), and the
//           tile is stored transposed; for M below a tile's 16 rows
//   EXACT   M and N are multiples of the CTA's tile, K of 32 * STEPS * slices: nothing is clamped or checked
//   EPILOGUE  batches, and what epilogue.cuh describes; grid: tiles of M times matrices of the batch
//   BF16    elements are BF16, otherwise FP16
//
// Launch: grid (cluster, tiles of N, tiles of M), cluster (cluster, 1, 1), 32 * warps_m * warps_n * warps_k
// threads; dynamic shared memory as `LeanConfig.shared_bytes` says (0 without split). For TN_SWAPPED, "M" and
// "N" of grid, tiles and parameters are those of the swapped problem.
//
// Requires K % 8 == 0, leading dimensions % 8 == 0, N % 8 == 0 (not swapped), bases aligned to 16 bytes. Any M,
// N, K otherwise: rows and columns past the end are clamped for loading and not stored.
#pragma once
#include "ptx.cuh"
#include "epilogue.cuh"

namespace sassafras {

enum class Layout { TN, NN, TN_SWAPPED };

struct LeanProblem {
    const u16 *a; // (m, k), row-major
    const u16 *b; // TN: (n, k); NN: (k, n), row-major
    u16 *c;       // (m, n), row-major; swapped: (n, m)
    int m, n, k;
    int lda, ldb, ldc;     // elements from row to row
    int log2_warps_m, log2_warps_n;
    int steps_per_slice; // 32-wide k steps of each slice; slices = warps_k * cluster
};

template <int MT, int NT, int STEPS, Layout LAYOUT, bool EXACT = false, bool EPILOGUE = false, bool BF16 = false>
struct Lean {
    using Problem = typename ProblemOf<EPILOGUE, LeanProblem>::Type;
    static constexpr int ROWS = 16 * MT, COLUMNS = 8 * NT; // a warp's tile
    static constexpr int VALUES = 4 * MT * NT;             // accumulators a lane
    static constexpr bool NN = LAYOUT == Layout::NN;
    static_assert(!NN || NT >= 2, "NN loads at least two columns at once");

    // Operands of STEPS k steps. B: TN keeps [j][word of 2 k], NN keeps [row of 8][word of 2 columns].
    struct Group {
        u32 a[STEPS][MT][2][4];
        u32 b_tn[NN ? 1 : STEPS][NN ? 1 : NT][4];
        u32 b_nn[NN ? STEPS : 1][8][NN ? NT / 2 : 1];
    };

    // Where this lane loads its next group from. Pointers run along k, so that the steps of a group differ by
    // constants; `left` is what remains of the slice's k (from this lane's first element on), if positive.
    struct Source {
        const u16 *a[MT][2], *b[NN ? 1 : NT];
        int ldb, left;
    };

    static __device__ __forceinline__ void load(Group &to, Source &from) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const bool ok = EXACT || 32 * s < from.left;
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                load_global(to.a[s][i][0], from.a[i][0] + 32 * s, ok);
                load_global(to.a[s][i][1], from.a[i][1] + 32 * s, ok);
            }
            if constexpr (NN) {
#pragma unroll
                for (int r = 0; r < 8; ++r)
                    load_global(to.b_nn[s][r], from.b[0] + (long long)from.ldb * (32 * s + r), ok);
            } else {
#pragma unroll
                for (int j = 0; j < NT; ++j) load_global(to.b_tn[s][j], from.b[j] + 32 * s, ok);
            }
        }
#pragma unroll
        for (int i = 0; i < MT; ++i) {
            from.a[i][0] += 32 * STEPS;
            from.a[i][1] += 32 * STEPS;
        }
        if constexpr (NN) {
            from.b[0] += (long long)from.ldb * (32 * STEPS);
        } else {
#pragma unroll
            for (int j = 0; j < NT; ++j) from.b[j] += 32 * STEPS;
        }
        from.left -= 32 * STEPS;
    }

    static __device__ __forceinline__ void multiply(float (&acc)[MT][NT][4], const Group &g) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int half = 0; half < 2; ++half) { // elements 0..3, then 4..7, of the lane's eight
#pragma unroll
                for (int j = 0; j < NT; ++j) {
                    u32 b0, b1;
                    if constexpr (NN) {
                        const auto &rows = g.b_nn[s];
                        const int word = j / 2, r = 4 * half;
                        b0 = j % 2 ? upper_halves(rows[r][word], rows[r + 1][word])
                                   : lower_halves(rows[r][word], rows[r + 1][word]);
                        b1 = j % 2 ? upper_halves(rows[r + 2][word], rows[r + 3][word])
                                   : lower_halves(rows[r + 2][word], rows[r + 3][word]);
                    } else {
                        b0 = g.b_tn[s][j][2 * half];
                        b1 = g.b_tn[s][j][2 * half + 1];
                    }
#pragma unroll
                    for (int i = 0; i < MT; ++i)
                        multiply_add<BF16>(acc[i][j], g.a[s][i][0][2 * half], g.a[s][i][1][2 * half],
                                     g.a[s][i][0][2 * half + 1], g.a[s][i][1][2 * half + 1], b0, b1);
                }
            }
        }
    }

    static __device__ __forceinline__ int within(int index, int last) { return EXACT ? index : min(index, last); }

    // NT contiguous columns of one row, from FP32.
    static __device__ __forceinline__ void store(const Problem &p, int row, int column, float (&v)[NT]) {
        if (!EXACT && (row >= p.m || column >= p.n)) return;
        if constexpr (EPILOGUE) {
            if constexpr (LAYOUT == Layout::TN_SWAPPED)
                finish_column<BF16>(p.out, column, row, v);
            else
                finish<BF16, true>(p.out, row, column, v);
        }
        if constexpr (LAYOUT == Layout::TN_SWAPPED) {
#pragma unroll
            for (int j = 0; j < NT; ++j)
                if (EXACT || column + j < p.n) store_global_u16(p.c + (long long)(column + j) * p.ldc + row, rounded<BF16>(v[j]));
        } else {
            u16 *to = p.c + (long long)row * p.ldc + column;
            if constexpr (NT == 1) {
                store_global_u16(to, rounded<BF16>(v[0]));
            } else {
                u32 packed[NT / 2];
#pragma unroll
                for (int j = 0; j < NT / 2; ++j) packed[j] = rounded_pair<BF16>(v[2 * j], v[2 * j + 1]);
                store_global(to, packed);
            }
        }
    }

    // Where value `r` of `lane` lies in a warp's patch of shared memory. The swizzle keeps both the writers (one
    // r, 32 lanes) and the readers (r of either parity, 16 lanes) free of bank conflicts.
    static __device__ __forceinline__ int place(int r, int lane) { return r * 32 + (lane ^ ((r & 1) << 4)); }

    static __device__ __forceinline__ void run_batched(Problem p) { // with EPILOGUE
        move_operands(p);
        move_result(p);
        run(p);
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const int g = lane >> 2, t = lane & 3;
        const int log2_tiles = p.log2_warps_m + p.log2_warps_n; // warp tiles of this CTA
        const int tile = warp & ((1 << log2_tiles) - 1);
        const int tile_m = tile >> p.log2_warps_n, tile_n = tile & ((1 << p.log2_warps_n) - 1);
        const int slice_of_cta = warp >> log2_tiles, warps_k = blockDim.x >> (5 + log2_tiles);
        const int rank = blockIdx.x, cluster = gridDim.x;
        const int cta_row = (EPILOGUE ? tile_row(p) : blockIdx.z) * (ROWS << p.log2_warps_m);
        const int cta_column = blockIdx.y * (COLUMNS << p.log2_warps_n);
        const int row0 = cta_row + tile_m * ROWS, column0 = cta_column + tile_n * COLUMNS;

        int step = (rank * warps_k + slice_of_cta) * p.steps_per_slice;
        const int end = EXACT ? step + p.steps_per_slice : min(step + p.steps_per_slice, (p.k + 31) >> 5);
        const int k0 = 32 * step + 8 * t; // this lane's first element

        Source from;
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                from.a[i][h] = p.a + k0 + (long long)within(row0 + 16 * i + 8 * h + g, p.m - 1) * p.lda;
        if constexpr (NN) {
            from.b[0] = p.b + within(column0 + g * NT, p.n - NT) + (long long)k0 * p.ldb;
        } else {
#pragma unroll
            for (int j = 0; j < NT; ++j)
                from.b[j] = p.b + k0 + (long long)within(column0 + g * NT + j, p.n - 1) * p.ldb;
        }
        from.ldb = p.ldb;
        from.left = min(32 * end, p.k) - k0;

        float acc[MT][NT][4] = {};
        Group now, next;
        wait_for_predecessors();
        start_successors();
        load(now, from);
        while (step < end) {
            if (!EXACT || step + STEPS < end) load(next, from);
            multiply(acc, now);
            if (step + STEPS >= end) break;
            if (!EXACT || step + 2 * STEPS < end) load(now, from);
            multiply(acc, next);
            step += 2 * STEPS;
        }

        if (warps_k * cluster == 1) {
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    float v[NT];
#pragma unroll
                    for (int j = 0; j < NT; ++j) v[j] = acc[i][j][q];
                    store(p, row0 + 16 * i + 8 * (q >> 1) + g, column0 + (2 * t + (q & 1)) * NT, v);
                }
            return;
        }

        float *const shared = shared_floats(); // [slice of the CTA][warp tile][value][lane]
        {
            float *const patch = shared + ((slice_of_cta << log2_tiles) + tile) * VALUES * 32;
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int j = 0; j < NT; ++j)
#pragma unroll
                    for (int q = 0; q < 4; ++q) patch[place((i * NT + j) * 4 + q, lane)] = acc[i][j][q];
        }
        sync_cta();

        // A unit is NT contiguous columns of one row. Bits of its number, from the lowest: 1 parity of the mma's
        // column, 2 t, 3 g, 1 upper or lower 8 rows, then the 16-row tile, then the warp tile.
        const int units = (MT * 128) << log2_tiles;
        const int slice_stride = (VALUES * 32) << log2_tiles;
        const bool alone = cluster == 1;
        for (int u = threadIdx.x; u < units; u += blockDim.x) {
            const Unit unit(u, p.log2_warps_n);
            float v[NT];
#pragma unroll
            for (int j = 0; j < NT; ++j) v[j] = shared[unit.at(j)];
            for (int w = 1; w < warps_k; ++w)
#pragma unroll
                for (int j = 0; j < NT; ++j) v[j] += shared[w * slice_stride + unit.at(j)];
            if (alone) {
                store(p, cta_row + unit.row, cta_column + unit.column, v);
            } else {
#pragma unroll
                for (int j = 0; j < NT; ++j) shared[unit.at(j)] = v[j]; // no other thread touches this unit
            }
        }
        if (alone) return;

        sync_cluster();
        for (int u = rank * blockDim.x + threadIdx.x; u < units; u += cluster * blockDim.x) {
            const Unit unit(u, p.log2_warps_n);
            float v[NT] = {};
            for (int r = 0; r < cluster; ++r)
#pragma unroll
                for (int j = 0; j < NT; ++j) v[j] += load_remote(shared + unit.at(j), r);
            store(p, cta_row + unit.row, cta_column + unit.column, v);
        }
        meet_cluster(); // shared memory must live until the others have read it
    }

    struct Unit {
        int row, column; // in the CTA's tile
        int base, lane;
        __device__ __forceinline__ Unit(int u, int log2_warps_n) {
            const int parity = u & 1, upper = (u >> 6) & 1, i = (u >> 7) % MT, tile = (u >> 7) / MT;
            lane = (u >> 1) & 31;
            const int q = 2 * upper + parity;
            base = tile * VALUES * 32 + i * NT * 4 * 32 + place(q, lane);
            row = (tile >> log2_warps_n) * ROWS + 16 * i + 8 * upper + (lane >> 2);
            column = (tile & ((1 << log2_warps_n) - 1)) * COLUMNS + (2 * (lane & 3) + parity) * NT;
        }
        // where column j of the unit lies, slice 0 (place() depends on j only by whole rows of 4 * 32)
        __device__ __forceinline__ int at(int j) const { return base + j * 4 * 32; }
    };
};

} // namespace sassafras
