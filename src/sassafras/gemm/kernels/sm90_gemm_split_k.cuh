// HGEMM for few tiles, on tensor copies and WGMMA: C = A * B, FP16 or BF16 in and out, FP32 accumulation.
//
// One tile a CTA, as few steps as possible between launch and store. k may be split over the CTAs of a cluster: their partial sums
// meet in distributed shared memory in a fixed order, and every CTA sums an equal share of the tile, so results are reproducible bit
// for bit and no CTA waits in turn. With LEAVES k is split over the grid: each part leaves its sums in a workspace, and a second
// launch adds them up (sm90_gemm_split_k_reduce.cuh).
//
// What makes the way from launch to the last product short:
//   - The loading warp lets the multiplying ones go as soon as the barriers exist. The first EARLY stages' barriers are initialised
//     first; the others, while the first copies are under way.
//   - A multiplying warp has what the next stage needs in registers before the last one's products are done, and its accumulators
//     begin at zero, so that from a barrier's wait to the first product there is next to nothing.
//   - Slices of k meet while they load, not after the last product, and exchange their sums beside the stages: none waits until
//     the others have read theirs.
//   - A stage may hold two blocks of 64 k: half as many waits, and releases, for tiles whose products are over sooner than these.
//
// Template parameters
//   BM, BN       the CTA's tile. BM: 64 times the multiplying warpgroups; BN: 16 .. 256 (see Products)
//   STAGES       in flight, of BLOCKS blocks of 64 k each
//   CONSUMERS    multiplying warpgroups: 1 or 2, 64 rows each
//   A_MN, B_MN   the operand is contiguous along m or n instead of k
//   BF16         elements are BF16, otherwise FP16
//   SWAPPED      the kernel computes the transpose of C: its A is the caller's B and its m the caller's n. For small m.
//   BLOCKS       of 64 k in a stage; k_tiles and tiles_per_slice count stages
//   LEAD         stages by which the first of two multipliers is ahead at the end, so that it stores while the other multiplies
//   LEAVES       parts only leave their sums
//   EPILOGUE     batches, and what epilogue.cuh describes; grid: tiles of m times matrices of the batch
//   EARLY_B      with EPILOGUE: the problem says `early` where the caller's B was written before the launch ahead of this one began.
//                What of it fits into the stages is copied before that launch has ended, A and what is added at its end
//   JOINED       with EARLY_B: up to three matrices for the caller's B, with a bias each (Parts), none smaller than a tile. Each has
//                tiles of its own, the last of which ends with it; the grid has those of all
//   FOLDS        one CTA multiplies range after range of k (tiles_per_slice each) and adds their sums up in registers, in the order
//                and with the bits of a cluster or of parts that split k at the same places; grid: a single slice
//
// Launch: grid (slices, tiles of n, tiles of m) or as `Place` says; a cluster of 1 to 8 slices; 128 * CONSUMERS + 32 threads; dynamic
// shared memory `with_sums(slices)`. Requires leading dimensions that are multiples of 8 elements and bases aligned to 16 bytes (C's
// row length too: n % 8 == 0). Any m, n, k otherwise.
#pragma once
#include "hopper_tile.cuh"

