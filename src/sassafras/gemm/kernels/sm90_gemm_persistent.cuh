// Warp-specialised persistent HGEMM for Hopper: C = A * B, FP16 or BF16 in and out, FP32 accumulation.
//
// One warpgroup loads (a single thread issues tensor copies), the others multiply (WGMMA, both operands from shared
// memory) and store. They meet at mbarriers: `full` says that a stage's bytes have landed, `empty` that it has been
// read. CTAs are persistent: the loader runs ahead into the next tile while the multipliers store the last one, and
// their stores (TMA, from small buffers of each warp) drain while the next tile is multiplied.
//
// Cooperative: the multipliers share a tile, 64 or 128 rows each. Ping-pong: they take whole tiles by turns, so that one
// stores while the other multiplies. `turn` passes from one to the next when the last k tile has been taken: without it
// a multiplier could mistake an earlier phase of a stage for its own, since only the parity is compared.
// Clusters: neighbouring tiles share operands; each CTA loads a part of what it shares and sends it to all that do.
//
// Tiles are visited in bands (`Work::place`), so that CTAs at work share operands in the L2.
//
// Template parameters
//   BM, BN       the CTA's tile. BM: 64 or 128 times the multipliers that share it. BN: 16 .. 256 (see Products)
//   STAGES       k tiles in flight
//   CONSUMERS    multiplying warpgroups, 1 to 3
//   PING_PONG    they take tiles by turns
//   CLUSTER_M, CLUSTER_N   CTAs of a cluster along m (sharing B) and along n (sharing A), powers of two, at most 8 in all
//   A_MN, B_MN   the operand is contiguous along m or n instead of k
//   BF16         elements are BF16, otherwise FP16
//   SWAPPED      the kernel computes the transpose of C: its A is the caller's B and its m the caller's n. For small m; with
//                PING_PONG tall tiles for all m, whose warps store together, so that whole lines of C leave
//   BUFFERS      store buffers of each warp
//   EPILOGUE     batches, and what epilogue.cuh describes; tiles_m counts the tiles of all matrices of the batch
//   LEAD         k tiles by which the first of two cooperative multipliers is ahead at a tile's end, so that it stores while the
//                other still multiplies; 0: they end together, and the tensor cores are idle while both store
//   FOLDS        k is multiplied range after range, whose sums are added up in registers, in the order and with the bits of a cluster
//                that splits k at the same places. A tile is stored while the next one's first products are under way, and LEAD is
//                at each range's end, so that the tensor cores have products of one multiplier while the other adds
//
//   PAIR         SwiGLU's pair (EPILOGUE, K-major operands): half of a tile's columns are of the gate's weight, the others the same ones
//                of up's, so that a thread has both sums of an element of C, which is as wide as either weight. `out.batch_b`: the
//                layer of up's weight in its map
//
// Launch: grid (clusters * cluster size), cluster (CLUSTER_M * CLUSTER_N), 128 * (CONSUMERS + 1) threads, dynamic shared
// memory as `PersistentInstance.shared_bytes` says. Requires leading dimensions that are multiples of 8 elements and
// bases aligned to 16 bytes. Any m, n, k otherwise: TMA fills with zeros and clips.
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

template <int BM, int BN, int STAGES, int CONSUMERS, bool PING_PONG, int CLUSTER_M, int CLUSTER_N, bool A_MN, bool B_MN,
          bool BF16, bool SWAPPED, int BUFFERS, int LEAD = 0, bool EPILOGUE = false, bool FOLDS = false, bool PAIR = false>
