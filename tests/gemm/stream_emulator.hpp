// Stands in for kernels/ptx_stream.cuh on the CPU. Comes after hopper_emulator.hpp.
#pragma once
#include "ptx_hopper.cuh"

namespace emulator {
static bool fixed_early = false; // the launch may read what is fixed before its predecessor's end
}

namespace sassafras {

inline void copied(u32 to, const void *from, u32 bytes, u32 barrier) {
    using namespace emulator;
    own(to);
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16 || !bytes) fail("a bulk copy of no multiple of 16 bytes");
    const unsigned rank = cluster_rank(), offset = to & 0xffffff, bar = barrier & 0xffffff;
    bytes_at(rank, offset, bytes);
    for (unsigned at = offset; at < offset + bytes; at += 16) {
        Granule &g = granule(rank, at);
        if (g.barrier) fail("a copy over a barrier");
        if (g.copy_writes) fail("two copies to one place");
        ++g.copy_writes;
    }
    Lane *const issuer = lane;
    copies.push_back([=] {
        Lane *const before = lane;
        lane = issuer;
        for (u32 at = 0; at < bytes; at += 16) check_read((const char *)from + at, 16);
        std::memcpy(bytes_at(rank, offset, bytes), from, bytes);
        for (unsigned at = offset; at < offset + bytes; at += 16) {
            --granule(rank, at).copy_writes;
            granule(rank, at).writer = -1;
        }
        Phase &phase = phase_at(rank, bar);
        phase.bytes -= bytes;
        settle_phase(phase);
        lane = before;
    });
    if (policy == EAGER) run_copy(copies.size() - 1);
}
inline void copy_row(u32 to, const void *from, u32 bytes, u32 barrier) {
    emulator::check_predecessors();
    copied(to, from, bytes, barrier);
}
inline void copy_fixed_row(u32 to, const void *from, u32 bytes, u32 barrier) {
    if (!emulator::fixed_early) emulator::check_predecessors();
    copied(to, from, bytes, barrier);
}
inline void copy_row_once(u32 to, const void *from, u32 bytes, u32 barrier) { copy_fixed_row(to, from, bytes, barrier); }
inline void load_fixed(u32 (&to)[4], const void *from, bool ok) {
    const bool may_load = emulator::lane->may_load;
    emulator::lane->may_load |= emulator::fixed_early;
    load_global(to, from, ok);
    emulator::lane->may_load = may_load;
}
inline void start_successors_at_once() {}
inline float reciprocal_root(float x) { return 1 / std::sqrt(x); }
inline u32 lanes_where(bool holds) {
    emulator::Warp &warp = emulator::lane->cta->warps[threadIdx.x / 32];
    warp.a[threadIdx.x % 32][0] = holds;
    emulator::wait(warp.barrier);
    u32 found = 0;
    for (int lane = 0; lane < 32; ++lane) found |= warp.a[lane][0] << lane;
    emulator::wait(warp.barrier);
    return found;
}
inline u32 as_word(float value) {
    u32 word;
    std::memcpy(&word, &value, 4);
    return word;
}
template <bool BF16> inline u32 products_of_two(u32 x, u32 y) { // exact in FP32
    float found[2];
    for (int i = 0; i < 2; ++i) {
        const u16 left = (u16)(x >> 16 * i), right = (u16)(y >> 16 * i);
        found[i] = BF16 ? from_bf16(left) * from_bf16(right) : from_f16(left) * from_f16(right);
    }
    return BF16 ? pack_bf16(found[0], found[1]) : pack_f16(found[0], found[1]);
}

} // namespace sassafras
