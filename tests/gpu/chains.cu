// A foreign kernel in a chain of launches. It copies words before its own griddepcontrol.wait and others behind it,
// and says when it began and when it ended (globaltimer, nanoseconds).
//
// first: it lets its successor start at once; otherwise behind its own wait.
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

static __device__ void copy(volatile u32 *to, const volatile u32 *from, int words) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) to[i] = from[i];
}

extern "C" __global__ void chain_link(const u32 *before_from, u32 *before_to, const u32 *after_from, u32 *after_to, u64 *times,
                                      int before_words, int after_words, int microseconds, int first) {
    if (threadIdx.x == 0) atomicMin(times, now());
    if (first) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    copy(before_to, before_from, before_words);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (!first) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    for (const u64 begin = now(); now() - begin < 1000ull * microseconds;) {
    }
    copy(after_to, after_from, after_words);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(times + 1, now());
}