struct Persistent {
    using Problem = typename ProblemOf<EPILOGUE, typename PersistentProblemOf<FOLDS, PAIR>::Type>::Type;
    static constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
    static constexpr int SHARERS = PING_PONG ? 1 : CONSUMERS; // multipliers of one tile
    static constexpr int ROWS = BM / SHARERS, BLOCKS = ROWS / 64, REGISTERS = BN / 2;
    static constexpr int THREADS = 128 * (CONSUMERS + 1);
    static_assert(CLUSTER <= 8 && ROWS % 64 == 0 && BM % SHARERS == 0, "see the list above");
    static constexpr bool TOGETHER = SWAPPED && PING_PONG; // the warps of a multiplier fill a store buffer: 16 columns of C each
    static_assert(!SWAPPED || (TOGETHER ? BN >= 64 : BLOCKS == 1), "swapped tiles are narrow, or stored by 64 rows of C");
    static_assert(LEAD == 0 || (CONSUMERS == 2 && !PING_PONG && LEAD < STAGES), "the first is ahead by stages that are there");
    static_assert(!FOLDS || (!PING_PONG && !SWAPPED && BLOCKS == 1), "two sets of accumulators have room");
    static_assert(!PAIR || (EPILOGUE && !SWAPPED && !FOLDS && !B_MN), "gate and up are rows of B, and columns of C");
    static constexpr int HALVES = PAIR ? 2 : 1, COLUMNS = BN / HALVES; // of C
    static constexpr int LEADING = 4; // a named barrier: the first multiplier has issued its last k tile
    using A = Operand<BM, A_MN, CLUSTER_N>;
    using B = Operand<COLUMNS, B_MN, CLUSTER_M>;
    static constexpr int STAGE = A::BYTES + HALVES * B::BYTES;
    // Columns of accumulators stored at once: whole lines of C, if there are so many. The last ones of a tile may be stored twice.
    static constexpr int WIDTH = SWAPPED && !TOGETHER ? BN : COLUMNS >= 64 ? 64 : STAGED_COLUMNS<COLUMNS>;
    using Out = Staging<WIDTH, SWAPPED, BF16, TOGETHER ? 4 : 1>;
    static constexpr int WRITERS = TOGETHER ? 1 : 4; // of a multiplier, with buffers of their own
    static_assert((COLUMNS % WIDTH == 0 || !EPILOGUE || PAIR) && STAGE % 1024 == 0 && Out::SIZE % (8 * Out::BYTES) == 0, "swizzles start afresh");
    // from a 1024-byte boundary on: stages, store buffers, barriers of stages, of turns
    static constexpr int OUT_AT = STAGES * STAGE, BARRIERS_AT = OUT_AT + CONSUMERS * WRITERS * BUFFERS * Out::SIZE;
    static constexpr int TURNS_AT = BARRIERS_AT + 16 * STAGES, BYTES = TURNS_AT + 8 * CONSUMERS;
    static constexpr int SHARED_BYTES = 1024 + BYTES; // what the launch asks for
    // registers a thread of either role: 65536 are there, and the compiler plans with 65536 / THREADS for all
    static constexpr int LOADER_REGISTERS = CONSUMERS == 3 ? 32 : 40;
    static constexpr int MULTIPLIER_REGISTERS = CONSUMERS == 3 ? 160 : 232;
    static constexpr bool MOVES_REGISTERS = CONSUMERS > 1;

    struct Place { // of shared memory, as 32-bit addresses
        u32 base;
        __device__ __forceinline__ u32 stage(int s) const { return base + s * STAGE; }
        __device__ __forceinline__ u32 full(int s) const { return base + BARRIERS_AT + 16 * s; }
        __device__ __forceinline__ u32 empty(int s) const { return base + BARRIERS_AT + 16 * s + 8; }
        __device__ __forceinline__ u32 turn(int consumer) const { return base + TURNS_AT + 8 * consumer; }
    };

    struct Ring { // which stage is next, and the parity of its phase
        int stage = 0;
        u32 phase = 0;
        __device__ __forceinline__ void advance() {
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        __device__ __forceinline__ void skip(int count) {
            const u32 to = stage + count;
            phase ^= (to / STAGES) & 1;
            stage = to % STAGES;
        }
    };

    // Ranks run along m first.
    static __device__ __forceinline__ int rank_along_m(int rank) {
        return CLUSTER_M == 1 ? 0 : CLUSTER_N == 1 ? rank : rank & (CLUSTER_M - 1);
    }
    static __device__ __forceinline__ int rank_along_n(int rank) { return CLUSTER_N == 1 ? 0 : (u32)rank / CLUSTER_M; }
    // CTAs that share A with this one, or B, itself among them: whose stages it fills, and who fills its own
    static constexpr int PEERS = CLUSTER_M + CLUSTER_N - 1;
    // The rank of the number-th of them
    static __device__ __forceinline__ int peer(int rank, int number) {
        if constexpr (CLUSTER_M == 1 || CLUSTER_N == 1) return number;
        const int m = rank_along_m(rank), n = rank_along_n(rank), other = number - CLUSTER_N;
        return number < CLUSTER_N ? m + number * CLUSTER_M : n * CLUSTER_M + other + (other >= m);
    }

    static __device__ __forceinline__ int clusters() { return (u32)gridDim.x / CLUSTER; }

