// Thin wrappers around PTX instructions, as in ptx_hopper.cuh, for kernels that read what is fixed before the launch ahead has ended.
#pragma once
#include "ptx_hopper.cuh"

namespace sassafras {

// `bytes` that follow each other (a multiple of 16, from and to multiples of 16) to shared memory; they land at `barrier`.
__device__ __forceinline__ void copy_row(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

// The same of bytes that nothing writes, so that it may come before wait_for_predecessors; and of those that no other CTA reads:
// their lines leave the L2 first.
__device__ __forceinline__ void copy_fixed_row(u32 to, const void *from, u32 bytes, u32 barrier) { copy_row(to, from, bytes, barrier); }
__device__ __forceinline__ void copy_row_once(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("{\n .reg .b64 once;\n createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
                 " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], once;\n}" ::"r"(
                     to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// 16 bytes that nothing writes, `ok` false: zeros. It may come before wait_for_predecessors.
__device__ __forceinline__ void load_fixed(u32 (&to)[4], const void *from, bool ok) { load_global(to, from, ok); }

// start_successors before this CTA has waited. The kernel says why that is safe.
__device__ __forceinline__ void start_successors_at_once() { start_successors(); }

// 1 / sqrt(x) with some 22 bits.
__device__ __forceinline__ float reciprocal_root(float x) {
    float d;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

__device__ __forceinline__ u32 as_word(float value) { return __float_as_uint(value); }

// A bit for each lane of the warp.
__device__ __forceinline__ u32 lanes_where(bool holds) { return __ballot_sync(0xffffffffu, holds); }

// Two products, each rounded to nearest even.
template <bool BF16> __device__ __forceinline__ u32 products_of_two(u32 x, u32 y) {
    u32 d;
    if constexpr (BF16)
        asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
    else
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
    return d;
}

} // namespace sassafras
