// Maximum, minimum and sum at once over float4 loads; results by atomics.
extern "C" __global__ void extremes(int* maximum, int* minimum, float* total, const float4* in, int n4) {
  float low = 3.0e38f, high = -3.0e38f, sum = 0.f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n4; i += gridDim.x * blockDim.x) {
    float4 v = in[i];
    low = fminf(fminf(low, v.x), fminf(v.y, fminf(v.z, v.w)));
    high = fmaxf(fmaxf(high, v.x), fmaxf(v.y, fmaxf(v.z, v.w)));
    sum += (v.x + v.y) + (v.z + v.w);
  }
  for (int delta = 16; delta > 0; delta >>= 1) {
    low = fminf(low, __shfl_xor_sync(0xffffffffu, low, delta));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, delta));
    sum += __shfl_xor_sync(0xffffffffu, sum, delta);
  }
  if ((threadIdx.x & 31) == 0) {
    int bits_high = __float_as_int(high), bits_low = __float_as_int(low);
    atomicMax(maximum, bits_high >= 0 ? bits_high : bits_high ^ 0x7fffffff);
    atomicMin(minimum, bits_low >= 0 ? bits_low : bits_low ^ 0x7fffffff);
    atomicAdd(total, sum);
  }
}

extern "C" __global__ void warp_reduce_integers(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned value = i < n ? in[i] : 0u;
  unsigned sum = __reduce_add_sync(0xffffffffu, value);
  unsigned most = __reduce_max_sync(0xffffffffu, value);
  unsigned bits = __reduce_or_sync(0xffffffffu, value);
  unsigned votes = __ballot_sync(0xffffffffu, value > 7u);
  if ((threadIdx.x & 31) == 0) out[i >> 5] = sum ^ most ^ bits ^ __popc(votes);
}
