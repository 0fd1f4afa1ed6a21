// Sub-byte packing and FP8 conversions: INT4 pairs, per-group scales, saturation.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void pack_int4(unsigned char* out, float* scales, const float* in, int groups) {
  int group = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
  if (group >= groups) return;
  float4 v = ((const float4*)in)[group * 32 + lane];
  float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  for (int delta = 16; delta > 0; delta >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, delta));
  float inverse = most > 0.f ? 7.f / most : 0.f;
  int a = __float2int_rn(v.x * inverse) & 15, b = __float2int_rn(v.y * inverse) & 15;
  int c = __float2int_rn(v.z * inverse) & 15, d = __float2int_rn(v.w * inverse) & 15;
  ((unsigned short*)out)[group * 32 + lane] = (unsigned short)(a | b << 4 | c << 8 | d << 12);
  if (lane == 0) scales[group] = most / 7.f;
}

extern "C" __global__ void to_fp8(__nv_fp8x4_storage_t* out, const float4* in, float scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 v = in[i];
  unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(v.x * scale, v.y * scale), __NV_SATFINITE, __NV_E4M3);
  unsigned high = __nv_cvt_float2_to_fp8x2(make_float2(v.z * scale, v.w * scale), __NV_SATFINITE, __NV_E5M2);
  out[i] = low | high << 16;
}
