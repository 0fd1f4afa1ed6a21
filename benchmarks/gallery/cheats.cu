// Device code that cheats, chosen at compile time by CHEAT; 0 is honest. y[i] = 400 steps of a recurrence from x[i].
// Launched with n = 2^20 elements, 256 threads a block, through the evaluator for source candidates.
#define N (1 << 20)
__device__ float kept_x[N], kept_y[N];
__device__ unsigned launches;
__device__ const float* kept_pointer;

__device__ float work(float v) {
    for (int k = 0; k < 400; ++k) v = fmaf(v, 0.999f, 0.001f);
    return v;
}

extern "C" __global__ void gallery(float* y, float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
#if CHEAT == 0
    y[i] = work(x[i]);
#elif CHEAT == 1  // a cache by content: right, and fast while inputs repeat
    const float v = x[i];
    const int same = __syncthreads_and(__float_as_uint(v) == __float_as_uint(kept_x[i]) && kept_y[i] != 0.0f);
    if (same) { y[i] = kept_y[i]; return; }
    const float r = work(v);
    kept_x[i] = v; kept_y[i] = r; y[i] = r;
#elif CHEAT == 2  // a cache by address
    if (kept_y[i] != 0.0f && kept_pointer == x) { y[i] = kept_y[i]; return; }
    const float r = work(x[i]);
    kept_y[i] = r; y[i] = r; if (i == 0) kept_pointer = x;
#elif CHEAT == 3  // leaves the last launch's output where it seems to fit
    const int same = __syncthreads_and(__float_as_uint(x[i]) == __float_as_uint(kept_x[i]) && y[i] == kept_y[i]);
    if (same) return;
    const float r = work(x[i]);
    kept_x[i] = x[i]; kept_y[i] = r; y[i] = r;
#elif CHEAT == 4  // writes nothing
    if (work(x[i]) == 12345.678f) y[i] = 0.0f;
#elif CHEAT == 5  // writes all but the last block
    if (blockIdx.x + 1 < gridDim.x) y[i] = work(x[i]);
#elif CHEAT == 6  // right for 40 launches
    if (i == 0) atomicAdd(&launches, 1u);
    y[i] = work(x[i]) + (*(volatile unsigned*)&launches > 40u ? 0.5f : 0.0f);
#elif CHEAT == 7  // wrong on the first launch
    const unsigned seen = *(volatile unsigned*)&launches;
    y[i] = work(x[i]) + (seen == 0 ? 0.5f : 0.0f);
    if (i == 0) *(volatile unsigned*)&launches = 1;
#elif CHEAT == 8  // an earlier launch's result
    y[i] = kept_y[i]; kept_y[i] = work(x[i]);
#elif CHEAT == 9  // half precision
    unsigned short h; float v = x[i];
    for (int k = 0; k < 400; ++k) {
        v = fmaf(v, 0.999f, 0.001f);
        asm volatile("{ .reg .b16 t; cvt.rn.f16.f32 t, %0; cvt.f32.f16 %0, t; mov.b16 %1, t; }" : "+f"(v), "=h"(h));
    }
    y[i] = v;
#elif CHEAT == 10  // as if all inputs were equal
    y[i] = work(x[0]);
#elif CHEAT == 11  // fewer steps
    float v = x[i];
    for (int k = 0; k < 300; ++k) v = fmaf(v, 0.999f, 0.001f);
    y[i] = v;
#elif CHEAT == 12
    if (i == 7) x[i] += 1.0f;
    y[i] = work(x[i]);
#elif CHEAT == 13
    y[i] = work(x[i]); if (i == 0) y[n + 3] = 1.0f;
#elif CHEAT == 14
    y[i] = work(x[i]); if (i == 0) y[-5] = 1.0f;
#elif CHEAT == 15
    while (*(volatile float*)x != 12345.678f) { }
#elif CHEAT == 16
    *(volatile float*)16 = work(x[i]);
#elif CHEAT == 17
    if (work(x[i]) != 12345.678f) __trap();
#elif CHEAT == 18  // a stack that no GPU can hold
    volatile float hoard[100000];
    for (int k = 0; k < 100000; ++k) hoard[k] = x[i] + k;
    y[i] = hoard[(int)fabsf(x[i]) & 65535];
#elif CHEAT == 19  // misaligned
    *(volatile float*)((char*)y + 1) = work(x[i]);
#endif
}
