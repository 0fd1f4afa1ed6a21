// Stands in for kernels/ptx_hints.cuh on the CPU. Comes after hopper_emulator.hpp.
#pragma once

namespace sassafras {

inline u64 l2_policy(bool once) { return once ? emulator::ONCE : emulator::OFTEN; }

inline void copy_hinted(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier, u32 mask, u64 policy) {
    if (policy != emulator::ONCE && policy != emulator::OFTEN) emulator::fail("no policy of the L2");
    emulator::copy_box(to, map, x, y, barrier, mask, z, (emulator::Word)policy);
}
inline void copy_tile_hinted(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier, u64 policy) {
    own(to);
    own(barrier);
    copy_hinted(to, map, x, y, z, barrier, 1u << cluster_rank(), policy);
}
inline void copy_tile_hinted(u32 to, const TensorMap *map, int x, int y, u32 barrier, u64 policy) {
    copy_tile_hinted(to, map, x, y, -1, barrier, policy);
}
inline void copy_tile_multicast_hinted(u32 to, const TensorMap *map, int x, int y, u32 barrier, u16 mask, u64 policy) {
    copy_hinted(to, map, x, y, -1, barrier, mask, policy);
}
inline void copy_tile_multicast_hinted(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier, u16 mask, u64 policy) {
    copy_hinted(to, map, x, y, z, barrier, mask, policy);
}

} // namespace sassafras
