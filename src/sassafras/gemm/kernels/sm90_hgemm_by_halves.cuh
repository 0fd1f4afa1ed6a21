// The cooperative kernel of sm90_hgemm_warp_specialized.cuh without the pause between tiles, in which both warpgroups store and
// nobody multiplies (2800 cycles a tile of 128 x 256, docs/experiments/2026-11-22-hgemm-pause.md). For tiles of two blocks of 64
// rows a warpgroup.
//
// A warpgroup has no registers for the sums of two tiles, but those of a tile are two blocks. The last EDGE k tiles are
// multiplied for the first block, then for the second; the first is stored while the second is multiplied. The first EDGE
// k tiles of the next tile likewise: the last tile's second block is stored while the first of this one is multiplied. Their
// stages are held that long.
//
// What else differs: no split k, and without clusters the loader sends its first copies before the others have met.
//
// (Halves of columns would serve one block a warpgroup. ptxas 13.0 gives products of another width other registers, and has too few. And it
// puts a wait behind every product if sums are read while products of a loop's last round may be under way: see `products_wait<0>`.)
//
// Template parameters: those of WarpSpecialized, and
//   EDGE         k tiles by blocks, at either end of a tile. There are 2 * EDGE at least (`WarpSpecializedConfig.reject`)
#pragma once
#include "sm90_hgemm_warp_specialized.cuh"

namespace sassafras {

template <int BM, int BN, int STAGES, int CONSUMERS, int CLUSTER_M, int CLUSTER_N, bool A_MN, bool B_MN, bool BF16, int BUFFERS, int EDGE>
struct ByHalves
    : WarpSpecialized<BM, BN, STAGES, CONSUMERS, false, CLUSTER_M, CLUSTER_N, A_MN, B_MN, BF16, false, BUFFERS, false, false> {
    using Base = WarpSpecialized<BM, BN, STAGES, CONSUMERS, false, CLUSTER_M, CLUSTER_N, A_MN, B_MN, BF16, false, BUFFERS, false, false>;
    using typename Base::A;
    using typename Base::B;
    using typename Base::Out;
    using typename Base::Place;
    using typename Base::Problem;
    using typename Base::Ring;
    using Base::BLOCKS, Base::CLUSTER, Base::OUT_AT, Base::REGISTERS, Base::ROWS, Base::STAGE, Base::WIDTH;
    static_assert(BUFFERS >= BN / WIDTH, "a block is stored at once");
    static_assert(BLOCKS == 2 && EDGE >= 1 && 2 * EDGE <= STAGES, "two blocks; the next tile begins before this one's stages are free");
    static constexpr int MEETING = 1; // the named barrier of the loading warp and the multiplying ones

    // acc += the products of a k tile: of blocks FIRST .. LAST.
    template <int FIRST, int LAST>
    static __device__ __forceinline__ void multiply(float (&acc)[BLOCKS][REGISTERS], u32 b, u32 a, bool begins) {
        products_fence();
#pragma unroll
        for (int step = 0; step < TILE_K / 16; ++step)
#pragma unroll
            for (int block = FIRST; block <= LAST; ++block)
                Products<BN>::template issue<BF16, A_MN, B_MN>(acc[block], A::describe_from(a, 64 * block, step),
                                                              B::describe_from(b, 0, step), !begins || step > 0);
    }

    // The same of EDGE k tiles, from `at` on, for one block. Whoever comes first waits for them.
    template <int BLOCK>
    static __device__ __forceinline__ void multiply_edge(float (&acc)[BLOCKS][REGISTERS], const Place &place, Ring at, u32 first_b,
                                                         u32 to_a, bool begins) {
#pragma unroll
        for (int k = 0; k < EDGE; ++k, at.advance()) {
            if constexpr (BLOCK == 0) barrier_wait<2>(place.full(at.stage), at.phase);
            const u32 b = broadcast(first_b + at.stage * (STAGE / 16));
            multiply<BLOCK, BLOCK>(acc, b, b + to_a, begins && k == 0);
        }
        products_commit();
    }

    template <int FROM> static __device__ __forceinline__ void write(u32 buffers, float (&d)[REGISTERS], int lane) {
        if constexpr (FROM < BN) {
            Out::template write<FROM>(buffers + FROM / WIDTH * Out::SIZE, d, lane);
            write<FROM + WIDTH>(buffers, d, lane);
        }
    }

    // A warp's 16 rows of a block, all columns: one fence and one group of stores for all.
    static __device__ __forceinline__ void store(const Problem &p, float (&d)[REGISTERS], u32 buffers, int row, int column, int lane) {
        if (lane == 0) store_wait<0>(); // the block before this one has been read
        sync_warp();
        write<0>(buffers, d, lane);
        async_fence();
        sync_warp();
        if (lane == 0) {
#pragma unroll
            for (int from = 0; from < BN; from += WIDTH) store_tile(p.map_c, buffers + from / WIDTH * Out::SIZE, column + from, row);
            store_commit();
        }
    }

    static __device__ __forceinline__ void consume(const Problem &p, const Place &at, Work work, int rank, int consumer) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
        const int rank_m = CLUSTER_M == 2 ? rank : 0, rank_n = CLUSTER_N == 2 ? rank : 0;
        const u32 buffers = at.base + OUT_AT + (4 * consumer + warp) * BUFFERS * Out::SIZE;
        // lower words of descriptors: B's of stage 0, and from there to A's
        const u32 first_b = B::describe_first(at.base + A::BYTES);
        const u32 to_a = A::describe_first(0) - B::describe_first(A::BYTES) + consumer * ROWS * (ROW_BYTES / 16);
        float acc[BLOCKS][REGISTERS];
        Ring ring, behind; // the next stage to be read, and to be given back
        int row, column;
        const auto give_back = [&](int stages) {
#pragma unroll 1
            for (; stages > 0; --stages) {
                Base::release(at, behind.stage, lane);
                behind.advance();
            }
        };

        work.template next<false>(p, Base::clusters()); // there is one
        multiply_edge<0>(acc, at, ring, first_b, to_a, true);
        multiply_edge<1>(acc, at, ring, first_b, to_a, true);
        while (true) {
            ring.skip(EDGE);
            int owed = EDGE; // stages that products read which were under way before the latest
            work.place(p, row, column);
            row = (row * CLUSTER_M + rank_m) * BM + consumer * ROWS + 16 * warp;
            column = (column * CLUSTER_N + rank_n) * BN;
#pragma unroll 1
            for (int k = EDGE; k < p.k_tiles - EDGE; ++k, ring.advance()) {
                barrier_wait<2>(at.full(ring.stage), ring.phase);
                const u32 b = broadcast(first_b + ring.stage * (STAGE / 16));
                multiply<0, 1>(acc, b, b + to_a, false);
                products_commit();
                products_wait<1>(); // the k tile before this one has been read
                give_back(owed);
                owed = 1;
            }
            multiply_edge<0>(acc, at, ring, first_b, to_a, false);
            multiply_edge<1>(acc, at, ring, first_b, to_a, false);
            products_wait<1>(); // the first block is there, and what was read before its end is free
            give_back(owed);
            ring.skip(EDGE);
            settle(acc[0]);
            store(p, acc[0], buffers, row, column, lane);
            products_wait<0>(); // it was under way all the while
            give_back(EDGE);
            settle(acc[1]);
            if (!work.template next<false>(p, Base::clusters())) break;
            multiply_edge<0>(acc, at, ring, first_b, to_a, true);
            store(p, acc[1], buffers, row + 64, column, lane);
            multiply_edge<1>(acc, at, ring, first_b, to_a, true);
        }
        store(p, acc[1], buffers, row + 64, column, lane);
        if (lane == 0) store_wait<0>(); // shared memory must live until it has been read
        sync_warp();
    }

