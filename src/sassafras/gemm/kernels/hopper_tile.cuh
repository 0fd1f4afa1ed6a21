// What the TMA + WGMMA kernels share: how an operand's tile lies in shared memory, how it gets there, how the tensor
// cores are told, and how accumulators leave.
//
// A k tile is 64 wide: 128 bytes, the row of the 128-byte swizzle. An operand's tile of R rows (of m or n) takes
// R * 128 bytes either way:
//   K-major (k contiguous in memory):  R rows of 64 k, one box {64, R};
//   MN-major (rows contiguous):        R / 64 blocks of 64 k x 64 rows, a box {64, 64} each (8 KB).
// Tiles start at multiples of 1024 bytes, where the swizzle's pattern starts.
//
// A tensor copy fills rows outside of the matrix with zeros at some eight cycles a row, longer than their products take
//. So none is asked for: the last tile begins so far up that it ends with the matrix, and
// computes some rows that the tile before it computes, too, from the same numbers in the same order. Where the matrix is smaller
// than a tile, boxes have as many rows as it has. (The host decides, by last_row, last_column, boxes and stage_bytes: a result that
// is read while others store it, or k cut differently from tile to tile, wants tiles apart.)
#pragma once
#include "ptx_hopper.cuh"
#include "epilogue.cuh"

