// Packed half and bfloat16 arithmetic, comparisons and conversions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void half2_axpy_clamp(__half2* y, const __half2* x, __half2 a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half2 v = __hfma2(a, x[i], y[i]);
  __half2 low = __float2half2_rn(-6.f), high = __float2half2_rn(6.f);
  y[i] = __hmin2(__hmax2(v, low), high);
}

extern "C" __global__ void half_gelu(__half* y, const __half* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = __half2float(x[i]);
  y[i] = __float2half(0.5f * v * (1.f + tanhf(0.79788456f * (v + 0.044715f * v * v * v))));
}

extern "C" __global__ void bf16_mix(__nv_bfloat162* y, const __nv_bfloat162* a, const __nv_bfloat162* b, float t, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float2 u = __bfloat1622float2(a[i]), v = __bfloat1622float2(b[i]);
  y[i] = __floats2bfloat162_rn(u.x + t * (v.x - u.x), u.y + t * (v.y - u.y));
}

extern "C" __global__ void half2_select(__half2* y, const __half2* a, const __half2* b, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    __half2 greater = __hgt2(a[i], b[i]);
    y[i] = __hadd2(__hmul2(greater, a[i]), __hmul2(__hsub2(__float2half2_rn(1.f), greater), b[i]));
  }
}
