// What a launch of the persistent kernel is given, and which tile a cluster has next.
#pragma once
#include "hopper_tile.cuh"

namespace sassafras {

struct PersistentProblem {
    const TensorMap *map_a, *map_b, *map_c; // boxes: Operand's; C's: {COLUMNS, ROWS} of Staging
    int tiles_m, tiles_n;                   // the cluster's tiles along m and n
    int k_tiles;                            // of 64
    int group;                              // rows of a band, or minus its columns: see `place`; in cluster tiles
    int band_by, band_shift;                // to divide by the tiles of a band: see `divided`
    int wide_by, wide_shift;                // by the rows (columns) of a band
    int rest_by, rest_shift;                // by those of the last band
    int last_row, last_column;              // where the last tiles begin, at most (hopper_tile.cuh)
    int stage_bytes;                        // that arrive for a stage
    int late;                               // successors may start when all operands have been asked for (0: after the wait)
    int store_policy;                       // the upper word of C's policy (the lower one is 0): whether the L2 gives it up first
};

struct FoldedPersistentProblem : PersistentProblem {
    int range; // k tiles of each range but the last, which may have fewer
};
struct PairPersistentProblem : PersistentProblem {
    const TensorMap *map_up; // of up's weight; map_b is of the gate's
    int early;               // both were written before the launch ahead of this one began, and are copied before its end
};
template <bool FOLDS, bool PAIR> struct PersistentProblemOf {
    using Type = PersistentProblem;
};
template <> struct PersistentProblemOf<true, false> {
    using Type = FoldedPersistentProblem;
};
template <> struct PersistentProblemOf<false, true> {
    using Type = PairPersistentProblem;
};

// What a cluster does next, the same for all its threads.
struct Work {
    int tile, ahead; // this tile, the next one

    __device__ __forceinline__ explicit Work(int cluster) : ahead(cluster) {}

    // clusters: of the launch (handed over each time: the loader has no register for it)
    __device__ __forceinline__ bool next(const PersistentProblem &p, int clusters) {
        if (ahead >= p.tiles_m * p.tiles_n) return false;
        tile = ahead;
        ahead += clusters;
        return true;
    }

    // Divides by what the host has made a multiplier and a shift of (gemm/configs/tma_wgmma.py: divider). A division by a number that is not
    // known takes the loader some 200 cycles, and the first k tile of the next tile is late by them.
    static __device__ __forceinline__ int divided(int number, int multiplier, int shift) {
        return (int)((u32)(((u64)(2 * (u32)number) * (u32)multiplier) >> 32) >> shift);
    }

    // Where the tile lies: in bands of `group` rows down the columns, or of -group columns along the rows.
    __device__ __forceinline__ void place(const PersistentProblem &p, int &row, int &column) const {
        const bool upright = p.group < 0;
        const int wide = upright ? -p.group : p.group, across = upright ? p.tiles_n : p.tiles_m;
        const int along = upright ? p.tiles_m : p.tiles_n;
        const int first = divided(tile, p.band_by, p.band_shift) * wide, in_band = tile - first * along;
        const bool whole = across - first >= wide;
        const int far = divided(in_band, whole ? p.wide_by : p.rest_by, whole ? p.wide_shift : p.rest_shift);
        const int near = first + in_band - far * (whole ? wide : across - first);
        row = upright ? far : near;
        column = upright ? near : far;
    }
};

} // namespace sassafras
