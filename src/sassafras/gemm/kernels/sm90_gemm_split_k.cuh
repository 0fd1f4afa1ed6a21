// HGEMM for few tiles, on tensor copies and WGMMA: C = A * B, FP16 or BF16 in and out, FP32 accumulation.
//
// One tile a CTA, as few steps as possible between launch and store: the loading warp initialises the barriers and sends
// its first copies before anybody else is ready; warps stage and store their own 16 rows without meeting the others.
// k may be split over the CTAs of a cluster. Their partial sums meet in distributed shared memory in a fixed order:
// every CTA sums an equal share of the tile, so results are reproducible bit for bit and nobody waits in turn.
// Several clusters may split k further: each leaves its sums in a workspace, and whoever arrives last at a counter adds
// all of them, again in the order of k. Nobody waits; the counter is left at zero. Without slices each warp does that for its
// own 16 rows, straight from and to its accumulators; with slices each CTA does it for its share of the tile.
// CTAs of a cluster may also be neighbours that share operands: along m they share B's tile, along n A's. Each loads a
// part of what is shared and sends it to all; the L2 is read as often as if one large tile stood there.
//
// Template parameters
//   BM, BN       the CTA's tile. BM: 64 times the multiplying warpgroups; BN: 16 .. 256 (see Products)
//   STAGES       k tiles in flight
//   CONSUMERS    multiplying warpgroups: 1 or 2, 64 rows each
//   A_MN, B_MN   the operand is contiguous along m or n instead of k
//   BF16         elements are BF16, otherwise FP16
//   SWAPPED      the kernel computes the transpose of C: its A is the caller's B and its m the caller's n. For small m.
//   SHARED       neighbours of a cluster share operands; otherwise share_m and share_n are 1
//   EPILOGUE     batches, and what epilogue.cuh describes; grid: tiles of m times matrices of the batch; not SHARED
//
// Launch: grid (slices * parts, tiles of n, tiles of m) or as `Place` says, the latter two rounded up to multiples of the cluster (slices, share_n,
// share_m) of 1 to 8 CTAs; share_m, share_n, and with several parts slices are powers of two; 128 * CONSUMERS + 32 threads; dynamic shared memory as `ClusterSplitConfig.shared_bytes` says. Requires leading dimensions that are multiples of 8 elements
// and bases aligned to 16 bytes (C's row length too: n % 8 == 0). Any m, n, k otherwise.
#pragma once
#include "hopper_tile.cuh"

