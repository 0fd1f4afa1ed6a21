// Thin wrappers around the PTX instructions that are Hopper's own: mbarriers, tensor copies (TMA), warpgroup matrix
// products (WGMMA), clusters. One function an instruction, no policy. Needs sm_90a.
//
// Shared memory is named by 32-bit addresses of the CTA's window (`shared_address`), as these instructions want it.
#pragma once
#include "ptx.cuh"

namespace sassafras {

// What the host encodes with cuTensorMapEncodeTiled; passed by value as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

__device__ __forceinline__ u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// --- mbarriers -------------------------------------------------------------------------------------------
// A barrier's phase ends when all its arrivals have come and all its announced bytes have landed.

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the cluster and to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives, and announces bytes that copies will bring.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier that lies at the same place in another CTA of the cluster.
__device__ __forceinline__ void barrier_arrive_remote(u32 barrier, u32 rank) {
    asm volatile("{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
                 " mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ bool barrier_try(u32 barrier, u32 parity) {
    u32 done;
    asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

// Waits until the phase of this parity has ended. TAG names the place, for the emulator.
template <int TAG> __device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    while (!barrier_try(barrier, parity)) {
    }
}

// Threads of some warps of the CTA meet; `threads` counts them all. Barrier 0 is that of the whole CTA.
__device__ __forceinline__ void sync_threads(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts as having met them, without waiting: what was written before is seen by those that wait.
__device__ __forceinline__ void arrive_threads(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void sync_warp() { __syncwarp(); }

// Stays in its register: the compiler does not compute it again where it is used.
__device__ __forceinline__ void keep(u32 &value) { asm volatile("" : "+r"(value)); }

// The smaller one, or 0 if that is negative. Unlike a plain minimum, it is never done on the uniform unit, whose word of a constant
// comes by way of a register while everything behind it waits.
__device__ __forceinline__ int least(int a, int b) {
    int smaller;
    asm("min.relu.s32 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
    return smaller;
}

// Lane 0's value, for the whole warp.
__device__ __forceinline__ u32 broadcast(u32 value) { return __shfl_sync(0xffffffffu, value, 0); }

// One thread of a whole warp. The compiler knows that it is one.
__device__ __forceinline__ bool elected() {
    u32 one;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(one));
    return one;
}

// Whether this lane is that thread (always the same one), for what only it has to wait for: a comparison, which leaves the
// compiler free, where another `elected` made it keep values in local memory.
__device__ __forceinline__ bool is_elected(int lane) {
    u32 leader;
    asm volatile("{\n .reg .pred p;\n elect.sync %0|p, 0xffffffff;\n}" : "=r"(leader));
    return (u32)lane == leader;
}

// --- tensor copies ---------------------------------------------------------------------------------------
// x is the coordinate along the innermost dimension. What lies outside of the tensor is read as zeros (and counts
// towards a barrier's bytes) and is not written.

__device__ __forceinline__ void prefetch_map(const TensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void copy_tile(u32 to, const TensorMap *map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

// The same into every CTA of the mask, at the same place; each one's own barrier counts the bytes.
__device__ __forceinline__ void copy_tile_multicast(u32 to, const TensorMap *map, int x, int y, u32 barrier, u16 mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
                 : "memory");
}

// policy: what the L2 does with the lines; as `createpolicy.fractional` makes it (gemm/configs/tma_wgmma.py: STORE_POLICIES).
__device__ __forceinline__ void store_tile(const TensorMap *map, u32 from, int x, int y, u64 policy) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::"l"(map),
                 "r"(x), "r"(y), "r"(from), "l"(policy)
                 : "memory");
}

// The same for a tensor of three dimensions, a layer (z) of it.
__device__ __forceinline__ void copy_tile(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
                 "[%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void copy_tile_multicast(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier, u16 mask) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask)
                 : "memory");
}

__device__ __forceinline__ void store_tile(const TensorMap *map, u32 from, int x, int y, int z, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, %2, %3}], [%4], %5;" ::"l"(
                     map),
                 "r"(x), "r"(y), "r"(z), "r"(from), "l"(policy)
                 : "memory");
}

