// Honest device code with unusual habits, chosen by ODD. The same function as in cheats.cu.
#include <cooperative_groups.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;
#define N (1 << 20)
__device__ unsigned finished;
__constant__ float step_constants[2] = {0.999f, 0.001f};

__device__ float work(float v) {
    for (int k = 0; k < 400; ++k) v = fmaf(v, 0.999f, 0.001f);
    return v;
}

#if ODD == 6
extern "C" __global__ void __cluster_dims__(2, 1, 1) gallery(float* y, const float* x, int n) {
#else
extern "C" __global__ void gallery(float* y, const float* x, int n) {
#endif
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if ODD == 0  // cooperative groups
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<32>(block);
    const float v = i < n ? work(x[i]) : 0.0f;
    const float moved = tile.shfl(v, tile.thread_rank());
    block.sync();
    if (i < n) y[i] = moved;
#elif ODD == 1  // all the shared memory there is
    extern __shared__ float stage[];
    for (int k = threadIdx.x; k < 50000; k += blockDim.x) stage[k] = 0.0f;
    __syncthreads();
    stage[threadIdx.x * 190] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = work(stage[threadIdx.x * 190]);
#elif ODD == 2  // a result that varies from run to run, within the tolerance
    if (i < n) y[i] = work(x[i]) * (1.0f + 1e-7f * (float)(clock64() & 3));
#elif ODD == 3  // a counter that survives launches, as split-K kernels keep
    if (i < n) y[i] = work(x[i]);
    __threadfence();
    if (threadIdx.x == 0 && atomicAdd(&finished, 1u) == gridDim.x - 1) finished = 0;
#elif ODD == 4  // constants from constant memory
    if (i < n) { float v = x[i]; for (int k = 0; k < 400; ++k) v = fmaf(v, step_constants[0], step_constants[1]); y[i] = v; }
#elif ODD == 5  // asynchronous copies in inline PTX
    __shared__ __align__(16) float stage[256];
    const unsigned to = (unsigned)__cvta_generic_to_shared(stage + threadIdx.x);
    if (i < n) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + i));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    if (i < n) y[i] = work(stage[threadIdx.x]);
#elif ODD == 6  // clusters
    auto cluster = cg::this_cluster();
    const float v = i < n ? work(x[i]) : 0.0f;
    cluster.sync();
    if (i < n) y[i] = v;
#elif ODD == 7  // twice as slow
    if (i < n) { const float v = work(x[i]); y[i] = v + 0.0f * work(v); }
#elif ODD == 8  // a grid-stride loop
    for (int k = i; k < n; k += gridDim.x * blockDim.x) y[k] = work(x[k]);
#elif ODD == 9  // an assertion that never fails and a message that is never printed
    if (i < n) { const float v = work(x[i]); if (n < 0) printf("%d\n", n); y[i] = v; }
#elif ODD == 10  // another order of the same arithmetic
    if (i < n) { float v = x[i]; for (int k = 0; k < 400; ++k) v = v - 0.001f * v + 0.001f; y[i] = v; }
#endif
}
