// Thin wrappers around PTX instructions, as in ptx_hopper.cuh, for attention.
#pragma once
#include "ptx_stream.cuh"

namespace sassafras {

// 16 bytes that are read once, of lines of which the lane or its neighbours read the rest at once: they leave the L1 first. Where not `ok`, `to` stays as it is: nothing waits for zeros.
__device__ __forceinline__ void load_once(u32 (&to)[4], const void *from, bool ok) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n @p ld.global.L1::evict_first.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
                 : "l"(from), "r"((u32)ok));
}

// 16 bytes of shared memory, loaded at each use: plain loads in a loop that stores nothing become registers.
__device__ __forceinline__ void load_shared_again(u32 (&to)[4], u32 at) {
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

// Brings the line of this address into the L2, where all writes meet: what is loaded from there later is not older for it. It may come
// before wait_for_predecessors.
__device__ __forceinline__ void prefetch_line(const void *from, bool ok) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %1, 0;\n @p prefetch.global.L2 [%0];\n}" ::"l"(from), "r"((u32)ok));
}

// An 8x8 matrix of 16-bit elements, transposed: lane 4*g + t gives elements 2t and 2t+1 of row g and receives those of column g.
__device__ __forceinline__ u32 transposed(u32 pair) {
    u32 d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(pair));
    return d;
}

// Of a word that has one.
__device__ __forceinline__ int lowest_bit(u32 word) { return __ffs((int)word) - 1; }

// The larger one; the other one where one is NaN.
__device__ __forceinline__ float larger(float a, float b) {
    float d;
    asm("max.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

} // namespace sassafras
