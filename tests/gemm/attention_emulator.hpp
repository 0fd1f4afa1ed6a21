// Stands in for kernels/ptx_attention.cuh on the CPU. Comes after hopper_emulator.hpp.
#pragma once
#include "ptx_stream.cuh"

namespace sassafras {

inline void load_once(u32 (&to)[4], const void *from, bool ok) {
    if (ok) load_global(to, from, true);
}
inline void load_shared_again(u32 (&to)[4], u32 at) { load_shared(to, at); }
inline void prefetch_line(const void *from, bool ok) {
    if (ok) emulator::check_read(from, 2);
}

inline u32 transposed(u32 pair) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    emulator::Warp &warp = emulator::lane->cta->warps[threadIdx.x / 32];
    warp.a[lane][0] = pair;
    emulator::wait(warp.barrier);
    auto element = [&](int row, int column) { return warp.a[4 * row + column / 2][0] >> 16 * (column % 2) & 0xffff; };
    const u32 found = element(2 * t, g) | element(2 * t + 1, g) << 16;
    emulator::wait(warp.barrier);
    return found;
}

inline int lowest_bit(u32 word) { return __builtin_ctz(word); }
inline float larger(float a, float b) { return std::fmax(a, b); }

} // namespace sassafras
