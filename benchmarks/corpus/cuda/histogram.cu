// Byte histogram: shared-memory atomics, then global ones; and one with warp aggregation.
extern "C" __global__ void histogram_bytes(unsigned* bins, const unsigned* data, int n) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    unsigned word = data[i];
    atomicAdd(&local[word & 255u], 1u);
    atomicAdd(&local[(word >> 8) & 255u], 1u);
    atomicAdd(&local[(word >> 16) & 255u], 1u);
    atomicAdd(&local[word >> 24], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    if (local[i]) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void histogram_matched(unsigned* bins, const int* keys, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int key = keys[i] & 1023;
  unsigned active = __activemask();
  unsigned peers = __match_any_sync(active, key);
  int leader = __ffs(peers) - 1;
  if ((threadIdx.x & 31) == leader) atomicAdd(&bins[key], __popc(peers));
}

extern "C" __global__ void compare_and_swap_max(float* best, const float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int* slot = (int*)best;
  int seen = *slot;
  while (__int_as_float(seen) < data[i]) {
    int before = atomicCAS(slot, seen, __float_as_int(data[i]));
    if (before == seen) break;
    seen = before;
  }
}
