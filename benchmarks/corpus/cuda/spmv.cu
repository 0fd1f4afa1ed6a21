// Sparse matrix times vector: CSR with a thread, and with a warp, for each row.
extern "C" __global__ void spmv_thread(float* y, const int* start, const int* column, const float* value, const float* x, int rows) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.f;
  for (int k = start[row]; k < start[row + 1]; ++k) sum += value[k] * __ldg(&x[column[k]]);
  y[row] = sum;
}

extern "C" __global__ void spmv_warp(double* y, const long long* start, const int* column, const double* value, const double* x, int rows) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
  if (row >= rows) return;
  double sum = 0.0;
  for (long long k = start[row] + lane; k < start[row + 1]; k += 32) sum = fma(value[k], x[column[k]], sum);
  for (int delta = 16; delta > 0; delta >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, delta);
  if (lane == 0) y[row] = sum;
}