// Closes the group of stores that this thread has issued.
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but PENDING of this thread's latest groups have been read from shared memory.
template <int PENDING> __device__ __forceinline__ void store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Makes this thread's ordinary writes to shared memory visible to tensor copies and WGMMA.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8x8 matrices of 16-bit elements to shared memory; the mirror image of load_matrices. Lane 8*i + r gives the
// address of row r of matrix i; lane 4*g + t holds elements 2t and 2t+1 of row g, or with TRANSPOSED of column g.
template <bool TRANSPOSED> __device__ __forceinline__ void store_matrices(u32 row, const u32 (&from)[4]) {
    if constexpr (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                     "r"(from[1]), "r"(from[2]), "r"(from[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                     "r"(from[1]), "r"(from[2]), "r"(from[3])
                     : "memory");
}

__device__ __forceinline__ void load_shared(u32 (&to)[4], u32 at) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }

// --- between CTAs of a launch ----------------------------------------------------------------------------
// Partial sums in global memory, past the L1.

__device__ __forceinline__ void store_partial(float *to, const float (&v)[4]) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

// Where `mine` lies in the shared memory of another CTA of the cluster: an address for `store_async`.
__device__ __forceinline__ u32 remote_address(u32 mine, u32 rank) {
    u32 address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(mine), "r"(rank));
    return address;
}

// 16 bytes to there, if wanted, without waiting; a barrier of the same CTA (also a remote address) counts them as they land.
__device__ __forceinline__ void store_async(u32 to, const float (&v)[4], u32 barrier, bool wanted) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %6, 0;\n"
                 " @p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n}" ::"r"(to),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier), "r"((u32)wanted)
                 : "memory");
}

// `meet_cluster` in two halves: what lies between need not wait.
__device__ __forceinline__ void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// --- registers -------------------------------------------------------------------------------------------
// All warps of a warpgroup execute it.

template <int COUNT> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// --- warpgroup matrix products ---------------------------------------------------------------------------

// Orders this warpgroup's accesses to accumulators before the products that follow.
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of products issued since the last call.
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but PENDING of the latest groups are done.
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from reading accumulators before the wait that precedes this.
template <int COUNT> __device__ __forceinline__ void settle(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Products<N>::issue<BF16, A_MN, B_MN>(d, a, b, accumulate): d (64 x N, FP32) = or += a (64 x 16) * b (16 x N), both from
// shared memory, described by matrix descriptors; A_MN or B_MN: the operand's rows (columns) are contiguous, not k.
// Thread 32*w + 4*g + t holds in d[4*j + e] row 16*w + g + 8*(e / 2), column 8*j + 2*t + e % 2.
// (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma.mma_async.m64nNk16)
template <int N> struct Products;

// The compiler wants an asm statement for each N: operand numbers are part of its text.
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
#define SASSAFRAS_PRODUCT(N, TYPE, LIST, A, B, P, TA, TB, ...)                                                   \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #P ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N              \
                 "k16.f32." TYPE "." TYPE " {" LIST "}, %" #A ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}"             \
                 : __VA_ARGS__                                                                                     \
                 : "l"(a), "l"(b), "r"(accumulate), "n"((int)A_MN), "n"((int)B_MN));
#define SASSAFRAS_PRODUCTS(N, LIST, A, B, P, TA, TB, ...)                                                           \
    template <> struct Products<N> {                                                                               \
        template <bool BF16, bool A_MN, bool B_MN>                                                                 \
        static __device__ __forceinline__ void issue(float (&d)[N / 2], u64 a, u64 b, u32 accumulate) {            \
            if constexpr (BF16) {                                                                                  \
                SASSAFRAS_PRODUCT(N, "bf16", LIST, A, B, P, TA, TB, __VA_ARGS__)                                    \
            } else {                                                                                               \
                SASSAFRAS_PRODUCT(N, "f16", LIST, A, B, P, TA, TB, __VA_ARGS__)                                     \
            }                                                                                                      \
        }                                                                                                          \
    };
