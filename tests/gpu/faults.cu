// A tiny kernel with deliberate faults, chosen at compile time by FAULT. y[i] = 2 x[i] + 1.
// 0 none, 1 wrong value, 2 hangs, 3 illegal address, 4 writes past the end, 5 writes before the beginning,
// 6 modifies its input, 7 writes nothing, 8 wrong in the last element only, 9 right on its first 40 launches,
// 10 slower but right, 11 atomics whose result differs from run to run within the tolerance
__device__ unsigned launches;

extern "C" __global__ void affine(float* y, float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? 2.0f * x[i] + 1.0f : 0.0f;
#if FAULT == 1
    if (i == 77) v += 1.0f;
#elif FAULT == 2
    while (*(volatile float*)x != 12345.678f) { }
#elif FAULT == 3
    *(volatile float*)16 = v;
#elif FAULT == 4
    if (i == 0) y[n + 5] = 3.0f;
#elif FAULT == 5
    if (i == 0) y[-2] = 3.0f;
#elif FAULT == 6
    if (i == 5) x[5] += 1.0f;
#elif FAULT == 8
    if (i == n - 1) v = -v;
#elif FAULT == 9
    if (i == 0) atomicAdd(&launches, 1u);
    if (*(volatile unsigned*)&launches > 40u) v += 1.0f;
#elif FAULT == 10
    for (int k = 0; k < 4000; ++k) asm volatile("" : "+f"(v));
    long long begin = clock64();
    while (clock64() - begin < 20000) { }
#elif FAULT == 11
    v += 1e-6f * (float)(clock64() & 1);
#endif
#if FAULT != 7
    if (i < n) y[i] = v;
#endif
}
