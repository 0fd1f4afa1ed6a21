// arch == sm_90a
// One warpgroup, one m64n64k16 chain: wgmma from shared memory descriptors without swizzle.
#include <cuda_fp16.h>
#include <cstdint>

__device__ uint64_t descriptor(const void* p, int leading, int stride) {
  uint64_t a = (uint64_t)__cvta_generic_to_shared(p);
  return ((a & 0x3ffff) >> 4) | ((uint64_t)(leading >> 4) << 16) | ((uint64_t)(stride >> 4) << 32);
}

extern "C" __global__ void __launch_bounds__(128) wgmma_tile(float* c, const __half* a, const __half* b, int k) {
  __shared__ alignas(128) __half as[64 * 16], bs[64 * 16];
  float d[32] = {};
  for (int k0 = 0; k0 < k; k0 += 16) {
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 16; i += 128) {
      int row = i / 16, col = i % 16, core = (row / 8) * 128 + (col / 8) * 64 + (row % 8) * 8 + col % 8;
      as[core] = a[row * k + k0 + col];
      bs[core] = b[row * k + k0 + col];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint64_t da = descriptor(as, 128, 256), db = descriptor(bs, 128, 256);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "%32, %33, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(da), "l"(db));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  for (int j = 0; j < 8; ++j)
    for (int q = 0; q < 4; ++q)
      c[(warp * 16 + lane / 4 + (q / 2) * 8) * 64 + j * 8 + (lane & 3) * 2 + (q & 1)] = d[j * 4 + q];
}
