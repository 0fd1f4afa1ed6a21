// Five-point and 25-point stencils: one from global memory, one through a shared tile with halo.
extern "C" __global__ void stencil5(float* __restrict__ out, const float* __restrict__ in, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1) return;
  int i = y * width + x;
  out[i] = 0.5f * in[i] + 0.125f * (in[i - 1] + in[i + 1] + in[i - width] + in[i + width]);
}

extern "C" __global__ void stencil25(float* __restrict__ out, const float* __restrict__ in,
                                     const float* __restrict__ weights, int width, int height) {
  __shared__ float tile[20][36];
  int x0 = blockIdx.x * 32 - 2, y0 = blockIdx.y * 16 - 2;
  for (int k = threadIdx.y * 32 + threadIdx.x; k < 20 * 36; k += 512) {
    int ty = k / 36, tx = k % 36, x = min(max(x0 + tx, 0), width - 1), y = min(max(y0 + ty, 0), height - 1);
    tile[ty][tx] = in[y * width + x];
  }
  __syncthreads();
  float sum = 0.f;
#pragma unroll
  for (int dy = 0; dy < 5; ++dy)
#pragma unroll
    for (int dx = 0; dx < 5; ++dx) sum = fmaf(weights[dy * 5 + dx], tile[threadIdx.y + dy][threadIdx.x + dx], sum);
  int x = x0 + 2 + threadIdx.x, y = y0 + 2 + threadIdx.y;
  if (x < width && y < height) out[y * width + x] = sum;
}
