// Fences, volatile accesses, acquire/release atomics, cache hints, and a spin lock.
#include <cuda/atomic>

extern "C" __global__ void publish(int* data, int* flag, int value) {
  cuda::atomic_ref<int, cuda::thread_scope_device> ready(*flag);
  if (blockIdx.x == 0) {
    data[threadIdx.x] = value + threadIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ready.store(1, cuda::memory_order_release);
  } else {
    if (threadIdx.x == 0)
      while (ready.load(cuda::memory_order_acquire) == 0) __nanosleep(20);
    __syncthreads();
    data[blockIdx.x * blockDim.x + threadIdx.x] = data[threadIdx.x] + 1;
  }
}

extern "C" __global__ void lock_and_add(int* lock, volatile double* total, const double* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0 && i < n) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    *total = *total + in[i];
    __threadfence();
    atomicExch(lock, 0);
  }
}

extern "C" __global__ void streamed_copy(float4* out, const float4* in, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) __stcs(&out[i], __ldcs(&in[i]));
}
