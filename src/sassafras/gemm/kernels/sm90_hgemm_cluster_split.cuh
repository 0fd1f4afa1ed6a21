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
// Launch: grid (slices * parts, tiles of n, tiles of m), the latter two rounded up to multiples of the cluster (slices, share_n,
// share_m) of 1 to 8 CTAs; share_m, share_n, and with several parts slices are powers of two; 128 * CONSUMERS + 32 threads; dynamic shared memory as `ClusterSplitConfig.shared_bytes` says. Requires leading dimensions that are multiples of 8 elements
// and bases aligned to 16 bytes (C's row length too: n % 8 == 0). Any m, n, k otherwise.
#pragma once
#include "hopper_tile.cuh"

namespace sassafras {

struct ClusterSplitProblem {
    const TensorMap *map_a, *map_b; // boxes: Operand's
    u16 *c;                         // (m, n), row-major; swapped: (n, m)
    float *workspace;               // parts * tiles * BM * BN sums
    u32 *counters;                  // tiles * slices (one slice: * multiplying warps); zero
    int m, n;                       // the kernel's
    int ldc;
    int k_tiles;         // of 64
    int tiles_per_slice; // k tiles of each slice of each part; the last may have fewer, none has 0
    int parts;           // clusters that split k
    int log2_slices;     // of slices, where there are several parts
    int late;            // successors may start when the operands have been read (0: at once)
    int share_m, share_n; // neighbours in a cluster
    int rows_a, rows_b;   // of a tile of A, of B, that each of them loads
    int all_a, all_b;     // masks of those that want the first CTA's A, B
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
    // from a 1024-byte boundary on: stages, a staging buffer of each warp, barriers. Partial sums take the stages' place.
    static constexpr int OUT_AT = STAGES * STAGE, BARRIERS_AT = OUT_AT + CONSUMERS * 4 * Out::SIZE;
    // rows of the partial tile as C has them; the padding spreads what a warp writes at once over the banks
    static constexpr int P_ROWS = SWAPPED ? BN : BM, P_COLUMNS = SWAPPED ? BM : BN, P_ROW = P_COLUMNS + (SWAPPED ? 4 : 8);
    static constexpr int P_BYTES = 4 * P_ROWS * P_ROW, BYTES = BARRIERS_AT + 16 * STAGES;
    static_assert(P_BYTES <= BARRIERS_AT, "more stages: partial sums do not fit");
    static constexpr int SHARED_BYTES = 1024 + BYTES;

    static __device__ __forceinline__ u32 pack(float first, float second) {
        return BF16 ? pack_bf16(first, second) : pack_f16(first, second);
    }

    // Everybody who sends to this stage learns that a warp has read it.
    static __device__ __forceinline__ void release(u32 empty, u32 senders, int lane) {
        if constexpr (SHARED) {
            if (lane < 8 && (senders >> lane & 1)) barrier_arrive_remote(empty, lane);
        } else {
            if (lane == 0) barrier_arrive(empty);
        }
    }

