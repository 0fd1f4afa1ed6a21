// Further thin wrappers, for kernels whose rows begin anywhere: see sm90_gemm_unaligned.cuh. Needs sm_90a.
// Comes after ptx_hopper.cuh.
#pragma once

namespace sassafras {

// The upper half of x, then the lower half of y: what lies one element further on.
__device__ __forceinline__ u32 middle_halves(u32 x, u32 y) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, 0x5432;" : "=r"(d) : "r"(x), "r"(y));
    return d;
}

// Another lane's value.
__device__ __forceinline__ u32 value_of(u32 value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

__device__ __forceinline__ void store_shared(u32 at, const u32 (&from)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(from[0]), "r"(from[1]), "r"(from[2]),
                 "r"(from[3])
                 : "memory");
}

__device__ __forceinline__ void store_shared(u32 at, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

__device__ __forceinline__ void store_shared(u32 at, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}

// Four floats that lie where `mine` lies, in the shared memory of another CTA of the cluster, where they are wanted.
__device__ __forceinline__ void load_remote(float (&v)[4], const float *mine, u32 rank, bool wanted) {
    asm volatile("{\n .reg .pred p;\n .reg .b32 remote;\n setp.ne.u32 p, %6, 0;\n mapa.shared::cluster.u32 remote, %4, %5;\n"
                 " @p ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
                 : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
                 : "r"(shared_address(mine)), "r"(rank), "r"((u32)wanted)
                 : "memory");
}

} // namespace sassafras
