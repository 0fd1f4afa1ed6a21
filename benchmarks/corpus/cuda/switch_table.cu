// Switch statements: a dense one (a jump table), a sparse one (a tree), and a small interpreter.
extern "C" __global__ void switch_dense(float* y, const float* x, const int* op, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  switch (op[i]) {
    case 0: v = sinf(v); break;
    case 1: v = cosf(v); break;
    case 2: v = expf(v); break;
    case 3: v = logf(fabsf(v) + 1.f); break;
    case 4: v = sqrtf(fabsf(v)); break;
    case 5: v = v * v * v; break;
    case 6: v = 1.f / v; break;
    case 7: v = floorf(v); break;
    case 8: v = rsqrtf(fabsf(v) + 1e-3f); break;
    case 9: v = v > 0.f ? v : 0.1f * v; break;
    default: v = 0.f;
  }
  y[i] = v;
}

extern "C" __global__ void switch_sparse(int* y, const int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  switch (x[i]) {
    case 3: y[i] = 17; break;
    case 1000: y[i] = 4; break;
    case 77777: y[i] = x[i] * 3; break;
    case -5: y[i] = x[i] ^ 0x55; break;
    case 123456789: y[i] = __popc(x[i]); break;
    default: y[i] = __brev(x[i]);
  }
}

extern "C" __global__ void interpreter(int* y, const unsigned char* code, const int* x, int n, int steps) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int a = x[i], b = 1, pc = 0;
  for (int s = 0; s < steps; ++s) {
    switch (code[pc++] & 7) {
      case 0: a += b; break;
      case 1: b -= a; break;
      case 2: a *= 3; break;
      case 3: b ^= a; break;
      case 4: a = __funnelshift_l(a, b, 5); break;
      case 5: if (a & 1) pc += 1; break;
      case 6: b = max(a, b); break;
      default: a = -a;
    }
    pc &= 63;
  }
  y[i] = a + b;
}
