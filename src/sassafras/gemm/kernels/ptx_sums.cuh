// A thin wrapper around a load of partial sums. Comes after ptx_hopper.cuh.
#pragma once

namespace sassafras {

// 16 bytes past the L1. ptxas keeps such loads in the order in which they are written, those of ld.global.cg it does not.
__device__ __forceinline__ void load_partial_in_order(float (&v)[4], const float *from) {
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "l"(from)
                 : "memory");
}

} // namespace sassafras
