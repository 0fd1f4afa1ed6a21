// Bitonic sort of 1024 keys with payloads in shared memory.
extern "C" __global__ void bitonic(unsigned* keys, unsigned* payloads) {
  __shared__ unsigned key[1024], payload[1024];
  int t = threadIdx.x, base = blockIdx.x * 1024;
  for (int i = t; i < 1024; i += blockDim.x) {
    key[i] = keys[base + i];
    payload[i] = payloads[base + i];
  }
  for (int size = 2; size <= 1024; size <<= 1)
    for (int stride = size >> 1; stride > 0; stride >>= 1) {
      __syncthreads();
      for (int i = t; i < 512; i += blockDim.x) {
        int low = 2 * i - (i & (stride - 1)), high = low + stride;
        bool up = (low & size) == 0;
        if ((key[low] > key[high]) == up) {
          unsigned swap = key[low];
          key[low] = key[high];
          key[high] = swap;
          swap = payload[low];
          payload[low] = payload[high];
          payload[high] = swap;
        }
      }
    }
  __syncthreads();
  for (int i = t; i < 1024; i += blockDim.x) {
    keys[base + i] = key[i];
    payloads[base + i] = payload[i];
  }
}
