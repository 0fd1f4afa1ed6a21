// Double precision: polynomial, division, square root, a dot product, and a small LU step.
extern "C" __global__ void double_horner(double* y, const double* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double t = x[i], s = 1.0 / 40320.0;
  s = fma(s, t, 1.0 / 5040.0);
  s = fma(s, t, 1.0 / 720.0);
  s = fma(s, t, 1.0 / 120.0);
  s = fma(s, t, 1.0 / 24.0);
  s = fma(s, t, 1.0 / 6.0);
  s = fma(s, t, 0.5);
  s = fma(s, t, 1.0);
  y[i] = fma(s, t, 1.0) / sqrt(1.0 + t * t);
}

extern "C" __global__ void double_dot(double* out, const double* a, const double* b, int n) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum = fma(a[i], b[i], sum);
  for (int delta = 16; delta > 0; delta >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, delta);
  if ((threadIdx.x & 31) == 0) atomicAdd(out, sum);
}

extern "C" __global__ void double_lu4(double* matrices, int count) {
  int which = blockIdx.x * blockDim.x + threadIdx.x;
  if (which >= count) return;
  double a[4][4];
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) a[r][c] = matrices[(r * 4 + c) * count + which];
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int r = k + 1; r < 4; ++r) {
      a[r][k] /= a[k][k];
#pragma unroll
      for (int c = k + 1; c < 4; ++c) a[r][c] -= a[r][k] * a[k][c];
    }
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) matrices[(r * 4 + c) * count + which] = a[r][c];
}
