// Prefix sums: inclusive within a block by warp shuffles, and a segmented variant driven by head flags.
__device__ int warp_scan(int value, int lane) {
#pragma unroll
  for (int delta = 1; delta < 32; delta <<= 1) {
    int other = __shfl_up_sync(0xffffffffu, value, delta);
    if (lane >= delta) value += other;
  }
  return value;
}

extern "C" __global__ void scan_block(int* out, int* totals, const int* in, int n) {
  __shared__ int sums[32];
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int value = warp_scan(i < n ? in[i] : 0, lane);
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  if (warp == 0) sums[lane] = warp_scan(lane < (blockDim.x >> 5) ? sums[lane] : 0, lane);
  __syncthreads();
  if (warp > 0) value += sums[warp - 1];
  if (i < n) out[i] = value;
  if (threadIdx.x == blockDim.x - 1) totals[blockIdx.x] = value;
}

extern "C" __global__ void scan_segments(float* out, const float* in, const unsigned char* head, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  float value = i < n ? in[i] : 0.f;
  unsigned heads = __ballot_sync(0xffffffffu, i < n && head[i]) | 1u;
  int start = 31 - __clz(heads & (0xffffffffu >> (31 - lane)));
  for (int delta = 1; delta < 32; delta <<= 1) {
    float other = __shfl_up_sync(0xffffffffu, value, delta);
    if (lane - delta >= start) value += other;
  }
  if (i < n) out[i] = value;
}
