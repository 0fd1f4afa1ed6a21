// Real calls: functions that may not be inlined, recursion, and a call through a function pointer.
__noinline__ __device__ float softsign(float x) { return x / (1.f + fabsf(x)); }
__noinline__ __device__ float bump(float x) { return fabsf(x) < 1.f ? expf(-1.f / (1.f - x * x)) : 0.f; }
__noinline__ __device__ unsigned long long fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void call_twice(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = softsign(x[i]) + bump(softsign(2.f * x[i]));
}

extern "C" __global__ void call_recursive(unsigned long long* y, const unsigned* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fibonacci(x[i] & 15u);
}

typedef float (*unary)(float);
__device__ unary table[2] = {softsign, bump};
extern "C" __global__ void call_pointer(float* y, const float* x, const int* which, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = table[which[i] & 1](x[i]);
}
