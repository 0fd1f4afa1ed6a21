// 64-bit integers: multiplication, division, modular exponentiation, a mixing hash, 128-bit products.
extern "C" __global__ void power_mod(unsigned long long* y, const unsigned long long* x, unsigned long long e, unsigned long long m, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long base = x[i] % m, result = 1;
  for (unsigned long long k = e; k; k >>= 1) {
    if (k & 1) result = result * base % m;
    base = base * base % m;
  }
  y[i] = result;
}

extern "C" __global__ void mix_hash(unsigned long long* y, const unsigned long long* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long h = x[i];
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 29;
  h *= 0xc4ceb9fe1a85ec53ull;
  h = (h << 31) | (h >> 33);
  y[i] = h + __umul64hi(h, x[i]) - (unsigned long long)__clzll(h);
}

extern "C" __global__ void divide_signed(long long* q, long long* r, const long long* a, const int* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || b[i] == 0) return;
  q[i] = a[i] / b[i];
  r[i] = a[i] % b[i];
}

extern "C" __global__ void big_add(unsigned* sum, const unsigned* a, const unsigned* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned out[4];
  asm("add.cc.u32 %0, %4, %8;\n\taddc.cc.u32 %1, %5, %9;\n\taddc.cc.u32 %2, %6, %10;\n\taddc.u32 %3, %7, %11;"
      : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
      : "r"(a[i]), "r"(a[i + n]), "r"(a[i + 2 * n]), "r"(a[i + 3 * n]), "r"(b[i]), "r"(b[i + n]), "r"(b[i + 2 * n]), "r"(b[i + 3 * n]));
  for (int k = 0; k < 4; ++k) sum[i + k * n] = out[k];
}