namespace sassafras {

struct ClusterSplitProblem {
    const TensorMap *map_a, *map_b; // boxes: Operand's
    u16 *c;                         // (m, n), row-major; swapped: (n, m)
    float *workspace;               // parts * tiles * BM * BN sums
    u32 *counters;                  // tiles * slices * multiplying warps; zero
    int m, n;                       // the kernel's
    int ldc;
    int k_tiles;         // of 64
    int tiles_per_slice; // k tiles of each slice of each part; the last may have fewer, none has 0
    int parts;           // clusters that split k
    int log2_slices;     // of slices, where there are several parts
    int late;            // successors may start when the operands have been read (0: after the wait for predecessors)
    int share_m, share_n; // neighbours in a cluster
    int rows_a, rows_b;   // of a tile of A, of B, that each of them loads
    int all_a, all_b;     // masks of those that want the first CTA's A, B
    int last_row, last_column; // where the last tiles begin, at most (hopper_tile.cuh)
    int stage_bytes;      // that arrive for a stage
    int band;             // see `Place`; 0: as described above, and for neighbours that share always
};

// Which tile a CTA has, and which of the parts and slices of k. The GPU places CTAs that follow each other in one GPC, 16 or so,
// and what several multiprocessors of a GPC ask for at once is read from the L2 once: so they should form a block of the matrix,
// not a row of it (docs/experiments/hgemm-launch.md). With a band (of a CTA that multiplies all of k) the grid is
// (rows of a band, tiles of n, bands); parts that leave their sums lie along z, along x whichever of m and n has fewer tiles (a
// positive band: m).
template <bool ALONE, bool LEAVES> struct Place {
    int x, row, column;

    __device__ __forceinline__ explicit Place(int band) : x(blockIdx.x), row(blockIdx.z), column(blockIdx.y) {
        if constexpr (ALONE && LEAVES) {
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

// Where a CTA stands among its neighbours, and which ranks want the same tile of A, of B (itself included).
struct Neighbours {
    int m, n;
    u32 want_a, want_b;

    __device__ __forceinline__ Neighbours(const ClusterSplitProblem &p, int slice, int slices)
        : m(blockIdx.z & (p.share_m - 1)), n(blockIdx.y & (p.share_n - 1)),
          want_a(p.all_a << (slice + slices * (p.share_n * m))), want_b(p.all_b << (slice + slices * n)) {}
};

template <int BM, int BN, int STAGES, int CONSUMERS, bool A_MN, bool B_MN, bool BF16, bool SWAPPED, bool SHARED,
          bool EPILOGUE = false>
struct ClusterSplit {
    using Problem = typename ProblemOf<EPILOGUE, ClusterSplitProblem>::Type;
    static_assert(!EPILOGUE || !SHARED, "clusters do not cross from matrix to matrix");
    static constexpr int REGISTERS = BN / 2, MULTIPLIERS = 128 * CONSUMERS, THREADS = MULTIPLIERS + 32;
    static_assert(BM == 64 * CONSUMERS, "64 rows a warpgroup");
    using A = Operand<BM, A_MN, 1>;
    using B = Operand<BN, B_MN, 1>;
    static constexpr int STAGE = A::BYTES + B::BYTES;
    static constexpr int WIDTH = SWAPPED ? BN : STAGED_COLUMNS<BN>;
    using Out = Staging<WIDTH, SWAPPED, BF16>;
    static_assert(BN % WIDTH == 0 && STAGE % 1024 == 0, "swizzles start afresh");
    // from a 1024-byte boundary on: stages, a staging buffer of each warp, barriers. Partial sums take the place of stages.
    static constexpr int OUT_AT = STAGES * STAGE, BARRIERS_AT = OUT_AT + CONSUMERS * 4 * Out::SIZE;
    // units of 16 columns in which slices exchange partial sums, by way of the stages; two vectors of four a thread
    static constexpr int UNITS = BN / 16, UNIT = 32 * MULTIPLIERS, TERMS = 4;
    static constexpr int EXCHANGE_AT = BARRIERS_AT + 16 * STAGES, BYTES = EXCHANGE_AT + 16;
    static_assert(2 * ((UNITS + 1) / 2) * UNIT <= OUT_AT, "more stages: partial sums do not fit");
    static constexpr int SHARED_BYTES = 1024 + BYTES;

    // Everybody who sends to this stage learns that a warp has read it.
    static __device__ __forceinline__ void release(u32 empty, u32 senders, int lane) {
        if constexpr (SHARED) {
            if (lane < 8 && (senders >> lane & 1)) barrier_arrive_remote(empty, lane);
        } else {
            if (lane == 0) barrier_arrive(empty);
        }
    }

    // While a k tile is late, wide tiles give back all stages that have been read: asked so often whether it has landed, the
    // products under way (2 * BN cycles a warpgroup) are done. Asking, and keeping count of stages, makes the way from one k tile's
    // products to the next ones' longer (40 ns, measured), which narrow tiles do not cover: those wait at once.
    static constexpr int PATIENCE = BN >= 128 && CONSUMERS * BN >= 192 ? CONSUMERS * BN / 22 + 1 : 0;

    static __device__ __forceinline__ void multiply(float (&acc)[REGISTERS], u32 base, int row, int tiles, u32 senders, int lane) {
        int stage = 0, behind = 0, under_way = 0; // next to be read, next to be released, k tiles between the two
        u32 phase = 0;
        // lower words of descriptors: B's of stage 0, and from there to A's
        const u32 first_b = B::describe_first(base + A::BYTES);
        const u32 to_a = A::describe_first(0) - B::describe_first(A::BYTES) + row * (ROW_BYTES / 16);
        const auto release_one = [&] {
            release(base + BARRIERS_AT + 16 * behind + 8, senders, lane);
            behind = behind + 1 == STAGES ? 0 : behind + 1;
            --under_way;
        };
        for (int k = 0; k < tiles; ++k) {
            // from lane 0, so that the compiler knows it to be uniform, and sums stay off the vector units
            const u32 b = broadcast(first_b + stage * (STAGE / 16)), a = b + to_a, full = base + BARRIERS_AT + 16 * stage;
            if constexpr (PATIENCE > 0) {
                if (!barrier_soon<PATIENCE>(full, phase)) { // it will take longer
                    products_wait<0>();
#pragma unroll 1
                    while (under_way > 0) release_one();
                    barrier_wait<2>(full, phase);
                }
            } else {
                barrier_wait<2>(full, phase);
            }
            products_fence();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
                Products<BN>::template issue<BF16, A_MN, B_MN>(acc, A::describe_from(a, 0, step), B::describe_from(b, 0, step),
                                                              k > 0 || step > 0);
            products_commit();
            products_wait<1>(); // the k tile before this one has been read
            if constexpr (PATIENCE > 0) {
                if (under_way++ == 1) release_one();
            } else {
                if (k > 0) release(base + BARRIERS_AT + 16 * behind + 8, senders, lane);
                behind = stage;
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        products_wait<0>();
        settle(acc);
    }

    // Columns FROM .. FROM + WIDE - 1 of what a warp holds, by way of its buffer.
    template <int FROM, int WIDE, int COUNT>
    static __device__ __forceinline__ void put(const Problem &p, float (&d)[COUNT], u32 buffer, int row, int column, int lane) {
        using Piece = Staging<WIDE, SWAPPED, BF16>;
        static_assert(Piece::SIZE <= Out::SIZE, "it has a place");
        if constexpr (EPILOGUE) finish_fragment<FROM, WIDE, SWAPPED, BF16>(p.out, row, column, d, lane);
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

    template <int FROM>
    static __device__ __forceinline__ void store(const Problem &p, float (&d)[REGISTERS], u32 buffer, int row,
                                                 int column, int lane) {
        if constexpr (FROM < BN) {
            put<FROM, WIDTH>(p, d, buffer, row, column, lane);
            store<FROM + WIDTH>(p, d, buffer, row, column, lane);
        }
    }

    static __device__ __forceinline__ void run_batched(Problem p) { // with EPILOGUE
        move_result(p);
        run(p);
    }

    // Where a CTA's tile begins. (A row of tiles that the last band has beyond the matrix computes the last one's again. Asking whether
    // it might end at once gains little, and made every short launch some 1 % longer in the forms that were tried.)
    struct Tile {
        int row, column;

        __device__ __forceinline__ Tile(const Problem &p, int tile_m, int tile_n)
            : row(least(tile_m * BM, p.last_row)), column(least(tile_n * BN, p.last_column)) {}
    };

    static __device__ __forceinline__ void run(const Problem &p) {
        const u32 base = broadcast((shared_address(shared_floats()) + 1023) & ~1023u); // a broadcast, lest every k tile compute it
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        // along x lie the slices of the first part, of the next ...
        const Place<!SHARED && !EPILOGUE, false> place(p.band);
        const int slices = p.parts > 1 ? 1 << p.log2_slices : !SHARED && !EPILOGUE && p.band > 0 ? 1 : gridDim.x;
        const int slice = p.parts == 1 ? place.x : place.x & (slices - 1);
        const Neighbours near(p, slice, slices);
        const Tile tile(p, EPILOGUE ? tile_row(p) : place.row, place.column);
        const int first = place.x * p.tiles_per_slice, tiles = min(p.tiles_per_slice, p.k_tiles - first);
        float acc[REGISTERS];

        if (warp == 4 * CONSUMERS) {
            if (elected()) {
                prefetch_map(p.map_a); // under way while barriers are initialised, and while a launch before this one ends
                prefetch_map(p.map_b);
                const int releases = SHARED ? 4 * CONSUMERS * (p.share_m + p.share_n - 1) : 4 * CONSUMERS;
                for (int s = 0; s < STAGES; ++s) {
                    barrier_init(base + BARRIERS_AT + 16 * s, 1);
                    barrier_init(base + BARRIERS_AT + 16 * s + 8, releases);
                }
                barrier_init_fence();
                wait_for_predecessors(); // the others touch global memory only after what these copies bring
                if (!p.late) start_successors();
                load<OWN>(p, near, tile, base, first, 0, min(tiles, STAGES));
            }
            sync_warp();
        }
        if constexpr (SHARED)
            meet_cluster(); // nobody sends before all barriers are there
        else
            sync_cta(); // the others see the barriers
        if constexpr (EPILOGUE) wait_for_predecessors(); // all threads read bias and addend
        if (warp == 4 * CONSUMERS) {
            if (elected()) {
                if constexpr (SHARED) load<OTHERS>(p, near, tile, base, first, 0, min(tiles, STAGES));
                load<OWN | OTHERS>(p, near, tile, base, first, STAGES, tiles);
                if (slices > 1) expect_sums(base, slice, slices);
            }
            sync_warp();
            if (SHARED && slices == 1) arrive_at_cluster();
        } else {
            multiply(acc, base, 64 * (int)broadcast(warp >> 2), tiles, near.want_a | near.want_b, lane);
            if (p.late) start_successors();
            if (SHARED && slices == 1) arrive_at_cluster();
            if (slices == 1 && (p.parts == 1 || add_parts(p, acc, base, thread)))
                store<0>(p, acc, base + OUT_AT + warp * Out::SIZE, tile.row + 16 * warp, tile.column, lane);
        }
        if (slices == 1) {
            if constexpr (SHARED) wait_for_cluster(); // others may still arrive at our barriers
            return;
        }
        meet_cluster(); // all stages of all slices have been read, and they expect each other's sums
        if (warp < 4 * CONSUMERS)
            sum_up(p, acc, base, SHARED ? slices * (near.n + p.share_n * near.m) : 0, slice, slices, tile.row, tile.column, thread);
    }

    // A warp has left its sums in the workspace. True for the last of all parts, who finds the others' there.
    static __device__ __forceinline__ bool arrives_last(u32 *counter, int parts, int lane) {
        sync_threads(1, MULTIPLIERS); // shared memory is free
        u32 before = 0;
        if (lane == 0) before = count_up(counter); // releases what all lanes have written
        sync_warp();
        if (broadcast(before) != (u32)parts - 1) return false;
        if (lane == 0) store_counter(counter, 0);
        return true;
    }

    // Parts of one slice: leaves this warp's sums in the workspace, as its lanes hold them; if all others have left theirs,
    // acc becomes the sum of all. True if so.
    static __device__ __forceinline__ bool add_parts(const ClusterSplitProblem &p, float (&acc)[REGISTERS], u32 base, int thread) {
        const int lane = thread & 31, warp = thread >> 5, tile = blockIdx.y + gridDim.y * blockIdx.z;
        const long long stride = (long long)gridDim.y * gridDim.z * (BM * BN);
        float *const sums = p.workspace + (long long)tile * (BM * BN) + warp * (16 * BN) + 4 * lane;
#pragma unroll
        for (int i = 0; i < REGISTERS / 4; ++i) {
            const float v[4] = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
            store_partial(sums + blockIdx.x * stride + 128 * i, v);
        }
        if (!arrives_last(p.counters + tile * (4 * CONSUMERS) + warp, p.parts, lane)) return false;
        const auto place = [=](int i, bool &wanted) {
            wanted = true;
            return (const float *)(sums + 128 * i);
        };
        PartialSums<MULTIPLIERS, OUT_AT / (16 * MULTIPLIERS), decltype(place)> parts(base, thread, REGISTERS / 4, p.parts,
                                                                                    stride, place);
#pragma unroll
        for (int i = 0; i < REGISTERS / 4; ++i) {
            float sum[4];
            parts.next(sum);
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[4 * i + e] = sum[e];
        }
        return true;
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
    // order. Everybody sends at once, and begins with another receiver: one that all send to first would hold up all.
    // What a thread holds of a unit goes to the thread that holds the same elsewhere, so nothing is transposed on the way.
    // rank0: slice 0's. SUMS_AT: where in shared memory they meet; 0: in place of the stages.
    template <int SUMS_AT = 0>
    static __device__ __forceinline__ void sum_up(const Problem &p, const float (&acc)[REGISTERS], u32 base, int rank0, int slice,
                                                  int slices, int row0, int column0, int thread) {
        const int lane = thread & 31, warp = thread >> 5, each = units_each(slices);
        const u32 mine = base + SUMS_AT + 16 * thread;
#pragma unroll 1
        for (int turn = 0; turn < slices; ++turn) {
            const int to = slice + turn < slices ? slice + turn : slice + turn - slices;
            const u32 place = remote_address(mine + slice * each * UNIT, rank0 + to);
            const u32 barrier = remote_address(base + EXCHANGE_AT, rank0 + to);
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
        // this slice's sums of all parts, part after part
        const int tile = blockIdx.y + gridDim.y * blockIdx.z, part = p.parts == 1 ? 0 : blockIdx.x >> p.log2_slices;
        const long long stride = (long long)gridDim.y * gridDim.z * (BM * BN);
        float *const sums = p.workspace + (long long)tile * (BM * BN) + slice * each * (UNIT / 4) + 4 * thread;
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
            if (p.parts == 1) {
                put<0, 16>(p, sum, buffer, row0 + 16 * warp, column + 16 * unit, lane);
            } else {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float v[4] = {sum[4 * h], sum[4 * h + 1], sum[4 * h + 2], sum[4 * h + 3]};
                    store_partial(sums + part * stride + (2 * unit + h) * (UNIT / 8), v);
                }
            }
        }
        if (p.parts == 1) return;
        if (!arrives_last(p.counters + (slice + slices * tile) * (4 * CONSUMERS) + warp, p.parts, lane)) return;
        const auto place = [=](int i, bool &wanted) {
            wanted = true;
            return (const float *)(sums + i * (UNIT / 8));
        };
        PartialSums<MULTIPLIERS, OUT_AT / (16 * MULTIPLIERS), decltype(place)> parts(base, thread, 2 * units, p.parts, stride,
                                                                                    place);
#pragma unroll 1
        for (int unit = 0; unit < units; ++unit) {
            float half[4], sum[8];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                parts.next(half);
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[4 * h + e] = half[e];
            }
            put<0, 16>(p, sum, buffer, row0 + 16 * warp, column + 16 * unit, lane);
        }
    }

    // k tiles from..to-1 of this CTA's slice; those from STAGES on wait for their stage. WHAT: OWN operands, which no other CTA
    // reads, those that OTHERS read as well, or both.
    static constexpr int OWN = 1, OTHERS = 2;
    template <int WHAT>
    static __device__ __forceinline__ void load(const Problem &p, const Neighbours &near, const Tile &at_tile, u32 base,
                                                int first, int from, int to) {
        const int row = at_tile.row, column = at_tile.column;
        int stage = 0;
        u32 phase = 0;
        for (int k = from; k < to; ++k) {
            const u32 full = base + BARRIERS_AT + 16 * stage, tile = base + stage * STAGE;
            const int at = (first + k) * TILE_K;
            if constexpr (WHAT & OWN) {
                if (from > 0) barrier_wait<1>(full + 8, phase);
                barrier_expect(full, p.stage_bytes);
            }
            if constexpr (SHARED) {
                // a copy to oneself alone is no multicast: those are slower
                if (p.share_n > 1) {
                    if constexpr (WHAT & OTHERS) A::load_part(tile, p.map_a, row, at, near.n, p.rows_a, near.want_a, full);
                } else if constexpr (WHAT & OWN) {
                    A::load(tile, p.map_a, row, at, 0, 0, full);
                }
                if (p.share_m > 1) {
                    if constexpr (WHAT & OTHERS)
                        B::load_part(tile + A::BYTES, p.map_b, column, at, near.m, p.rows_b, near.want_b, full);
                } else if constexpr (WHAT & OWN) {
                    B::load(tile + A::BYTES, p.map_b, column, at, 0, 0, full);
                }
            } else if constexpr (EPILOGUE) {
                A::load(tile, p.map_a, row, at, 0, 0, full, p.out.batch_a ? batch_of(p) : 0);
                B::load(tile + A::BYTES, p.map_b, column, at, 0, 0, full, p.out.batch_b ? batch_of(p) : 0);
            } else {
                A::load(tile, p.map_a, row, at, 0, 0, full);
                B::load(tile + A::BYTES, p.map_b, column, at, 0, 0, full);
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
};

} // namespace sassafras
