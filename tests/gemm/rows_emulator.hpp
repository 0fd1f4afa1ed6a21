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

} // namespace sassafras
