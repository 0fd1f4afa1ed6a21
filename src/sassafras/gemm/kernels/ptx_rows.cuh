// Further thin wrappers, for kernels whose rows begin anywhere: see sm90_hgemm_any_rows.cuh. Needs sm_90a.
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

// Products that read A from registers. Those must stay as they are until products_wait says that they have been read;
// `keep` after that wait tells the compiler so.
template <int COUNT> __device__ __forceinline__ void keep(u32 (&a)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// RegisterProducts<N>::issue<B_MN>(d, a, b, accumulate): as Products, FP16, with thread 32*w + 4*g + t's fragment of A:
//   a[0] row 16*w + g, k 2t and 2t+1;  a[1] row + 8;  a[2] k + 8;  a[3] row + 8, k + 8.
// (PTX ISA, "Register Fragments" of wgmma.mma_async.m64nNk16)
template <int N> struct RegisterProducts;

#define SASSAFRAS_D0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SASSAFRAS_D1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SASSAFRAS_D2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SASSAFRAS_D3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SASSAFRAS_D4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SASSAFRAS_D5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SASSAFRAS_D6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define SASSAFRAS_D7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SASSAFRAS_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SASSAFRAS_F16(i) SASSAFRAS_F4(i), SASSAFRAS_F4(i + 4), SASSAFRAS_F4(i + 8), SASSAFRAS_F4(i + 12)
#define SASSAFRAS_PRODUCTS(N, LIST, A0, A1, A2, A3, B, P, TB, ...)                                                  \
    template <> struct RegisterProducts<N> {                                                                       \
        template <bool B_MN>                                                                                       \
        static __device__ __forceinline__ void issue(float (&d)[N / 2], const u32 *a, u64 b, u32 accumulate) {      \
            asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #P ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N    \
                         "k16.f32.f16.f16 {" LIST "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B                \
                         ", p, 1, 1, %" #TB ";\n}"                                                                  \
                         : __VA_ARGS__                                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B_MN));     \
        }                                                                                                          \
    };
SASSAFRAS_PRODUCTS(64, SASSAFRAS_D0 ", " SASSAFRAS_D1, 32, 33, 34, 35, 36, 37, 38, SASSAFRAS_F16(0), SASSAFRAS_F16(16))
SASSAFRAS_PRODUCTS(128, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3, 64, 65, 66, 67, 68, 69, 70, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48))
SASSAFRAS_PRODUCTS(256, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " SASSAFRAS_D4 ", " SASSAFRAS_D5 ", " SASSAFRAS_D6 ", " SASSAFRAS_D7, 128, 129, 130, 131, 132, 133, 134, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F16(64), SASSAFRAS_F16(80), SASSAFRAS_F16(96), SASSAFRAS_F16(112))
#undef SASSAFRAS_PRODUCTS
#undef SASSAFRAS_F16
#undef SASSAFRAS_F4
#undef SASSAFRAS_D0
#undef SASSAFRAS_D1
#undef SASSAFRAS_D2
#undef SASSAFRAS_D3
#undef SASSAFRAS_D4
#undef SASSAFRAS_D5
#undef SASSAFRAS_D6
#undef SASSAFRAS_D7

} // namespace sassafras