namespace sassafras {

struct SplitKProblem {
    const TensorMap *map_a, *map_b; // boxes: Operand's
    u16 *c;                         // (m, n), row-major; swapped: (n, m)
    float *workspace;               // with LEAVES: parts * tiles * BM * BN sums
    int m, n;                       // the kernel's
    int ldc;
    int k_tiles;               // stages' worth of k
    int tiles_per_slice;       // of them, in each slice or part; the last may have fewer, none has 0
    int late;                  // successors may start when the operands have been read (0: after the wait for predecessors)
    int last_row, last_column; // where the last tiles begin, at most (hopper_tile.cuh)
    int stage_bytes;           // that arrive for a stage
    int band;                  // see `Place`; 0: as described above
};

struct EarlySplitKProblem : SplitKProblem {
    int early;
};
template <bool EARLY_B> struct SplitKProblemOf {
    using Type = SplitKProblem;
};
template <> struct SplitKProblemOf<true> {
    using Type = EarlySplitKProblem;
};

template <int BM, int BN, int STAGES, int CONSUMERS, bool A_MN, bool B_MN, bool BF16, bool SWAPPED, int BLOCKS, int LEAD = 0,
          bool LEAVES = false, bool EPILOGUE = false, bool EARLY_B = false, bool FOLDS = false, bool JOINED = false>
struct SplitK {
    using Plain = typename JoinedOf<JOINED, typename SplitKProblemOf<EARLY_B>::Type, TensorMap>::Type;
    using Problem = typename ProblemOf<EPILOGUE, Plain>::Type;
    static constexpr int REGISTERS = BN / 2, MULTIPLIERS = 128 * CONSUMERS, THREADS = MULTIPLIERS + 32;
    static_assert(BM == 64 * CONSUMERS, "64 rows a warpgroup");
    static_assert(LEAD == 0 || (CONSUMERS == 2 && LEAD < STAGES), "the first is ahead by stages that are there");
    static_assert(!LEAVES || !EPILOGUE, "an epilogue wants whole sums");
    static_assert(!EARLY_B || EPILOGUE, "a layer has an epilogue");
    static_assert(!JOINED || EARLY_B, "layers that are joined are read early");
    static_assert(!FOLDS || (!LEAVES && LEAD == 0), "ranges end at the same stage in both multipliers");
    using A = Operand<BM, A_MN, 1>;
    using B = Operand<BN, B_MN, 1>;
    static constexpr int BLOCK = A::BYTES + B::BYTES, STAGE = BLOCKS * BLOCK;
    static constexpr int WIDTH = SWAPPED ? BN : STAGED_COLUMNS<BN>;
    using Out = Staging<WIDTH, SWAPPED, BF16>;
    static_assert(BN % WIDTH == 0 && BLOCK % 1024 == 0, "swizzles start afresh");
    using At = Place<!EPILOGUE, LEAVES>;
    // Stages that are filled before the others' barriers exist. Not all (see `load`).
    static constexpr int EARLY = STAGES > 2 ? 2 : 1;
    // named barriers: the stages' barriers are there; the first multiplier has issued its last stage
    static constexpr int READY = 2, LEADING = 3;

    // from a 1024-byte boundary on: stages, a staging buffer of each warp, barriers; where slices exchange their sums
    static constexpr int OUT_AT = STAGES * STAGE, BARRIERS_AT = OUT_AT + CONSUMERS * 4 * Out::SIZE;
    static constexpr int EXCHANGE_AT = BARRIERS_AT + 16 * STAGES * BLOCKS, BYTES = EXCHANGE_AT + 16;
    static constexpr int SUMS_AT = (BYTES + 127) / 128 * 128, SHARED_BYTES = 1024 + BYTES;
    // units of 16 columns in which slices exchange partial sums; two vectors of four a thread
    static constexpr int UNITS = BN / 16, UNIT = 32 * MULTIPLIERS, TERMS = 4;
    static constexpr __device__ int with_sums(int slices) {
        return slices == 1 ? SHARED_BYTES : 1024 + SUMS_AT + slices * ((UNITS + slices - 1) / slices) * UNIT;
    }

    // total += a range's sums, which begin at zero again.
    static __device__ __forceinline__ void fold(float (&total)[REGISTERS], float (&acc)[REGISTERS]) {
#pragma unroll
        for (int i = 0; i < REGISTERS; ++i) {
            total[i] += acc[i];
            acc[i] = 0;
        }
    }