    static __device__ __forceinline__ void load(const Problem &p, const Place &at, Work work, int rank) {
        const int rank_m = rank_along_m(rank), rank_n = rank_along_n(rank);
        // who gets this CTA's part of A (those beside it along n), and of B
        constexpr u32 ALONG_N = ((1u << CLUSTER) - 1) / ((1u << CLUSTER_M) - 1);
        const u32 mask_a = ALONG_N << rank_m, mask_b = ((1u << CLUSTER_M) - 1) << (rank_n * CLUSTER_M);
        Ring ring;
        while (work.next(p, clusters())) {
            int row, column;
            work.place(p, row, column);
            const int batch = leave_batch(p, row);
            row = min((row * CLUSTER_M + rank_m) * BM, p.last_row);
            column = min((column * CLUSTER_N + rank_n) * COLUMNS, p.last_column);
            for (int k = 0; k < p.k_tiles; ++k) {
                barrier_wait<1>(at.empty(ring.stage), ring.phase ^ 1);
                const u32 full = at.full(ring.stage), stage = at.stage(ring.stage);
                barrier_expect(full, p.stage_bytes);
                if constexpr (PAIR) {
                    A::load(stage, p.map_a, row, k * TILE_K, rank_n, mask_a, full, 0);
                    B::load(stage + A::BYTES, p.map_b, column, k * TILE_K, rank_m, mask_b, full, 0);
                    B::load(stage + A::BYTES + B::BYTES, p.map_up, column, k * TILE_K, rank_m, mask_b, full, (int)p.out.batch_b);
                } else if constexpr (EPILOGUE) {
                    A::load(stage, p.map_a, row, k * TILE_K, rank_n, mask_a, full, p.out.batch_a ? batch : 0);
                    B::load(stage + A::BYTES, p.map_b, column, k * TILE_K, rank_m, mask_b, full, p.out.batch_b ? batch : 0);
                } else {
                    A::load(stage, p.map_a, row, k * TILE_K, rank_n, mask_a, full);
                    B::load(stage + A::BYTES, p.map_b, column, k * TILE_K, rank_m, mask_b, full);
                }
                ring.advance();
            }
        }
    }

    // to: the peer of this lane's number
    static __device__ __forceinline__ void release(const Place &at, int stage, int lane, int to) {
        if constexpr (CLUSTER == 1) {
            if (lane == 0) barrier_arrive(at.empty(stage));
        } else {
            if (lane < PEERS) barrier_arrive_remote(at.empty(stage), to);
        }
    }

    // Issues all products of k_tiles; the last ones are still under way. Returns the stage that those read.
    // beside(k): done while the products of k tile k, and of the one before it, are under way.
    template <class Beside>
    static __device__ __forceinline__ int multiply(float (&acc)[BLOCKS][REGISTERS], const Place &at, Ring &ring, int first_row,
                                                   int k_tiles, int next, int lane, int to, const Beside &beside) {
        // lower words of descriptors: B's of stage 0, and from there to A's
        const u32 first_b = B::describe_first(at.base + A::BYTES);
        const u32 to_a = A::describe_first(0) - B::describe_first(A::BYTES) + first_row * (ROW_BYTES / 16);
        // With more k tiles than stages the first multiplier cannot end two tiles before the second has met it.
        const bool apart = LEAD > 0 && k_tiles > STAGES;
        const int pause = apart && first_row > 0 ? k_tiles - LEAD : -1;
        int last = 0;
        for (int k = 0; k < k_tiles; ++k) {
            if constexpr (LEAD > 0) {
                if (k == pause) { // the first one goes on alone; it needs all stages
                    products_wait<0>();
                    release(at, last, lane, to);
                    sync_threads(LEADING, 256);
                }
            }
            barrier_wait<2>(at.full(ring.stage), ring.phase);
            // from lane 0, so that the compiler knows them to be uniform, and sums stay off the vector units
            const u32 b = broadcast(first_b + ring.stage * (STAGE / 16));
            const u32 a = b + to_a;
            products_fence();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
#pragma unroll
                for (int block = 0; block < BLOCKS; ++block)
                    Products<BN>::template issue<BF16, A_MN, B_MN>(acc[block], A::describe_from(a, 64 * block, step),
                                                                  B::describe_from(b, 0, step), k > 0 || step > 0);
            products_commit();
            beside(k);
            products_wait<1>(); // the k tile before this one has been read
            if (k > 0 && !(LEAD > 0 && k == pause)) release(at, last, lane, to);
            last = ring.stage;
            ring.advance();
        }
        if constexpr (LEAD > 0) {
            if (apart && first_row == 0) arrive_threads(LEADING, 256);
        }
        if (PING_PONG && lane == 0) barrier_arrive(at.turn(next));
        return last;
    }

