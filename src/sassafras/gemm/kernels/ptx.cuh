// Thin wrappers around the PTX instructions that our kernels use. One function an instruction, no policy.
// Self-contained: compiles with NVRTC and nvcc without any header.
#pragma once

namespace sassafras {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Two FP16 values are carried as one u32, the element with the lower address in the lower half.

// --- global memory ---------------------------------------------------------------------------------------
// `ok` false gives zeros. Not ld.global.nc: such loads may be moved ahead of wait_for_predecessors, and were.

__device__ __forceinline__ void load_global(u32 (&to)[4], const void *from, bool ok) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n"
        " mov.u32 %0, 0;\n mov.u32 %1, 0;\n mov.u32 %2, 0;\n mov.u32 %3, 0;\n"
        " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "l"(from), "r"((u32)ok));
}

__device__ __forceinline__ void load_global(u32 (&to)[2], const void *from, bool ok) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %3, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n"
        " @p ld.global.v2.u32 {%0, %1}, [%2];\n}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "l"(from), "r"((u32)ok));
}

__device__ __forceinline__ void load_global(u32 (&to)[1], const void *from, bool ok) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n mov.u32 %0, 0;\n @p ld.global.u32 %0, [%1];\n}"
        : "=&r"(to[0])
        : "l"(from), "r"((u32)ok));
}

__device__ __forceinline__ void store_global(void *to, const u32 (&from)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]),
                 "r"(from[3])
                 : "memory");
}

__device__ __forceinline__ void store_global(void *to, const u32 (&from)[2]) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(from[0]), "r"(from[1]) : "memory");
}

__device__ __forceinline__ void store_global(void *to, const u32 (&from)[1]) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(from[0]) : "memory");
}

__device__ __forceinline__ void store_global_u16(void *to, u16 from) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(from) : "memory");
}

// --- arithmetic ------------------------------------------------------------------------------------------

// d += a * b on the tensor core: a is 16x16 FP16, b is 16x8 FP16, d is 16x8 FP32. For lane 4*g + t:
//   a[0] row g, columns 2t and 2t+1;  a[1] row g+8;  a[2] row g, columns 2t+8 and 2t+9;  a[3] row g+8 of these
//   b[0] rows 2t and 2t+1 of column g;  b[1] rows 2t+8 and 2t+9
//   d[0], d[1] row g, columns 2t and 2t+1;  d[2], d[3] row g+8
// (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type")
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of BF16.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The lower halves of two words, x's first.
__device__ __forceinline__ u32 lower_halves(u32 x, u32 y) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(d) : "r"(x), "r"(y));
    return d;
}

// The upper halves of two words, x's first.
__device__ __forceinline__ u32 upper_halves(u32 x, u32 y) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(d) : "r"(x), "r"(y));
    return d;
}

// Two FP32 values rounded to nearest even FP16, `first` in the lower half.
__device__ __forceinline__ u32 pack_f16(float first, float second) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(second), "f"(first));
    return d;
}

// One FP32 value rounded to nearest even FP16.
__device__ __forceinline__ u16 to_f16(float value) { return (u16)pack_f16(value, 0.0f); }

// Two FP32 values rounded to nearest even BF16, `first` in the lower half.
__device__ __forceinline__ u32 pack_bf16(float first, float second) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(second), "f"(first));
    return d;
}

// The value of an FP16, of a BF16 pattern.
__device__ __forceinline__ float from_f16(u16 value) {
    float d;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(value));
    return d;
}
__device__ __forceinline__ float from_bf16(u16 value) {
    float d;
    asm("mov.b32 %0, {0, %1};" : "=f"(d) : "h"(value));
    return d;
}

// 2^x and 1/x with some 22 bits; 0 for results below 2^-126.
__device__ __forceinline__ float exp2_approximate(float x) {
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}
__device__ __forceinline__ float reciprocal(float x) {
    float d;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

// --- launches one after the other ------------------------------------------------------------------------
// Programmatic dependent launch. A launch with the attribute may start as soon as every CTA of the launch before it has called
// start_successors (or has ended). Its own wait_for_predecessors returns when that launch has ended and its writes are visible.
// Without the attribute neither has an effect.
//
// A thread calls start_successors only after a thread of its CTA has returned from wait_for_predecessors. Then a successor never
// runs beside anything older than our launch: a successor of another author may rely on that before its own wait.

__device__ __forceinline__ void start_successors() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Comes before a thread's first access to global memory.
__device__ __forceinline__ void wait_for_predecessors() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// --- shared memory, clusters -----------------------------------------------------------------------------

extern __shared__ __align__(16) float dynamic_shared[];

__device__ __forceinline__ float *shared_floats() { return dynamic_shared; }

__device__ __forceinline__ void sync_cta() { __syncthreads(); }

// 16 bytes from global to shared memory, asynchronously and past the L1; `ok` false writes zeros.
__device__ __forceinline__ void copy_async(void *to, const void *from, bool ok) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(ok ? 16 : 0)
                 : "memory");
}

// The same for BYTES = 4 or 8 bytes, aligned to as many; through the L1.
template <int BYTES> __device__ __forceinline__ void copy_async_part(void *to, const void *from, bool ok) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(BYTES), "r"(ok ? BYTES : 0)
                 : "memory");
}

// One element, zero when not `ok`.
__device__ __forceinline__ u16 load_global_u16(const u16 *from, bool ok) {
    u16 value;
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n mov.u16 %0, 0;\n @p ld.global.u16 %0, [%1];\n}"
                 : "=&h"(value)
                 : "l"(from), "r"((u32)ok));
    return value;
}

// Closes the group of copies issued since the last call (an empty group is one, too).
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's latest groups are unfinished.
template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices of FP16 from shared memory. Lane 8*i + r gives the address of row r of matrix i; lane
// 4*g + t receives in to[i] the elements 2t and 2t+1 of row g, or with `transposed` those of column g.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// Barrier over all threads of the cluster; shared memory written before it is visible after it.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same without ordering what was written: for barriers that a fence has published, and for leaving.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}

// The float that lies where `mine` lies, in the shared memory of another CTA of the cluster.
__device__ __forceinline__ float load_remote(const float *mine, u32 rank) {
    float value;
    u32 address;
    const u32 here = (u32)__cvta_generic_to_shared(mine);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

// The same for four floats, 16-byte aligned.
__device__ __forceinline__ void load_remote(float (&to)[4], const float *mine, u32 rank) {
    u32 address;
    const u32 here = (u32)__cvta_generic_to_shared(mine);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(address)
                 : "memory");
}

} // namespace sassafras
