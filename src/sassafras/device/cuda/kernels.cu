// Small kernels of the worker's own: comparing, random inputs, scrubbing registers, flushing the L2.
// Compiled at worker start by NVRTC (nvcc where NVRTC is missing) for the GPU present.
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Word { u32 x, y, z, w; };

// A counter slot: [0] differing 16-byte words, [1] ~offset of the first one (0: none).
extern "C" __global__ void sassafras_compare(const Word* a, const Word* b, u64 words, u64* slot) {
    u64 different = 0, first = 0;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        const Word p = a[i], q = b[i];
        if (p.x != q.x || p.y != q.y || p.z != q.z || p.w != q.w) {
            if (!different) first = ~(i * 16);
            ++different;
        }
    }
    if (different) {
        atomicAdd(slot, different);
        atomicMax(slot + 1, first);
    }
}

extern "C" __global__ void sassafras_bump(u64* counter, u64 by) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *counter += by;
}

// Probabilistic testing. A job is a range of the arena's 16-byte words and what to do with it between two samples:
// compare the outputs of the sample that was just taken, then write the random inputs of the next one.
struct Job {
    u64 begin, end;    // words of the arena
    u64 from;          // number of its first word among the words of all jobs
    u32 what;          // bits: 1 compare both arenas, 2 fill, 4 fill the second arena too, 8 verify what was filled
    u32 fill;          // 1 normal, 2 uniform
    u32 dtype, tail;   // see DTYPE_CODES in sampling.py; bytes of the last word that are its own
    float p0, p1;      // mean and std, or low and high
    long long i0, i1;  // integer low and high
};

__device__ u32 mix(u32 x) {  // a bijective 32-bit finaliser
    x ^= x >> 16; x *= 0x21f0aaadu; x ^= x >> 15; x *= 0xd35a2d97u; x ^= x >> 15;
    return x;
}

// Counter-based: every sample and element has numbers of its own, whoever asks, in whatever order.
struct Stream {
    u32 low, high;
    __device__ explicit Stream(u64 sample) {
        low = mix((u32)sample * 0x9e3779b9u + 0x7f4a7c15u);
        high = mix((u32)(sample >> 32) ^ low);
    }
    __device__ u32 draw(u64 element, u32 lane) const {
        const u32 h = mix((u32)element * 0x9e3779b9u + lane * 0x85ebca6bu + low);
        return mix(h ^ high ^ (u32)(element >> 32));
    }
};

__device__ float uniform01(u32 r) { return ((r >> 8) + 0.5f) * (1.0f / 16777216.0f); }

// Two neighbouring elements (the first one even), as real numbers.
__device__ void real_pair(const Job& job, const Stream& stream, u64 element, bool special, float* pair) {
    const u32 r1 = stream.draw(element, 1), r2 = stream.draw(element, 2);
    if (job.fill == 2) {
        pair[0] = job.p0 + (job.p1 - job.p0) * uniform01(r1);
        pair[1] = job.p0 + (job.p1 - job.p0) * uniform01(r2);
    } else {  // Box and Muller
        const float radius = job.p1 * sqrtf(-2.0f * __logf(uniform01(r1)));
        const float angle = 6.2831853f * uniform01(r2);
        pair[0] = job.p0 + radius * __cosf(angle);
        pair[1] = job.p0 + radius * __sinf(angle);
    }
    if (special) {  // one element in 256
        const u32 bits[8] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x00000001u,
                             0x807fffffu, 0x7f7fffffu, 0x80000000u, 0x38d1b717u};
        for (u32 k = 0; k < 2; ++k) {
            const u32 r = stream.draw(element + k, 3);
            if ((r & 255u) == 0) pair[k] = __uint_as_float(bits[(r >> 8) & 7u]);
        }
    }
}

__device__ u64 whole_value(const Job& job, const Stream& stream, u64 element) {
    if (job.fill == 1) {
        float pair[2];
        real_pair(job, stream, element & ~1ull, false, pair);
        return (u64)(long long)rintf(pair[element & 1]);
    }
    const u64 span = (u64)(job.i1 - job.i0);
    const u32 r = stream.draw(element, 4);
    const u64 wide = span >> 32 ? ((u64)stream.draw(element, 5) << 32) | r : r;
    // Lemire's multiplication instead of a division where the span allows it
    const u64 below = span >> 32 ? wide % span : (wide * span) >> 32;
    return (u64)(job.i0 + (long long)below);
}

__device__ u32 half_bits(u32 dtype, float v) {
    unsigned short h = 0;
    switch (dtype) {
        case 2: asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h;
        case 3: asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h;
#if __CUDA_ARCH__ >= 890
        case 4: asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.0f), "f"(v)); return h & 255;
        case 5: asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.0f), "f"(v)); return h & 255;
#endif
    }
    return 0;
}