    // The end of it, when what does not need the sums has been done: they are there, and stage `last` is free.
    static __device__ __forceinline__ void finish(float (&acc)[BLOCKS][REGISTERS], const Place &at, int last, int lane,
                                                  int to) {
        products_wait<0>();
        release(at, last, lane, to);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) settle(acc[block]);
    }

    template <int FROM>
    static __device__ __forceinline__ void store(const Problem &p, float (&d)[REGISTERS], u32 buffers, int &next, int row,
                                                 int column, int batch, int lane, int warp, int named_barrier) {
        if constexpr (FROM < COLUMNS) {
            if constexpr (PAIR && COLUMNS % WIDTH == 0) {
                finish_pair<FROM, WIDTH, BF16>(p.out, column, d, lane);
            } else if constexpr (PAIR) { // some are stored twice: all are finished first
                if constexpr (FROM == 0) finish_pair<0, COLUMNS, BF16>(p.out, column, d, lane);
            } else if constexpr (EPILOGUE) {
                Epilogue out = p.out;
                out.addend += batch * out.batch_addend;
                Added<WIDTH, SWAPPED> more;
                finish_fragment<FROM, WIDTH, BF16, true>(out, more, d, row, column, lane);
            }
            const u32 buffer = buffers + next * Out::SIZE;
            auto meet = [&] {
                if constexpr (TOGETHER)
                    sync_threads(named_barrier, 128);
                else
                    sync_warp();
            };
            const bool first = !TOGETHER || warp == 0; // of those that store together: all stores are its
            if (first && is_elected(lane)) store_wait<BUFFERS - 1>(); // this buffer's last store has been read
            meet();
            Out::template write<FROM>(buffer, d, lane, TOGETHER ? warp : 0);
            async_fence();
            meet();
            if (first && elected()) { // "lane == 0" makes a loop of each store, over the lanes that might be there
                const u64 policy = (u64)(u32)p.store_policy << 32;
                const int x = SWAPPED ? row - (TOGETHER ? 16 * warp : 0) : column + FROM, y = SWAPPED ? column + FROM : row;
                if constexpr (EPILOGUE)
                    store_tile(p.map_c, buffer, x, y, batch, policy);
                else
                    store_tile(p.map_c, buffer, x, y, policy);
                store_commit();
            }
            next = next + 1 == BUFFERS ? 0 : next + 1;
            constexpr int NEXT = FROM + WIDTH; // what is left may be less: then it begins further back, with the same bits
            store<NEXT >= COLUMNS || NEXT + WIDTH <= COLUMNS ? NEXT : COLUMNS - WIDTH>(p, d, buffers, next, row, column, batch, lane, warp,
                                                                                  named_barrier);
        }
    }

