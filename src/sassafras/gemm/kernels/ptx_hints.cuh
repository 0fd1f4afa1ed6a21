// Thin wrappers around tensor copies that say what the L2 shall do with what they read. One function an instruction.
// Comes after ptx_hopper.cuh.
#pragma once

namespace sassafras {

// Whether lines are the first to go, because nobody reads them again, or like all others. None is told to stay: such lines
// keep their privilege after the kernel, for as long as the hardware likes.
__device__ __forceinline__ u64 l2_policy(bool once) {
    u64 first, normal;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    return once ? first : normal;
}

__device__ __forceinline__ void copy_tile_hinted(u32 to, const TensorMap *map, int x, int y, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void copy_tile_hinted(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void copy_tile_multicast_hinted(u32 to, const TensorMap *map, int x, int y, u32 barrier, u16 mask,
                                                           u64 policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void copy_tile_multicast_hinted(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier,
                                                           u16 mask, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask), "l"(policy)
                 : "memory");
}

} // namespace sassafras