    static __device__ __forceinline__ void run(const Problem &p) {
        if (!p.late) start_successors();
        const u32 start = shared_address(shared_floats());
        const Place at{broadcast((start + 1023) & ~1023u)}; // a broadcast, lest it be computed again in every k tile
        const int group = (int)broadcast(threadIdx.x >> 7), rank = CLUSTER == 1 ? 0 : (int)cluster_rank();
        const Work work(p, blockIdx.x / CLUSTER);
        if (threadIdx.x == 0) {
            prefetch_map(p.map_a);
            prefetch_map(p.map_b);
            for (int s = 0; s < STAGES; ++s) {
                barrier_init(at.full(s), 1);
                barrier_init(at.empty(s), 4 * CONSUMERS * CLUSTER);
            }
            barrier_init_fence();
            prefetch_map(p.map_c);
        }
        sync_warp();
        if constexpr (CLUSTER > 1) meet_cluster();
        if (group == 0) {
            fewer_registers<Base::LOADER_REGISTERS>();
            if (threadIdx.x < 32) {
                if constexpr (CLUSTER == 1) arrive_threads(MEETING, 32 + 128 * CONSUMERS); // the multiplying warps wait, this one does not
                if (threadIdx.x == 0) {
                    wait_for_predecessors(); // the others touch global memory only after what these copies bring
                    Base::load(p, at, work, rank);
                    if (p.late) start_successors();
                }
            }
            sync_warp();
        } else {
            more_registers<Base::MULTIPLIER_REGISTERS>();
            if constexpr (CLUSTER == 1) sync_threads(MEETING, 32 + 128 * CONSUMERS); // the barriers are there
            consume(p, at, work, rank, group - 1);
        }
        if constexpr (CLUSTER > 1) meet_cluster(); // the other CTA may still send to us or arrive at our barriers
    }
};

} // namespace sassafras