SASSAFRAS_PRODUCTS(16, "%0, %1, %2, %3, %4, %5, %6, %7", 8, 9, 10, 11, 12, SASSAFRAS_F4(0), SASSAFRAS_F4(4))
SASSAFRAS_PRODUCTS(32, SASSAFRAS_D0, 16, 17, 18, 19, 20, SASSAFRAS_F16(0))
SASSAFRAS_PRODUCTS(48, SASSAFRAS_D0 ", " "%16, %17, %18, %19, %20, %21, %22, %23", 24, 25, 26, 27, 28, SASSAFRAS_F16(0), SASSAFRAS_F4(16), SASSAFRAS_F4(20))
SASSAFRAS_PRODUCTS(64, SASSAFRAS_D0 ", " SASSAFRAS_D1, 32, 33, 34, 35, 36, SASSAFRAS_F16(0), SASSAFRAS_F16(16))
SASSAFRAS_PRODUCTS(80, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " "%32, %33, %34, %35, %36, %37, %38, %39", 40, 41, 42, 43, 44, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F4(32), SASSAFRAS_F4(36))
SASSAFRAS_PRODUCTS(96, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2, 48, 49, 50, 51, 52, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32))
SASSAFRAS_PRODUCTS(112, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " "%48, %49, %50, %51, %52, %53, %54, %55", 56, 57, 58, 59, 60, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F4(48), SASSAFRAS_F4(52))
SASSAFRAS_PRODUCTS(128, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3, 64, 65, 66, 67, 68, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48))
SASSAFRAS_PRODUCTS(144, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " "%64, %65, %66, %67, %68, %69, %70, %71", 72, 73, 74, 75, 76, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F4(64), SASSAFRAS_F4(68))
SASSAFRAS_PRODUCTS(152, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75", 76, 77, 78, 79, 80, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F4(64), SASSAFRAS_F4(68), SASSAFRAS_F4(72))
SASSAFRAS_PRODUCTS(160, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " SASSAFRAS_D4, 80, 81, 82, 83, 84, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F16(64))
SASSAFRAS_PRODUCTS(168, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " SASSAFRAS_D4 ", " "%80, %81, %82, %83", 84, 85, 86, 87, 88, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F16(64), SASSAFRAS_F4(80))
SASSAFRAS_PRODUCTS(176, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " SASSAFRAS_D4 ", " "%80, %81, %82, %83, %84, %85, %86, %87", 88, 89, 90, 91, 92, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F16(64), SASSAFRAS_F4(80), SASSAFRAS_F4(84))
SASSAFRAS_PRODUCTS(192, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " SASSAFRAS_D4 ", " SASSAFRAS_D5, 96, 97, 98, 99, 100, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F16(64), SASSAFRAS_F16(80))
SASSAFRAS_PRODUCTS(224, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " SASSAFRAS_D4 ", " SASSAFRAS_D5 ", " SASSAFRAS_D6, 112, 113, 114, 115, 116, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F16(64), SASSAFRAS_F16(80), SASSAFRAS_F16(96))
SASSAFRAS_PRODUCTS(256, SASSAFRAS_D0 ", " SASSAFRAS_D1 ", " SASSAFRAS_D2 ", " SASSAFRAS_D3 ", " SASSAFRAS_D4 ", " SASSAFRAS_D5 ", " SASSAFRAS_D6 ", " SASSAFRAS_D7, 128, 129, 130, 131, 132, SASSAFRAS_F16(0), SASSAFRAS_F16(16), SASSAFRAS_F16(32), SASSAFRAS_F16(48), SASSAFRAS_F16(64), SASSAFRAS_F16(80), SASSAFRAS_F16(96), SASSAFRAS_F16(112))
#undef SASSAFRAS_PRODUCTS
#undef SASSAFRAS_PRODUCT
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
