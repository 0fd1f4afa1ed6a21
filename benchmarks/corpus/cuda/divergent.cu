// Divergence: nested loops that end at different times, early returns, breaks, and a warp-level queue.
extern "C" __global__ void collatz(int* steps, const unsigned* start, int n, int limit) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long v = start[i];
  int count = 0;
  while (v > 1 && count < limit) {
    if (v & 1) v = 3 * v + 1; else v >>= 1;
    ++count;
    if (v == start[i]) break;
  }
  steps[i] = count;
}

extern "C" __global__ void mandelbrot(unsigned char* image, int width, int height, float x0, float y0, float step, int limit) {
  int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
  if (px >= width || py >= height) return;
  float cx = x0 + px * step, cy = y0 + py * step, x = 0.f, y = 0.f;
  int k = 0;
  for (; k < limit; ++k) {
    float xx = x * x, yy = y * y;
    if (xx + yy > 4.f) break;
    y = 2.f * x * y + cy;
    x = xx - yy + cx;
  }
  image[py * width + px] = (unsigned char)(k & 255);
}

extern "C" __global__ void compact(int* out, int* cursor, const int* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool keep = i < n && in[i] > 0;
  unsigned mask = __ballot_sync(0xffffffffu, keep);
  int lane = threadIdx.x & 31, leader = __ffs(mask) - 1, base = 0;
  if (mask == 0) return;
  if (lane == leader) base = atomicAdd(cursor, __popc(mask));
  base = __shfl_sync(0xffffffffu, base, leader);
  if (keep) out[base + __popc(mask & ((1u << lane) - 1))] = in[i];
}
