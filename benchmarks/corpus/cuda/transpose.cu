// Matrix transpose through padded shared memory, for 4-, 8- and 2-byte elements.
template <typename T>
__device__ void transpose_tile(T* out, const T* in, int rows, int cols) {
  __shared__ T tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
#pragma unroll
  for (int j = 0; j < 32; j += 8)
    if (x < cols && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(size_t)(y + j) * cols + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
#pragma unroll
  for (int j = 0; j < 32; j += 8)
    if (x < rows && y + j < cols) out[(size_t)(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void transpose_float(float* out, const float* in, int rows, int cols) {
  transpose_tile(out, in, rows, cols);
}
extern "C" __global__ void transpose_double(double* out, const double* in, int rows, int cols) {
  transpose_tile(out, in, rows, cols);
}
extern "C" __global__ void transpose_short(short* out, const short* in, int rows, int cols) {
  transpose_tile(out, in, rows, cols);
}