    static __device__ __forceinline__ void multiply(float (&acc)[REGISTERS], u32 base, int row, int tiles, u32 senders, int lane) {
        int stage = 0, last = 0;
        u32 phase = 0;
        // lower words of descriptors: B's of stage 0, and from there to A's
        const u32 first_b = B::describe_first(base + A::BYTES);
        const u32 to_a = A::describe_first(0) - B::describe_first(A::BYTES) + row * (ROW_BYTES / 16);
        for (int k = 0; k < tiles; ++k) {
            // from lane 0, so that the compiler knows it to be uniform, and sums stay off the vector units
            const u32 b = broadcast(first_b + stage * (STAGE / 16)), a = b + to_a;
            barrier_wait<2>(base + BARRIERS_AT + 16 * stage, phase);
            products_fence();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
                Products<BN>::template issue<BF16, A_MN, B_MN>(acc, A::describe_from(a, 0, step), B::describe_from(b, 0, step),
                                                              k > 0 || step > 0);
            products_commit();
            products_wait<1>(); // the k tile before this one has been read
            if (k > 0) release(base + BARRIERS_AT + 16 * last + 8, senders, lane);
            last = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        products_wait<0>();
        settle(acc);
    }

    template <int FROM>
    static __device__ __forceinline__ void store(const Problem &p, float (&d)[REGISTERS], u32 buffer, int row,
                                                 int column, int lane) {
        if constexpr (FROM < BN) {
            if constexpr (EPILOGUE) finish_fragment<FROM, WIDTH, SWAPPED, BF16>(p.out, row, column, d, lane);
            Out::template write<FROM>(buffer, d, lane);
            sync_warp();
            const int c_rows = SWAPPED ? p.n : p.m, c_columns = SWAPPED ? p.m : p.n;
            const int row0 = SWAPPED ? column + FROM : row, column0 = SWAPPED ? row : column + FROM;
#pragma unroll
            for (int i = 0; i < (Out::ROWS * Out::CHUNKS + 31) / 32; ++i) {
                const int at = i * 32 + lane, r = at / Out::CHUNKS, chunk = at % Out::CHUNKS;
                u32 words[4];
                load_shared(words, buffer + Out::place(r, chunk));
                if (row0 + r < c_rows && column0 + 8 * chunk < c_columns)
                    store_global(p.c + (long long)(row0 + r) * p.ldc + column0 + 8 * chunk, words);
            }
            sync_warp();
            store<FROM + WIDTH>(p, d, buffer, row, column, lane);
        }
    }

    static __device__ __forceinline__ void run_batched(Problem p) { // with EPILOGUE
        move_result(p);
        run(p);
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        if (!p.late) start_successors();
        char *const shared = (char *)shared_floats();
        const u32 start = shared_address(shared), base = (start + 1023) & ~1023u;
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        // along x lie the slices of the first part, of the next ...
        const int slices = p.parts == 1 ? gridDim.x : 1 << p.log2_slices;
        const int slice = p.parts == 1 ? blockIdx.x : blockIdx.x & (slices - 1);
        const Neighbours near(p, slice, slices);
        const int row0 = (EPILOGUE ? tile_row(p) : blockIdx.z) * BM, column0 = blockIdx.y * BN;
        const int first = blockIdx.x * p.tiles_per_slice, tiles = min(p.tiles_per_slice, p.k_tiles - first);
        float acc[REGISTERS];

        if (warp == 4 * CONSUMERS) {
            if (lane == 0) {
                const int releases = SHARED ? 4 * CONSUMERS * (p.share_m + p.share_n - 1) : 4 * CONSUMERS;
                for (int s = 0; s < STAGES; ++s) {
                    barrier_init(base + BARRIERS_AT + 16 * s, 1);
                    barrier_init(base + BARRIERS_AT + 16 * s + 8, releases);
                }
                barrier_init_fence();
                wait_for_predecessors(); // the others touch global memory only after what these copies bring
                if constexpr (!SHARED) load(p, near, base, row0, column0, first, 0, min(tiles, STAGES));
            }
            sync_warp();
        }
        if constexpr (SHARED)
            meet_cluster(); // nobody sends before all barriers are there
        else
            sync_cta(); // the others see the barriers
        if constexpr (EPILOGUE) wait_for_predecessors(); // all threads read bias and addend
        if (warp == 4 * CONSUMERS) {
            if (lane == 0) {
                if constexpr (SHARED) load(p, near, base, row0, column0, first, 0, min(tiles, STAGES));
                load(p, near, base, row0, column0, first, STAGES, tiles);
            }
            sync_warp();
        } else {
            multiply(acc, base, 64 * (int)broadcast(warp >> 2), tiles, near.want_a | near.want_b, lane);
            if (p.late) start_successors();
            if (slices == 1 && (gridDim.x == 1 || add_parts(p, acc, base, thread)))
                store<0>(p, acc, base + OUT_AT + warp * Out::SIZE, row0 + 16 * warp, column0, lane);
        }
        if (slices == 1) {
            if constexpr (SHARED) meet_cluster(); // others may still arrive at our barriers
            return;
        }

        sync_cta(); // all stages have been read
        float *const partial = (float *)(shared + (base - start));
        if (warp < 4 * CONSUMERS) {
#pragma unroll
            for (int j = 0; j < BN / 8; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int r = 16 * warp + 8 * h + (lane >> 2), c = 8 * j + 2 * (lane & 3);
                    const float x = acc[4 * j + 2 * h], y = acc[4 * j + 2 * h + 1];
                    if constexpr (SWAPPED) {
                        partial[c * P_ROW + r] = x;
                        partial[(c + 1) * P_ROW + r] = y;
                    } else {
                        partial[r * P_ROW + c] = x;
                        partial[r * P_ROW + c + 1] = y;
                    }
                }
        }
        sync_cluster();
        sum_up(p, partial, SHARED ? slices * (near.n + p.share_n * near.m) : 0, slice, slices, row0, column0, thread);
        meet_cluster(); // shared memory must live until the others have read it
    }

    // Parts of one slice: leaves this warp's sums in the workspace, as its lanes hold them; if all others have left theirs,
    // acc becomes the sum of all. True if so.
    static __device__ __forceinline__ bool add_parts(const ClusterSplitProblem &p, float (&acc)[REGISTERS], u32 base, int thread) {
        const int lane = thread & 31, warp = thread >> 5, tile = blockIdx.y + gridDim.y * blockIdx.z;
        const long long stride = (long long)gridDim.y * gridDim.z * (BM * BN);
        float *const sums = p.workspace + (long long)tile * (BM * BN) + warp * (16 * BN) + 4 * lane;
        u32 *const counter = p.counters + tile * (4 * CONSUMERS) + warp;
#pragma unroll
        for (int i = 0; i < REGISTERS / 4; ++i) {
            const float v[4] = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
            store_partial(sums + blockIdx.x * stride + 128 * i, v);
        }
        sync_threads(1, MULTIPLIERS); // all stages have been read
        u32 before = 0;
        if (lane == 0) before = count_up(counter); // releases what all lanes have written
        sync_warp();
        if (broadcast(before) != (u32)p.parts - 1) return false;
        if (lane == 0) store_counter(counter, 0);
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

    // Each CTA sums an equal share of the tile over the cluster's slices (two and more), four columns of C at a time.
    // rank0: slice 0's. Neighbouring threads read neighbouring 16 bytes, of all slices before the first addition.
    static __device__ __forceinline__ void sum_up(const Problem &p, const float *partial, int rank0, int slice,
                                                  int slices, int row0, int column0, int thread) {
        const Share share(p, row0, column0, slice, slices, thread);
        // this share's sums of all parts, part after part
        const int tile = blockIdx.y + gridDim.y * blockIdx.z, part = p.parts == 1 ? 0 : blockIdx.x >> p.log2_slices;
        const long long stride = (long long)gridDim.y * gridDim.z * (BM * BN);
        float *const sums = p.workspace + (long long)tile * (BM * BN);
        u32 *const counter = p.counters + slice + slices * tile;
        const auto keep = [&](int vector, const float(&sum)[4]) {
            if (p.parts == 1) {
                if constexpr (EPILOGUE) {
                    float v[4] = {sum[0], sum[1], sum[2], sum[3]};
                    share.finish(p.out, row0, column0, vector, v);
                    share.store(vector, v);
                } else {
                    share.store(vector, sum);
                }
            } else {
                store_partial(sums + part * stride + 4 * vector, sum);
            }
        };
        if (slices > 4)
            share.template add<2, 8>(partial, rank0, slices, keep);
        else
            share.template add<4, 4>(partial, rank0, slices, keep);
        if (p.parts == 1) return;
        u32 *const arrived = (u32 *)(partial + P_BYTES / 4 - 1); // padding of the last row: nobody reads it
        sync_cta();
        if (thread == 0) *arrived = count_up(counter); // releases what all threads have written
        sync_cta();
        if (*(volatile u32 *)arrived != (u32)p.parts - 1) return;
        if (thread == 0) store_counter(counter, 0);
        const auto place = [=](int i, bool &wanted) {
            const int vector = share.begin + i * share.step;
            wanted = share.wants(vector);
            return (const float *)(sums + 4 * vector);
        };
        const int count = (Share::VECTORS - share.begin + share.step - 1) / share.step; // at most 0 for the last threads
        PartialSums<THREADS, (BARRIERS_AT - P_BYTES) / (16 * THREADS), decltype(place)> parts(
            shared_address(partial) + P_BYTES, thread, count, p.parts, stride, place);
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            float sum[4];
            parts.next(sum);
            const int vector = share.begin + i * share.step;
            if constexpr (EPILOGUE) share.finish(p.out, row0, column0, vector, sum);
            if (share.wants(vector)) share.store(vector, sum);
        }
    }

    // What a thread sums of its tile: every step-th vector of four columns of C from `begin` on.
    struct Share {
        static constexpr int ROW = P_COLUMNS / 4, VECTORS = P_ROWS * ROW; // vectors of a row, of a tile
        u16 *c;
        int ldc, rows, columns; // of C, from the tile's first on
        int begin, step;

        __device__ __forceinline__ Share(const ClusterSplitProblem &p, int row0, int column0, int slice, int slices, int thread)
            : ldc(p.ldc), begin(slice * THREADS + thread), step(slices * THREADS) {
            const int c_row0 = SWAPPED ? column0 : row0, c_column0 = SWAPPED ? row0 : column0;
            rows = (SWAPPED ? p.n : p.m) - c_row0;
            columns = (SWAPPED ? p.m : p.n) - c_column0;
            c = p.c + (long long)c_row0 * p.ldc + c_column0;
        }

        __device__ __forceinline__ bool wants(int vector) const {
            return vector < VECTORS && vector / ROW < rows && vector % ROW * 4 < columns;
        }

        __device__ __forceinline__ void store(int vector, const float (&sum)[4]) const {
            const u32 words[2] = {pack(sum[0], sum[1]), pack(sum[2], sum[3])};
            store_global(c + (long long)(vector / ROW) * ldc + vector % ROW * 4, words);
        }

        __device__ __forceinline__ void finish(const Epilogue &e, int row0, int column0, int vector, float (&sum)[4]) const {
            const int c_row0 = SWAPPED ? column0 : row0, c_column0 = SWAPPED ? row0 : column0;
            sassafras::finish<BF16, true>(e, c_row0 + vector / ROW, c_column0 + vector % ROW * 4, sum);
        }

        // Sums over the slices, in their order: loads of TERMS slices of EACH vectors are under way at once.
        template <int EACH, int TERMS, class Done>
        __device__ __forceinline__ void add(const float *partial, int rank0, int slices, Done done) const {
#pragma unroll 1
            for (int u = begin; u < VECTORS; u += EACH * step) {
                float sum[EACH][4] = {};
#pragma unroll 1
                for (int first = 0; first < slices; first += TERMS) {
                    float v[TERMS][EACH][4];
#pragma unroll
                    for (int t = 0; t < TERMS; ++t)
#pragma unroll
                        for (int i = 0; i < EACH; ++i) {
                            const int vector = u + i * step;
                            v[t][i][0] = v[t][i][1] = v[t][i][2] = v[t][i][3] = 0; // changes no sum, as in PartialSums
                            load_remote(v[t][i], partial + vector / ROW * P_ROW + vector % ROW * 4, rank0 + first + t,
                                        first + t < slices && wants(vector));
                        }
#pragma unroll
                    for (int t = 0; t < TERMS; ++t)
#pragma unroll
                        for (int i = 0; i < EACH; ++i)
#pragma unroll
                            for (int e = 0; e < 4; ++e) sum[i][e] += v[t][i][e];
                }
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    if (wants(u + i * step)) done(u + i * step, sum[i]);
            }
        }
    };

    // k tiles from..to-1 of this CTA's slice; those from STAGES on wait for their stage.
    static __device__ __forceinline__ void load(const Problem &p, const Neighbours &near, u32 base, int row,
                                                int column, int first, int from, int to) {
        int stage = 0;
        u32 phase = 0;
        for (int k = from; k < to; ++k) {
            const u32 full = base + BARRIERS_AT + 16 * stage, tile = base + stage * STAGE;
            const int at = (first + k) * TILE_K;
            if (from > 0) barrier_wait<1>(full + 8, phase);
            barrier_expect(full, STAGE);
            if constexpr (SHARED) {
                A::load_part(tile, p.map_a, row, at, near.n, p.rows_a, near.want_a, full);
                B::load_part(tile + A::BYTES, p.map_b, column, at, near.m, p.rows_b, near.want_b, full);
            } else if constexpr (EPILOGUE) {
                A::load(tile, p.map_a, row, at, 0, full, p.out.batch_a ? batch_of(p) : 0);
                B::load(tile + A::BYTES, p.map_b, column, at, 0, full, p.out.batch_b ? batch_of(p) : 0);
            } else {
                A::load(tile, p.map_a, row, at, 0, full);
                B::load(tile + A::BYTES, p.map_b, column, at, 0, full);
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
};

} // namespace sassafras
