// C = A B in FP32: 64x64 tiles, 4x4 results a thread, double-buffered shared memory.
extern "C" __global__ void __launch_bounds__(256) sgemm(float* c, const float* a, const float* b, int m, int n, int k) {
  __shared__ float as[2][16][64 + 4], bs[2][16][64];
  int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64, t = threadIdx.x;
  int ar = t / 4, ak = (t % 4) * 4, bk = t / 16, bc = (t % 16) * 4;
  float acc[4][4] = {};
  auto load = [&](int stage, int d) {
    float4 va = (row0 + ar < m) ? *(const float4*)&a[(size_t)(row0 + ar) * k + d + ak] : make_float4(0, 0, 0, 0);
    as[stage][ak][ar] = va.x;
    as[stage][ak + 1][ar] = va.y;
    as[stage][ak + 2][ar] = va.z;
    as[stage][ak + 3][ar] = va.w;
    *(float4*)&bs[stage][bk][bc] = (col0 + bc < n) ? *(const float4*)&b[(size_t)(d + bk) * n + col0 + bc] : make_float4(0, 0, 0, 0);
  };
  load(0, 0);
  __syncthreads();
  for (int d = 0, stage = 0; d < k; d += 16, stage ^= 1) {
    if (d + 16 < k) load(stage ^ 1, d + 16);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float4 u = *(const float4*)&as[stage][i][(t / 16) * 4], v = *(const float4*)&bs[stage][i][(t % 16) * 4];
      float x[4] = {u.x, u.y, u.z, u.w}, y[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int p = 0; p < 4; ++p)
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[p][q] = fmaf(x[p], y[q], acc[p][q]);
    }
    __syncthreads();
  }
  for (int p = 0; p < 4; ++p)
    for (int q = 0; q < 4; ++q) {
      int row = row0 + (t / 16) * 4 + p, col = col0 + (t % 16) * 4 + q;
      if (row < m && col < n) c[(size_t)row * n + col] = acc[p][q];
    }
}