    // acc += products of `tiles` stages. mine: the first stage's `empty`, where this lane tells that it has read; 0 for the
    // other lanes. range: with FOLDS, stages of each range.
    static __device__ __forceinline__ void multiply(float (&acc)[REGISTERS], u32 base, int row, int tiles, u32 mine, int range) {
        // lower words of descriptors: B's of stage 0, and from there to A's
        const u32 first_b = B::describe_first(base + A::BYTES);
        const u32 to_a = A::describe_first(0) - B::describe_first(A::BYTES) + row * (ROW_BYTES / 16);
        int stage = 0, last = 0;
        u32 phase = 0, full = base + BARRIERS_AT, next = broadcast(first_b);
        const bool apart = LEAD > 0 && tiles > STAGES;
        const int pause = apart && row > 0 ? tiles - LEAD : -1;
        float total[FOLDS ? REGISTERS : 1] = {};
        int left = range;
        for (int k = 0; k < tiles; ++k) {
            const u32 b = next, a = b + to_a;
            if constexpr (LEAD > 0) {
                if (k == pause) { // the first one goes on alone; it needs all stages
                    products_wait<0>();
                    if (mine) barrier_arrive(mine + 16 * last);
                    sync_threads(LEADING, 256);
                }
            }
            barrier_wait<2>(full, phase);
            products_fence();
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
                for (int step = 0; step < TILE_K / 16; ++step)
                    Products<BN>::template issue<BF16, A_MN, B_MN>(acc, A::describe_from(a + block * (BLOCK / 16), 0, step),
                                                                  B::describe_from(b + block * (BLOCK / 16), 0, step), 1);
            products_commit();
            const u32 before = mine + 16 * last;
            last = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
            full = base + BARRIERS_AT + 16 * stage;
            next = first_b + stage * (STAGE / 16);
            products_wait<1>(); // the stage before this one has been read
            if (k > 0 && mine && !(LEAD > 0 && k == pause)) barrier_arrive(before);
            if constexpr (FOLDS) {
                if (--left == 0) {
                    left = range;
                    products_wait<0>();
                    settle(acc);
                    fold(total, acc);
                }
            }
        }
        if constexpr (LEAD > 0) {
            if (apart && row == 0) arrive_threads(LEADING, 256);
        }
        products_wait<0>();
        settle(acc);
        if constexpr (FOLDS) { // acc is the last range's sums, or zeros if that has just ended
            fold(total, acc);
#pragma unroll
            for (int i = 0; i < REGISTERS; ++i) acc[i] = total[i];
        }
    }

    // Columns FROM .. FROM + WIDE - 1 of what a warp holds, by way of its buffer. more: with EARLY_B, what is added.
    template <int FROM, int WIDE, int COUNT, class More>
    static __device__ __forceinline__ void put(const Problem &p, float (&d)[COUNT], u32 buffer, int row, int column, int lane,
                                               More &more) {
        using Piece = Staging<WIDE, SWAPPED, BF16>;
        static_assert(Piece::SIZE <= Out::SIZE, "it has a place");
        if constexpr (EARLY_B)
            finish_fragment<FROM, WIDE, BF16, false>(p.out, more, d, row, column, lane);
        else if constexpr (EPILOGUE) {
            Added<WIDE, SWAPPED> now;
            finish_fragment<FROM, WIDE, BF16, true>(p.out, now, d, row, column, lane);
        }
        Piece::template write<FROM>(buffer, d, lane);
        sync_warp();
        const int c_rows = SWAPPED ? p.n : p.m, c_columns = SWAPPED ? p.m : p.n;
        const int row0 = SWAPPED ? column + FROM : row, column0 = SWAPPED ? row : column + FROM;
#pragma unroll
        for (int i = 0; i < (Piece::ROWS * Piece::CHUNKS + 31) / 32; ++i) {
            const int at = i * 32 + lane, r = at / Piece::CHUNKS, chunk = at % Piece::CHUNKS;
            u32 words[4];
            load_shared(words, buffer + Piece::place(r, chunk));
            if (row0 + r < c_rows && column0 + 8 * chunk < c_columns)
                store_global(p.c + (long long)(row0 + r) * p.ldc + column0 + 8 * chunk, words);
        }
        sync_warp();
    }

    template <int FROM, class More>
    static __device__ __forceinline__ void store(const Problem &p, float (&d)[REGISTERS], u32 buffer, int row,
                                                 int column, int lane, More &more) {
        if constexpr (FROM < BN) {
            put<FROM, WIDTH>(p, d, buffer, row, column, lane, more);
            store<FROM + WIDTH>(p, d, buffer, row, column, lane, more);
        }
    }

