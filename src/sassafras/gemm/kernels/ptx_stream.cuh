// Thin wrappers around PTX instructions, as in ptx_hopper.cuh, that the stream kernel alone uses.
#pragma once
#include "ptx_hopper.cuh"

namespace sassafras {

// `bytes` that follow each other (a multiple of 16, from and to multiples of 16) to shared memory; they land at `barrier`.
__device__ __forceinline__ void copy_row(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

// The same of bytes that no other CTA reads: their lines leave the L2 first.
__device__ __forceinline__ void copy_row_once(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("{\n .reg .b64 once;\n createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
                 " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], once;\n}" ::"r"(
                     to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// `mma_m16n8k16` of BF16.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

} // namespace sassafras
