// RMS norm of rows in FP32, 256 threads a row.
extern "C" __global__ void __launch_bounds__(256)
rmsnorm(float *__restrict__ y, const float *__restrict__ x, const float *__restrict__ w, int cols, float eps) {
    __shared__ float partial[8];
    const float *row = x + (long long)blockIdx.x * cols;
    float *out = y + (long long)blockIdx.x * cols;
    float sum = 0.0f;
    // hole: sum: each of the 256 threads adds its share of row[i] * row[i], i < cols, to `sum`
    for (int i = threadIdx.x; i < cols; i += 256) {
        float v = row[i];
        sum += v * v;
    }
    // end hole
    // hole: reduce: declares `float total`, in every thread the sum of all 256 threads' `sum`
    for (int offset = 16; offset > 0; offset >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < 8; ++i) total += partial[i];
    // end hole
    const float scale = rsqrtf(total / cols + eps);
    // hole: write: the threads write out[i] = row[i] * scale * w[i] for all i < cols
    for (int i = threadIdx.x; i < cols; i += 256) {
        out[i] = row[i] * scale * w[i];
    }
    // end hole
}
