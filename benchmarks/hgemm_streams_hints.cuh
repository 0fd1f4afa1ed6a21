// Tensor copies that say what the L2 shall do with what they read, for hgemm_streams.cu. One function an instruction.

namespace sassafras {

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