    static __device__ __forceinline__ void consume(const Problem &p, const Place &at, Work work, int rank, int consumer) {
        const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
        const int rank_m = rank_along_m(rank), rank_n = rank_along_n(rank);
        const int sharer = PING_PONG ? 0 : consumer, to = peer(rank, lane);
        const u32 buffers = at.base + OUT_AT + (WRITERS * consumer + (TOGETHER ? 0 : warp)) * BUFFERS * Out::SIZE;
        Ring ring;
        int buffer = 0, item = 0; // the next store buffer; of the tiles
        while (work.next(p, clusters())) {
            if constexpr (PING_PONG) {
                const int number = item++;
                if (number % CONSUMERS != consumer) {
                    ring.skip(p.k_tiles);
                    continue;
                }
                if (number > 0) barrier_wait<3>(at.turn(consumer), ((number - 1) / CONSUMERS) & 1);
            }
            float acc[BLOCKS][REGISTERS];
            const int last = multiply(acc, at, ring, sharer * ROWS, p.k_tiles, (consumer + 1) % CONSUMERS, lane, to, [](int) {});
            int row, column;
            work.place(p, row, column);
            finish(acc, at, last, lane, to);
            const int batch = leave_batch(p, row);
            row = min((row * CLUSTER_M + rank_m) * BM, p.last_row) + sharer * ROWS + 16 * warp;
            column = min((column * CLUSTER_N + rank_n) * COLUMNS, p.last_column);
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block)
                store<0>(p, acc[block], buffers, buffer, row + 64 * block, column, batch, lane, warp, 1 + consumer);
        }
        if (is_elected(lane)) store_wait<0>(); // shared memory must live until it has been read
        sync_warp();
    }

    // With FOLDS. A range's products begin in accumulators of their own, so the sums of the tile before can be stored beside the first.
    static __device__ __forceinline__ void consume_ranges(const Problem &p, const Place &at, Work work, int rank, int consumer) {
        const int lane = threadIdx.x & 31, warp = (threadIdx.x & 127) >> 5, to = peer(rank, lane);
        const u32 buffers = at.base + OUT_AT + (WRITERS * consumer + warp) * BUFFERS * Out::SIZE;
        Ring ring;
        float total[REGISTERS];
        int buffer = 0, row = 0, column = 0, batch = 0;
        bool stored = true; // the tile in `total`, if any
        auto leave = [&] {
            if (!stored) store<0>(p, total, buffers, buffer, row, column, batch, lane, warp, 1 + consumer);
        };
        while (work.next(p, clusters())) {
            for (int first = 0; first < p.k_tiles; first += p.range) {
                float acc[1][REGISTERS];
                const int k_tiles = min(p.range, p.k_tiles - first);
                const int turn = first > 0 ? -1 : p.range > 1; // with two k tiles under way, if a range has two
                const int last = multiply(acc, at, ring, consumer * ROWS, k_tiles, 0, lane, to, [&](int k) {
                    if (k == turn) leave();
                });
                finish(acc, at, last, lane, to);
                if (first == 0) // -0 becomes 0, as elsewhere
#pragma unroll
                    for (int i = 0; i < REGISTERS; ++i) total[i] = 0.0f + acc[0][i];
                else
#pragma unroll
                    for (int i = 0; i < REGISTERS; ++i) total[i] += acc[0][i];
            }
            work.place(p, row, column);
            batch = leave_batch(p, row);
            row = min((row * CLUSTER_M + rank_along_m(rank)) * BM, p.last_row) + consumer * ROWS + 16 * warp;
            column = min((column * CLUSTER_N + rank_along_n(rank)) * BN, p.last_column);
            stored = false;
        }
        leave();
        if (is_elected(lane)) store_wait<0>(); // shared memory must live until it has been read
        sync_warp();
    }

    // From a row of tiles of the whole batch to one of its matrix; which matrix that is.
    static __device__ __forceinline__ int leave_batch(const Problem &p, int &row) {
        if constexpr (EPILOGUE && !PAIR) {
            const int batch = row / p.out.tiles;
            row -= batch * p.out.tiles;
            return batch;
        }
        return 0;
    }

    static __device__ __forceinline__ void run_batched(const Problem &p) { run(p); } // with EPILOGUE

    static __device__ __forceinline__ void run(const Problem &p) {
        const Place at{broadcast((shared_address(shared_floats()) + 1023) & ~1023u)}; // a broadcast, lest it be computed again in every k tile
        const int group = (int)broadcast(threadIdx.x >> 7), rank = CLUSTER == 1 ? 0 : (int)cluster_rank();
        const Work work(blockIdx.x / CLUSTER);
        if (threadIdx.x == 0) {
            prefetch_map(p.map_a);
            prefetch_map(p.map_b);
            if constexpr (PAIR) prefetch_map(p.map_up);
            prefetch_map(p.map_c);
            for (int s = 0; s < STAGES; ++s) {
                barrier_init(at.full(s), 1);
                barrier_init(at.empty(s), 4 * SHARERS * PEERS);
            }
            for (int c = 0; c < CONSUMERS; ++c) barrier_init(at.turn(c), 4);
            barrier_init_fence();
        }
        sync_warp(); // a cluster's barrier wants whole warps
        if constexpr (CLUSTER == 1)
            sync_cta();
        else
            meet_cluster();
        if (group == 0) {
            if constexpr (MOVES_REGISTERS) fewer_registers<LOADER_REGISTERS>();
            if (broadcast(threadIdx.x >> 5) == 0 && elected()) {
                wait_for_predecessors(); // the others touch global memory only after what these copies bring
                if (!p.late) start_successors();
                load(p, at, work, rank);
                if (p.late) start_successors();
            }
            sync_warp();
        } else {
            if constexpr (MOVES_REGISTERS) more_registers<MULTIPLIER_REGISTERS>();
            if constexpr (EPILOGUE) wait_for_predecessors(); // all threads read bias and addend
            if constexpr (FOLDS)
                consume_ranges(p, at, work, rank, group - 1);
            else
                consume(p, at, work, rank, group - 1);
        }
        if constexpr (CLUSTER > 1) meet_cluster(); // the other CTA may still send to us or arrive at our barriers
    }
};

} // namespace sassafras