namespace sassafras {

static constexpr int TILE_K = 64, ROW_BYTES = 128, BLOCK_BYTES = 64 * ROW_BYTES;

// Fields of a matrix descriptor (PTX ISA, "Matrix Descriptor Format" of wgmma): start address in bits 0-13, leading
// dimension offset in 16-29, stride dimension offset in 32-45, each in units of 16 bytes; 1 << 62 is the 128-byte swizzle.
//   K-major:  stride = from 8 rows to the next 8; leading is not used.
//   MN-major: leading = from 64 rows to the next 64, stride = from 8 k to the next 8.
template <bool MN> __device__ __forceinline__ constexpr u64 descriptor(u32 address) {
    constexpr u64 leading = MN ? BLOCK_BYTES : 16, stride = 1024;
    constexpr u64 fixed = (leading >> 4) << 16 | (stride >> 4) << 32 | (u64)1 << 62;
    return fixed | ((address & 0x3FFFF) >> 4);
}

// Which tile a CTA of the split-K kernel has, and which slice or part of k. The GPU places CTAs that follow each other in one GPC, 16
// or so, and what several multiprocessors of a GPC ask for at once is read from the L2 once: so they should form a block of the
// matrix, not a row of it. With a band (of a CTA that multiplies all of k) the grid is (rows of a band, tiles of n, bands); parts that
// leave their sums lie along z, along x whichever of m and n has fewer tiles (a positive band: m).
template <bool ALONE, bool LEAVES> struct Place {
    int x, row, column;

    __device__ __forceinline__ explicit Place(int band) : x(blockIdx.x), row(blockIdx.z), column(blockIdx.y) {
        if constexpr (LEAVES) {
            x = blockIdx.z;
            row = band > 0 ? blockIdx.x : blockIdx.y;
            column = band > 0 ? blockIdx.y : blockIdx.x;
        } else if constexpr (ALONE) {
            if (band > 0) {
                row = blockIdx.z * band + blockIdx.x;
                x = 0;
            }
        }
    }
};

// One operand's tile of ROWS rows, of which each of PARTS CTAs loads an equal part and sends it to all of them (`mask`).
template <int ROWS, bool MN, int PARTS> struct Operand {
    static constexpr int BYTES = ROWS * ROW_BYTES, PART_ROWS = ROWS / PARTS;
    static_assert(ROWS % (MN ? 64 * PARTS : 8 * PARTS) == 0, "parts are whole blocks");

    // z: nothing, or the layer of a tensor of three dimensions
    template <class... Z>
    static __device__ __forceinline__ void load_box(u32 to, const TensorMap *map, int x, int y, u32 mask, u32 barrier, Z... z) {
        if constexpr (PARTS == 1)
            copy_tile(to, map, x, y, z..., barrier);
        else
            copy_tile_multicast(to, map, x, y, z..., barrier, (u16)mask);
    }

    // row, k: the tile's first; part: which one is this CTA's.
    template <class... Z>
    static __device__ __forceinline__ void load(u32 tile, const TensorMap *map, int row, int k, int part, u32 mask, u32 barrier,
                                                Z... z) {
        const u32 to = tile + part * PART_ROWS * ROW_BYTES;
        row += part * PART_ROWS;
        if constexpr (MN) {
#pragma unroll
            for (int block = 0; block < PART_ROWS / 64; ++block)
                load_box(to + block * BLOCK_BYTES, map, row + 64 * block, k, mask, barrier, z...);
        } else {
            load_box(to, map, k, row, mask, barrier, z...);
        }
    }

    // Descriptors in two words: the lower one of a tile's first, to which a 32-bit sum adds row (a multiple of 64) and step (16 k,
    // of the tile's four), and the upper one, which is the same for all. Nothing carries: addresses of shared memory end far
    // below the field's 2^18. Sums like this can be done on the uniform unit.
    static __device__ __forceinline__ constexpr u32 describe_first(u32 tile) { return (u32)descriptor<MN>(tile); }
    static __device__ __forceinline__ u64 describe_from(u32 first, int row, int step) {
        constexpr u64 high = descriptor<MN>(0) & ~0xFFFFFFFFull;
        return high | (first + (row * ROW_BYTES + step * (MN ? 16 * ROW_BYTES : 32)) / 16);
    }
};

// A warp's 16 rows of accumulators, WIDTH columns at a time, on their way out: 16-bit elements in shared memory as TMA
// stores and wide stores want them. TRANSPOSED: C's rows are the accumulators' columns.
// A row takes BYTES, and 16-byte chunks are swizzled as TMA does it for a swizzle of BYTES. WARPS: transposed, so many warps, with
// neighbouring columns of C, fill a buffer together; each has 32 bytes of a line.
template <int BN> static constexpr int STAGED_COLUMNS = BN % 64 == 0 ? 64 : BN % 32 == 0 ? 32 : 16;

template <int WIDTH, bool TRANSPOSED, bool BF16, int WARPS = 1> struct Staging {
    static constexpr int ROWS = TRANSPOSED ? WIDTH : 16, COLUMNS = TRANSPOSED ? 16 * WARPS : WIDTH; // of C
    static constexpr int BYTES = 2 * COLUMNS, SIZE = ROWS * BYTES, CHUNKS = BYTES / 16;
    static_assert(WIDTH % 16 == 0 && (BYTES == 32 || BYTES == 64 || BYTES == 128), "a swizzle exists");

    static __device__ __forceinline__ u32 place(int row, int chunk) {
        const u32 at = row * BYTES + chunk * 16;
        return at ^ (((at >> 7) & (CHUNKS - 1)) << 4);
    }

    // d: the accumulators of columns FROM .. FROM + WIDTH - 1 of the warp's rows. warp: which of WARPS
    template <int FROM, int COUNT>
    static __device__ __forceinline__ void write(u32 buffer, const float (&d)[COUNT], int lane, int warp = 0) {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j += 2) { // 16 columns: four 8x8 matrices
            u32 words[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) words[e] = rounded_pair<BF16>(d[FROM / 2 + 4 * j + 2 * e], d[FROM / 2 + 4 * j + 2 * e + 1]);
            // matrix i: upper or lower 8 rows by its lowest bit, 8 columns by the next
            const int i = lane >> 3, r = lane & 7;
            const u32 at = TRANSPOSED ? place(8 * (j + (i >> 1)) + r, 2 * warp + (i & 1)) : place(8 * (i & 1) + r, j + (i >> 1));
            store_matrices<TRANSPOSED>(buffer + at, words);
        }
    }
};

} // namespace sassafras
