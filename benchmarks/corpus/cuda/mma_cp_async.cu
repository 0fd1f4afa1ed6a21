// A pipelined FP16 GEMM tile: cp.async into three stages, ldmatrix, mma.sync.m16n8k16. 64x64x32, four warps.
#include <cuda_fp16.h>
constexpr int kStages = 3, kTile = 64, kDepth = 32, kPitch = kDepth + 8;

__device__ void copy16(void* shared, const void* global) {
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global));
}

extern "C" __global__ void __launch_bounds__(128) mma_pipelined(float* c, const __half* a, const __half* b, int n, int k) {
  __shared__ __align__(16) __half as[kStages][kTile][kPitch], bs[kStages][kTile][kPitch];
  int row0 = blockIdx.y * kTile, col0 = blockIdx.x * kTile, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float acc[8][4] = {};
  auto fetch = [&](int stage, int depth) {
    for (int p = threadIdx.x; p < kTile * kDepth / 8; p += 128) {
      int r = p / 4, d = (p % 4) * 8;
      copy16(&as[stage][r][d], a + (size_t)(row0 + r) * k + depth + d);
      copy16(&bs[stage][r][d], b + (size_t)(col0 + r) * k + depth + d);
    }
  };
  int steps = k / kDepth;
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) fetch(s, s * kDepth);
    asm volatile("cp.async.commit_group;");
  }
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
    __syncthreads();
    if (step + kStages - 1 < steps) fetch((step + kStages - 1) % kStages, (step + kStages - 1) * kDepth);
    asm volatile("cp.async.commit_group;");
    int stage = step % kStages;
#pragma unroll
    for (int d = 0; d < kDepth; d += 16) {
      unsigned fa[4];
      unsigned at = (unsigned)__cvta_generic_to_shared(&as[stage][warp * 16 + (lane & 15)][d + (lane >> 4) * 8]);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(at));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        unsigned fb[2];
        unsigned bt = (unsigned)__cvta_generic_to_shared(&bs[stage][j * 8 + (lane & 7)][d + ((lane >> 3) & 1) * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(bt));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3])
                     : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
      }
    }
  }
  int r = row0 + warp * 16 + lane / 4, col = col0 + (lane & 3) * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    *(float2*)&c[(size_t)r * n + col + j * 8] = make_float2(acc[j][0], acc[j][1]);
    *(float2*)&c[(size_t)(r + 8) * n + col + j * 8] = make_float2(acc[j][2], acc[j][3]);
  }
}
