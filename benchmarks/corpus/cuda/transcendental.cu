// The math library: functions with slow paths, special values, and integer/float conversions.
extern "C" __global__ void trig(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float s, c;
  sincosf(x[i], &s, &c);
  y[i] = atan2f(s, c) + tanf(0.1f * x[i]);
}

extern "C" __global__ void special(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = erff(x[i]) + lgammaf(fabsf(x[i]) + 1.f) + powf(fabsf(x[i]), 0.3f) + cbrtf(x[i]) + fmodf(x[i], 0.7f);
}

extern "C" __global__ void convert(int* a, unsigned* b, short* c, double* d, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  a[i] = __float2int_rn(v);
  b[i] = __float2uint_rz(fabsf(v));
  c[i] = (short)__float2int_ru(v);
  d[i] = (double)v + (double)a[i] + (double)(long long)(v * 1e6f);
}
