// y = gelu(x + bias) * gate, tanh form, FP32; a grid-stride loop over rows x cols values.
extern "C" __global__ void __launch_bounds__(256)
bias_gelu(float *__restrict__ y, const float *__restrict__ x, const float *__restrict__ bias,
          const float *__restrict__ gate, int cols, int count) {
    // hole: body: for every i < count: v = x[i] + bias[i % cols], y[i] = gelu(v) * gate[i]; a multiple of 4 both
    for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        float v = x[i] + bias[i % cols];
        float t = tanhf(0.7978845608f * (v + 0.044715f * v * v * v));
        y[i] = 0.5f * v * (1.0f + t) * gate[i];
    }
    // end hole
}
