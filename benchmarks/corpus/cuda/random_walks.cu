// Counter-based random numbers (ten rounds of 32x32 multiplications) and a Monte Carlo estimate.
__device__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    unsigned h0 = __umulhi(0xD2511F53u, counter.x), l0 = 0xD2511F53u * counter.x;
    unsigned h1 = __umulhi(0xCD9E8D57u, counter.z), l1 = 0xCD9E8D57u * counter.z;
    counter = make_uint4(h1 ^ counter.y ^ key.x, l1, h0 ^ counter.w ^ key.y, l0);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

extern "C" __global__ void estimate_pi(unsigned* inside, unsigned seed, int samples) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, count = 0;
  for (int s = 0; s < samples; ++s) {
    uint4 r = philox(make_uint4(thread, s, 0, 0), make_uint2(seed, 7));
    float x = r.x * 2.3283064e-10f, y = r.y * 2.3283064e-10f, u = r.z * 2.3283064e-10f, v = r.w * 2.3283064e-10f;
    count += (x * x + y * y < 1.f) + (u * u + v * v < 1.f);
  }
  count = __reduce_add_sync(0xffffffffu, count);
  if ((threadIdx.x & 31) == 0) atomicAdd(inside, count);
}

extern "C" __global__ void gaussian(float2* out, unsigned seed, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint4 r = philox(make_uint4(i, 0, 1, 0), make_uint2(seed, 11));
  float radius = sqrtf(-2.f * logf((r.x + 1.f) * 2.3283064e-10f)), angle = 6.2831853f * (r.y * 2.3283064e-10f);
  float s, c;
  sincosf(angle, &s, &c);
  out[i] = make_float2(radius * c, radius * s);
}