template <u32 width>
__device__ Word word_of(const Job& job, const Stream& stream, u64 element, bool special) {
    u32 bits[4] = {0, 0, 0, 0};
    float pair[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 k = 0; k < 16 / width; ++k) {
        u64 value;
        if (job.dtype >= 16) {
            value = whole_value(job, stream, element + k);
            if (job.dtype == 21) value &= 1;
        } else {
            if (!(k & 1)) real_pair(job, stream, element + k, special, pair);
            const float v = pair[k & 1];
            if (width == 8) value = (u64)__double_as_longlong((double)v);
            else value = width == 4 ? __float_as_uint(v) : half_bits(job.dtype, v);
        }
        if (width == 8) {
            bits[(2 * k) % 4] = (u32)value;
            bits[(2 * k + 1) % 4] = (u32)(value >> 32);
        } else {
            const u32 mask = width == 4 ? 0xffffffffu : (1u << (8 * width % 32)) - 1;
            bits[k * width / 4] |= ((u32)value & mask) << (k * width * 8 % 32);
        }
    }
    Word word;
    word.x = bits[0]; word.y = bits[1]; word.z = bits[2]; word.w = bits[3];
    return word;
}

// The 16 bytes of a job's word number `at` (counted from its begin) for a sample.
__device__ Word random_word(const Job& job, const Stream& stream, u64 at, bool special) {
    switch (job.dtype) {  // a word's first element is even, since a word holds at least two
        case 0: case 16: return word_of<8>(job, stream, at * 2, special);
        case 1: case 17: return word_of<4>(job, stream, at * 4, special);
        case 2: case 3: case 18: return word_of<2>(job, stream, at * 8, special);
        default: return word_of<1>(job, stream, at * 16, special);
    }
}

// The first `tail` bytes of one word, the others of another.
__device__ Word joined(const Word& made, const Word& old, u32 tail) {
    const u32 a[4] = {made.x, made.y, made.z, made.w}, b[4] = {old.x, old.y, old.z, old.w};
    u32 c[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        const u32 own = tail >= 4 * k + 4 ? 4 : tail > 4 * k ? tail - 4 * k : 0;
        const u32 mask = own == 4 ? 0xffffffffu : (1u << (8 * own)) - 1;
        c[k] = (a[k] & mask) | (b[k] & ~mask);
    }
    Word word;
    word.x = c[0]; word.y = c[1]; word.z = c[2]; word.w = c[3];
    return word;
}

__device__ bool same(const Word& p, const Word& q) { return p.x == q.x && p.y == q.y && p.z == q.z && p.w == q.w; }

// One step. `what`: 2 fills the inputs of sample counter + index; 3 compares that sample's outputs and fills the
// next one's inputs; 1 compares only; 9 compares, and verifies that the inputs are still what was filled.
// totals: [0] differing samples, [1] ~number of the first one, [2] ~byte offset of some differing word,
// [3] words of inputs that were modified. seen: the last differing sample counted, so that one counts once.
extern "C" __global__ void sassafras_step(Word* first, Word* second, const Job* jobs, u32 count, u64 words,
                                          const u64* counter, u64 index, u32 what, u32 special_every,
                                          u64* totals, u64* seen) {
    const u64 taken = *counter + index;
    const u64 next = (what & 1) && (what & 2) ? taken + 1 : taken;
    const bool special = special_every && next % special_every == special_every - 1;
    const Stream stream(next);
    u64 difference = 0;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        u32 j = 0;
        while (j + 1 < count && i >= jobs[j + 1].from) ++j;
        const Job& job = jobs[j];
        const u64 word = job.begin + (i - job.from);
        if ((what & job.what & 1) && !difference && !same(first[word], second[word])) difference = ~(word * 16);
        if (what & job.what & 10) {
            Word made = random_word(job, stream, i - job.from, special);
            if (word + 1 == job.end && job.tail < 16) made = joined(made, first[word], job.tail);
            if (what & 2) {
                first[word] = made;
                if (job.what & 4) second[word] = made;
            } else if (!same(first[word], made)) {
                atomicAdd(totals + 3, 1ull);
            }
        }
    }
    if (difference && atomicExch(seen, taken + 1) != taken + 1) {
        atomicAdd(totals, 1ull);
        atomicMax(totals + 1, ~taken);
        atomicMax(totals + 2, difference);
    }
}

// Leaves 240 registers a thread holding NaN patterns, so that a kernel that reads a register before it is
// written meets them instead of the right value left by the launch before. At 249 registers a thread one block
// of 256 threads takes a multiprocessor's whole register file, so one block each reaches all of them. `rounds`
// is 0 at run time; the compiler does not know, and has to keep all values alive across the loop. `mask` 0
// leaves the same word everywhere.
extern "C" __global__ void __launch_bounds__(256) sassafras_scrub(u32 pattern, u32 mask, u32 rounds, u32* sink) {
    u32 v[240];
#pragma unroll
    for (u32 i = 0; i < 240; ++i) v[i] = pattern | ((i + threadIdx.x) & mask);
    for (u32 r = 0; r < rounds; ++r) {
#pragma unroll
        for (u32 i = 0; i < 240; ++i) v[i] ^= v[(i + 1) % 240] + r;
    }
    u32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 240; ++i) sum = sum * 31u + v[i];
    if (rounds && sum == 0x5a55afa5u) *sink = sum;
}

// Evicts the L2 by reading (not by memset, which leaves dirty lines).
extern "C" __global__ void sassafras_read(const Word* a, u64 words, u32* sink) {
    u32 sum = 0;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        const Word p = a[i];
        sum ^= p.x ^ p.y ^ p.z ^ p.w;
    }
    if (sum == 0x5a55afa5u) *sink = sum;
}
