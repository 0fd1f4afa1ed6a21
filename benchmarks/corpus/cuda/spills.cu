// Local memory: arrays indexed at run time, and more live values than registers.
extern "C" __global__ void local_array(int* y, const int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int bins[64];
  for (int k = 0; k < 64; ++k) bins[k] = k;
  for (int k = 0; k < 32; ++k) {
    int p = (x[i] >> (k & 15)) & 63, q = (x[i] * (k + 1)) & 63;
    int t = bins[p];
    bins[p] = bins[q];
    bins[q] = t;
  }
  int sum = 0;
  for (int k = 0; k < 64; ++k) sum += bins[k] * k;
  y[i] = sum;
}

extern "C" __global__ void __launch_bounds__(1024, 2) many_live(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v[64];
#pragma unroll
  for (int k = 0; k < 64; ++k) v[k] = x[i + k * n];
#pragma unroll
  for (int round = 0; round < 3; ++round)
#pragma unroll
    for (int k = 0; k < 64; ++k) v[k] = fmaf(v[(k * 7 + 3) & 63], v[(k + 31) & 63], v[k]);
#pragma unroll
  for (int k = 0; k < 64; ++k) y[i + k * n] = v[k];
}