    // Leaves this warp's sums in the workspace, as its lanes hold them: part after part, in those tile after tile.
    static __device__ __forceinline__ void leave(const Problem &p, const At &at, const float (&acc)[REGISTERS], int warp, int lane) {
        const int across = p.band > 0 ? gridDim.y : gridDim.x, down = p.band > 0 ? gridDim.x : gridDim.y;
        const long long tile = at.column + across * (at.row + (long long)down * at.x);
        float *const to = p.workspace + tile * (BM * BN) + warp * (16 * BN) + 4 * lane;
#pragma unroll
        for (int i = 0; i < REGISTERS / 4; ++i) {
            const float v[4] = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
            store_partial(to + 128 * i, v);
        }
    }

    // Where a CTA's tile begins. (A row of tiles that the last band has beyond the matrix computes the last one's again. Asking whether
    // it might end at once gains little, and made every short launch some 1 % longer in the forms that were tried.)
    struct Tile {
        int row, column;

        __device__ __forceinline__ Tile(const Problem &p, int tile_m, int tile_n)
            : row(least(tile_m * BM, p.last_row)), column(least(tile_n * BN, p.last_column)) {
            if constexpr (JOINED) (SWAPPED ? row : column) = in_part(p, SWAPPED ? tile_m : tile_n);
        }

        // Where a tile begins of those that the parts have.
        static __device__ __forceinline__ int in_part(const Problem &p, int tile) {
            constexpr int LINES = SWAPPED ? BM : BN;
            const int second = p.parts.second_column, third = p.parts.third_column;
            const int of_first = (second + LINES - 1) / LINES, of_second = (third - second + LINES - 1) / LINES;
            int begin = 0, end = second;
            if (tile >= of_first) {
                tile -= of_first, begin = second, end = third;
                if (tile >= of_second) tile -= of_second, begin = third, end = SWAPPED ? p.m : p.n;
            }
            return begin + least(tile * LINES, end - begin - LINES);
        }
    };

    // By one thread (a lane for each stage would take turns: the instruction's address is uniform).
    template <int FROM, int TO> static __device__ __forceinline__ void initialise(const Problem &p, u32 base) {
        if constexpr (FROM == 0) { // maps come while barriers are initialised
            prefetch_map(p.map_a);
            prefetch_map(p.map_b);
        }
#pragma unroll
        for (int stage = FROM; stage < TO; ++stage) {
            barrier_init(base + BARRIERS_AT + 16 * stage, 1);
            barrier_init(base + BARRIERS_AT + 16 * stage + 8, 4 * CONSUMERS);
        }
        barrier_init_fence();
    }

    // Copies of the first stages' contents, one of the operands alone. The caller's B (FIXED) comes first, and says what all bring.
    template <bool FIXED>
    static __device__ __forceinline__ void load_first(const Problem &p, const Tile &at_tile, u32 base, int first, int stages) {
        for (int k = 0; k < stages; ++k) {
            const u32 full = base + BARRIERS_AT + 16 * k, tile = base + k * STAGE;
            if constexpr (FIXED) barrier_expect(full, p.stage_bytes);
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                const int at = ((first + k) * BLOCKS + block) * TILE_K;
                const u32 to_a = tile + block * BLOCK;
                if constexpr (FIXED == SWAPPED)
                    A::load(to_a, p.map_a, at_tile.row, at, 0, 0, full, p.out.batch_a ? batch_of(p) : 0);
                else
                    B::load(to_a + A::BYTES, p.map_b, at_tile.column, at, 0, 0, full, p.out.batch_b ? batch_of(p) : 0);
            }
        }
    }

