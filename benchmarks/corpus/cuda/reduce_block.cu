// Sum of an array: grid-stride loop, shuffles within a warp, shared memory between warps. Two data types.
template <typename T>
__device__ T block_sum(T value) {
  __shared__ T partial[32];
  for (int delta = 16; delta > 0; delta >>= 1) value += __shfl_down_sync(0xffffffffu, value, delta);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = threadIdx.x < (blockDim.x >> 5) ? partial[lane] : T(0);
  if (warp == 0)
    for (int delta = 16; delta > 0; delta >>= 1) value += __shfl_down_sync(0xffffffffu, value, delta);
  return value;
}

extern "C" __global__ void reduce_float(float* out, const float* in, int n) {
  float sum = 0.f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

extern "C" __global__ void reduce_long(long long* out, const int* in, long long n) {
  long long sum = 0;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (long long)blockDim.x)
    sum += (long long)in[i] * in[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
