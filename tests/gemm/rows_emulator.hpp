// Stands in for kernels/ptx_rows.cuh on the CPU. Comes after hopper_emulator.hpp.
#pragma once

namespace sassafras {

inline u32 middle_halves(u32 x, u32 y) { return x >> 16 | y << 16; }

inline u32 value_of(u32 value, int from) {
    emulator::Warp &warp = emulator::lane->cta->warps[threadIdx.x / 32];
    if (from < 0 || from > 31) emulator::fail("no such lane");
    warp.a[threadIdx.x % 32][0] = value;
    emulator::wait(warp.barrier);
    const u32 found = warp.a[from][0];
    emulator::wait(warp.barrier);
    return found;
}

inline void store_words(u32 at, const void *from, u32 size) {
    own(at);
    if (at % size) emulator::fail("a misaligned store to shared memory");
    emulator::generic_write(at & 0xffffff, size);
    std::memcpy(emulator::bytes_at(cluster_rank(), at & 0xffffff, size), from, size);
}
inline void store_shared(u32 at, const u32 (&from)[4]) { store_words(at, from, 16); }
inline void store_shared(u32 at, float x, float y, float z, float w) {
    const float from[4] = {x, y, z, w};
    store_words(at, from, 16);
}
inline void store_shared(u32 at, float x, float y) {
    const float from[2] = {x, y};
    store_words(at, from, 8);
}

inline void load_remote(float (&v)[4], const float *mine, u32 rank, bool wanted) {
    if (wanted) load_remote(v, mine, rank);
}

template <int COUNT> inline void keep(u32 (&)[COUNT]) {}

template <int N> struct RegisterProducts {
    template <bool B_MN> static void issue(float (&d)[N / 2], const u32 *a, u64 b, u32 accumulate) {
        using namespace emulator;
        if (fault == OFFSETS_EXCHANGED) b = (b & ~(0x3fff3fffULL << 16)) | (b >> 16 & 0x3fff) << 32 | (b >> 32 & 0x3fff) << 16;
        const unsigned rank = cluster_rank(), index = threadIdx.x % 128;
        Thread &thread = self();
        if (!thread.fenced) fail("products without a fence before them");
        Group &group = here().groups[(int)threadIdx.x / 128];
        if (thread.products == group.products.size()) {
            group.products.push_back({0, b, N, false, false, B_MN, accumulate != 0});
            Product &p = group.products.back();
            for (int k = 0; k < 16; ++k)
                for (int column = 0; column < N; ++column) p.reads.push_back(&granule(rank, described(b, B_MN, column, k)));
            std::sort(p.reads.begin(), p.reads.end());
            p.reads.erase(std::unique(p.reads.begin(), p.reads.end()), p.reads.end());
            for (Granule *g : p.reads) {
                if (g->copy_writes) fail("products read a stage whose copy has not landed");
                ++g->product_reads;
            }
        }
        Product &p = group.products[thread.products++];
        if (p.b != b || p.n != N || p.accumulate != (accumulate != 0)) fail("a warpgroup's threads disagree on a product");
        p.d[index] = d;
        p.from[index] = a;
        std::memcpy(p.held[index], a, 16);
        ++p.issued;
        if (!group.held.count(d)) {
            group.held[d].assign(d, d + N / 2);
            group.queued[d] = 0;
            std::fill(d, d + N / 2, NAN);
        }
        ++group.queued[d];
    }
};

} // namespace sassafras