    // Copies of stage contents from..to-1 of this CTA's slice. AGAIN: some stages are used again.
    template <bool AGAIN>
    static __device__ __forceinline__ void load(const Problem &p, const Tile &at_tile, u32 base, int first, int from, int to) {
        const int row = at_tile.row, column = at_tile.column;
        int stage = from; // below STAGES
        u32 phase = 1;
        if constexpr (EARLY_B) {
            if (from == STAGES) stage = phase = 0;
        }
        for (int k = from; k < to; ++k) {
            const u32 full = base + BARRIERS_AT + 16 * stage, tile = base + stage * STAGE;
            if (AGAIN && k >= STAGES) barrier_wait<1>(full + 8, phase);
            barrier_expect(full, p.stage_bytes);
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                const int at = ((first + k) * BLOCKS + block) * TILE_K;
                const u32 to_a = tile + block * BLOCK, to_b = to_a + A::BYTES;
                if constexpr (EPILOGUE) {
                    A::load(to_a, p.map_a, row, at, 0, 0, full, p.out.batch_a ? batch_of(p) : 0);
                    B::load(to_b, p.map_b, column, at, 0, 0, full, p.out.batch_b ? batch_of(p) : 0);
                } else {
                    A::load(to_a, p.map_a, row, at, 0, 0, full);
                    B::load(to_b, p.map_b, column, at, 0, 0, full);
                }
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }

    static __device__ __forceinline__ void run_batched(Problem p) { // with EPILOGUE
        move_result(p);
        if constexpr (JOINED) { // the tile's part
            const auto &parts = p.parts;
            const int line = Tile::in_part(p, SWAPPED ? tile_row(p) : blockIdx.y);
            const TensorMap *&map = SWAPPED ? p.map_a : p.map_b;
            map = parts.of(line, map, parts.second, parts.third);
            p.out.bias = parts.of(line, p.out.bias, parts.second_bias, parts.third_bias);
            if (p.out.bias) p.out.bias -= line - parts.within(line);
        }
        run(p);
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        const u32 base = broadcast((shared_address(shared_floats()) + 1023) & ~1023u); // a broadcast, lest every stage compute it
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const At place(p.band);
        const int slices = LEAVES || FOLDS ? 1 : !EPILOGUE && p.band > 0 ? 1 : gridDim.x, slice = LEAVES || FOLDS ? 0 : place.x;
        const Tile tile(p, EPILOGUE ? tile_row(p) : place.row, place.column);
        Tile source = tile; // of operands
        if constexpr (JOINED) (SWAPPED ? source.row : source.column) = p.parts.within(SWAPPED ? tile.row : tile.column);
        const int first = place.x * p.tiles_per_slice, tiles = FOLDS ? p.k_tiles : min(p.tiles_per_slice, p.k_tiles - first);
        float acc[REGISTERS];
        [[maybe_unused]] Added<EARLY_B ? BN : 16, SWAPPED> more;
        [[maybe_unused]] const int loaded = min(tiles, EARLY_B ? STAGES : EARLY); // stages, before the others go on

        if (warp == 4 * CONSUMERS) {
            if constexpr (EARLY_B) { // the others load what they add while this warp copies
                if (elected()) initialise<0, STAGES>(p, base);
                sync_warp();
                arrive_threads(READY, THREADS);
            }
            if (elected()) {
                if constexpr (!EARLY_B) initialise<0, EARLY>(p, base);
                else if (p.early) load_first<true>(p, source, base, first, loaded);
                wait_for_predecessors(); // the others touch global memory only after what these copies bring, or wait, too
                if (!p.late) start_successors();
                if constexpr (EARLY_B) {
                    if (p.early) load_first<false>(p, source, base, first, loaded);
                    else load<false>(p, source, base, first, 0, loaded);
                } else {
                    load<false>(p, source, base, first, 0, min(tiles, EARLY));
                    initialise<EARLY, STAGES>(p, base);
                }
                if (slices > 1) expect_sums(base, slice, slices);
            }
            sync_warp();
            if constexpr (!EARLY_B) arrive_threads(READY, THREADS); // the multiplying warps go on, this one does not wait for them
            if (slices > 1) arrive_at_cluster();                    // the other slices may send
            if (elected()) load<true>(p, source, base, first, EARLY_B ? loaded : EARLY, tiles);
            sync_warp();
        } else {
#pragma unroll
            for (int i = 0; i < REGISTERS; ++i) acc[i] = 0;
            u32 mine = lane == 0 ? base + BARRIERS_AT + 8 : 0;
            keep(mine);
            if (slices > 1) arrive_at_cluster();
            sync_threads(READY, THREADS);
            if constexpr (EPILOGUE) wait_for_predecessors(); // all threads read bias and addend
            // never; but without a branch here the compiler computes the descriptors in all lanes, and moves them
            if (tiles < 1) return;
            if constexpr (EARLY_B) {
                const int row = tile.row + 16 * warp, each = units_each(slices);
                if (slices == 1) more.load(p.out, row, tile.column, lane);
                else if (slice * each < UNITS) more.template load<16>(p.out, row, tile.column + 16 * slice * each, lane);
            }
            multiply(acc, base, 64 * (int)broadcast(warp >> 2), tiles, mine, p.tiles_per_slice);
            if (p.late) start_successors();
            if constexpr (LEAVES)
                leave(p, place, acc, warp, lane);
            else if (slices == 1)
                store<0>(p, acc, base + OUT_AT + warp * Out::SIZE, tile.row + 16 * warp, tile.column, lane, more);
        }
        if (slices == 1) return;
        wait_for_cluster(); // they expect each other's sums
        if (warp < 4 * CONSUMERS) sum_up(p, acc, more, base, slice, slices, tile.row, tile.column, thread);
    }

    // Units that a slice takes of a tile; the last ones may find fewer, or none.
    static __device__ __forceinline__ int units_each(int slices) { return (u32)(UNITS + slices - 1) / (u32)slices; }
    static __device__ __forceinline__ int units_of(int slice, int each) {
        const int left = UNITS - slice * each;
        return left > each ? each : left > 0 ? left : 0;
    }

    // Before the cluster meets: its slices will send to us what we sum.
    static __device__ __forceinline__ void expect_sums(u32 base, int slice, int slices) {
        barrier_init(base + EXCHANGE_AT, 1);
        barrier_init_fence();
        barrier_expect(base + EXCHANGE_AT, slices * units_of(slice, units_each(slices)) * UNIT);
    }

    // Slices (two and more) exchange partial sums, and each stores its units of the tile: the sums over all slices, in their
    // order. All send at once, and begins with another receiver: one that all send to first would hold up all.
    // What a thread holds of a unit goes to the thread that holds the same elsewhere, so nothing is transposed on the way.
    template <class More>
    static __device__ __forceinline__ void sum_up(const Problem &p, const float (&acc)[REGISTERS], More &more, u32 base, int slice,
                                                  int slices, int row0, int column0, int thread) {
        const int lane = thread & 31, warp = thread >> 5, each = units_each(slices);
        const u32 mine = base + SUMS_AT + 16 * thread;
#pragma unroll 1
        for (int turn = 0; turn < slices; ++turn) {
            const int to = slice + turn < slices ? slice + turn : slice + turn - slices;
            const u32 place = remote_address(mine + slice * each * UNIT, to);
            const u32 barrier = remote_address(base + EXCHANGE_AT, to);
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit) {
                const u32 at = unit - to * each;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float v[4] = {acc[8 * unit + 4 * h], acc[8 * unit + 4 * h + 1], acc[8 * unit + 4 * h + 2],
                                        acc[8 * unit + 4 * h + 3]};
                    store_async(place + at * UNIT + h * (UNIT / 2), v, barrier, at < (u32)each);
                }
            }
        }
        const int units = units_of(slice, each), column = column0 + 16 * slice * each;
        const u32 buffer = base + OUT_AT + warp * Out::SIZE;
        barrier_wait<4>(base + EXCHANGE_AT, 0);
#pragma unroll 1
        for (int unit = 0; unit < units; ++unit) {
            float sum[8] = {};
#pragma unroll 1
            for (int first = 0; first < slices; first += TERMS) {
                u32 words[2 * TERMS][4] = {}; // absent terms are zeros: they change no sum
#pragma unroll
                for (int i = 0; i < 2 * TERMS; ++i)
                    if (first + i / 2 < slices)
                        load_shared(words[i], mine + ((first + i / 2) * each + unit) * UNIT + i % 2 * (UNIT / 2));
#pragma unroll
                for (int i = 0; i < 2 * TERMS; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[i % 2 * 4 + e] += as_float(words[i][e]);
            }
            put<0, 16>(p, sum, buffer, row0 + 16 * warp, column + 16 * unit, lane, more);
            if constexpr (EARLY_B) { // what the first unit adds was loaded ahead
                if (unit + 1 < units) more.template load<16>(p.out, row0 + 16 * warp, column + 16 * unit + 16, lane);
            }
        }
    }
};

} // namespace sassafras
