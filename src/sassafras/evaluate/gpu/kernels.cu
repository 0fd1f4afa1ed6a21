// Small kernels of the worker's own: comparing, random inputs, scrubbing registers, flushing the L2.
// Compiled at worker start by NVRTC (nvcc where NVRTC is missing) for the GPU present.
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Word { u32 x, y, z, w; };

__device__ bool same(const Word& p, const Word& q) {
    return ((p.x ^ q.x) | (p.y ^ q.y) | (p.z ^ q.z) | (p.w ^ q.w)) == 0;  // without branches
}

// A counter slot: [0] differing 16-byte words, [1] ~offset of the first one (0: none).
extern "C" __global__ void sassafras_compare(const Word* a, const Word* b, u64 words, u64* slot) {
    u64 different = 0, first = 0;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        if (!same(a[i], b[i])) {
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
    u32 dtype, tail;   // see DTYPE_CODES in random_tests.py; bytes of the last word that are its own
    float p0, p1;      // mean and std, or low and high
    long long i0, i1;  // integer low and high
};

__device__ u32 mix(u32 x) {  // a bijective 32-bit finaliser
    x ^= x >> 16; x *= 0x21f0aaadu; x ^= x >> 15; x *= 0xd35a2d97u; x ^= x >> 15;
    return x;
}

// Counter-based: every sample and word has numbers of its own, whoever asks, in whatever order.
struct Stream {
    u32 low, high;
    __device__ explicit Stream(u64 sample) {
        low = mix((u32)sample * 0x9e3779b9u + 0x7f4a7c15u);
        high = mix((u32)(sample >> 32) ^ low);
    }
    __device__ u32 word(u32 number) const { return mix(number * 0x9e3779b9u + low) ^ high; }
    // a word's number is mixed already: half of the finaliser sets its lanes apart
    __device__ static u32 draw(u32 word, u32 lane) {
        u32 x = word + lane * 0x85ebca6bu;
        x ^= x >> 16; x *= 0x21f0aaadu;
        return x ^ x >> 15;
    }
};

// What the hardware has in one instruction; the same text runs on the CPU in tests.
#ifdef __CUDA_ARCH__
__device__ float root(float v) { float r; asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
__device__ float log_of_2(float v) { float r; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
__device__ float sine(float v) { float r; asm("sin.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
__device__ float cosine(float v) { float r; asm("cos.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
__device__ u32 packed(u32 dtype, float low, float high) {
    u32 r = 0;
    if (dtype == 2) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    if (dtype == 3) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#if __CUDA_ARCH__ >= 890
    unsigned short two = 0;
    if (dtype == 4) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    if (dtype == 5) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    if (dtype >= 4) r = two;
#endif
    return r;
}
#endif

// Two neighbouring elements as real numbers. Elements of up to 2 bytes share one draw: 18 bits for the radius (it ends
// at 5.1 standard deviations), 14 for the angle; 16 bits each when uniform. Others take 24 bits each.
template <bool NARROW> __device__ void real_pair(const Job& job, u32 word, u32 number, float* pair) {
    const u32 r1 = Stream::draw(word, NARROW ? number : 2 * number);
    const u32 r2 = NARROW ? r1 : Stream::draw(word, 2 * number + 1);
    if (job.fill == 2) {
        const float u1 = NARROW ? ((r1 >> 16) + 0.5f) * 0x1p-16f : ((r1 >> 8) + 0.5f) * 0x1p-24f;
        const float u2 = NARROW ? ((r2 & 0xffff) + 0.5f) * 0x1p-16f : ((r2 >> 8) + 0.5f) * 0x1p-24f;
        pair[0] = job.p0 + (job.p1 - job.p0) * u1;
        pair[1] = job.p0 + (job.p1 - job.p0) * u2;
    } else {  // Box and Muller
        const float u = NARROW ? ((r1 >> 14) + 0.5f) * 0x1p-18f : ((r1 >> 8) + 0.5f) * 0x1p-24f;
        const float turn = NARROW ? ((r2 & 0x3fff) + 0.5f) * 0x1p-14f : ((r2 >> 8) + 0.5f) * 0x1p-24f;
        const float radius = job.p1 * root(-1.3862944f * log_of_2(u)), angle = 6.2831853f * turn;
        pair[0] = job.p0 + radius * cosine(angle);
        pair[1] = job.p0 + radius * sine(angle);
    }
}

__device__ float special_value(u32 word, u32 element, float otherwise) {  // one element in 256
    const u32 bits[8] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x00000001u,
                         0x807fffffu, 0x7f7fffffu, 0x80000000u, 0x38d1b717u};
    const u32 r = Stream::draw(word, 64 + element);
    return (r & 255u) == 0 ? __uint_as_float(bits[(r >> 8) & 7u]) : otherwise;
}

template <u32 WIDTH> __device__ u64 whole_value(const Job& job, u32 word, u32 k) {
    const u64 span = (u64)(job.i1 - job.i0);
    u64 below;
    // Lemire's multiplication instead of a division where the span allows it
    if (WIDTH == 1) {
        const u32 few = span < 0x10000 ? (u32)span : 0x10000u;
        below = (((Stream::draw(word, k / 2) >> (16 * (k & 1))) & 0xffff) * few) >> 16;
    } else {
        const u32 r = Stream::draw(word, k);
        below = ((u64)r * span) >> 32;
        if (WIDTH == 8 && span >> 32) below = (((u64)Stream::draw(word, 16 + k) << 32) | r) % span;
    }
    return (u64)(job.i0 + (long long)below);
}

// 16 random bytes: elements of WIDTH bytes, REAL numbers or whole ones.
template <u32 WIDTH, bool REAL> __device__ Word random_word(const Job& job, u32 word, bool special) {
    u32 bits[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 k = 0; k < 16 / WIDTH; k += 2) {  // a word's first element is even, since a word holds at least two
        float pair[2] = {0.0f, 0.0f};
        if (REAL || job.fill == 1) real_pair<WIDTH <= 2>(job, word, k / 2, pair);
        if (REAL && special)
            for (u32 e = 0; e < 2; ++e) pair[e] = special_value(word, k + e, pair[e]);
        if constexpr (REAL && WIDTH <= 2) {
            bits[k * WIDTH / 4] |= packed(job.dtype, pair[0], pair[1]) << (8 * k * WIDTH % 32);
        } else {
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                u64 value;
                if (REAL) value = WIDTH == 8 ? (u64)__double_as_longlong((double)pair[e]) : __float_as_uint(pair[e]);
                else value = job.fill == 1 ? (u64)(long long)rintf(pair[e]) : whole_value<WIDTH>(job, word, k + e);
                if (WIDTH == 1 && job.dtype == 21) value &= 1;
                if (WIDTH == 8) {
                    bits[2 * e] = (u32)value;
                    bits[2 * e + 1] = (u32)(value >> 32);
                } else {
                    const u32 mask = WIDTH >= 4 ? 0xffffffffu : (1u << (8 * WIDTH % 32)) - 1;
                    bits[(k + e) * WIDTH / 4] |= ((u32)value & mask) << ((k + e) * WIDTH * 8 % 32);
                }
            }
        }
    }
    return Word{bits[0], bits[1], bits[2], bits[3]};
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
    return Word{c[0], c[1], c[2], c[3]};
}

// One step. `what`: 2 fills the inputs of sample counter + index; 3 compares that sample's outputs and fills the
// next one's inputs; 1 compares only; 9 compares, and verifies that the inputs are still what was filled.
// totals: [0] differing samples, [1] ~number of the first one, [2] ~byte offset of some differing word,
// [3] words of inputs that were modified. seen: the last differing sample counted, so that one counts once.
// Fill (or verify) a job's words i, i + stride, ...: `job.from + i` is a word's number, in the whole of a sample.
template <u32 WIDTH, bool REAL>
__device__ void renew(Word* first, Word* second, const Job& job, const Stream& stream, u32 i, u32 stride, u32 what,
                      bool special, u64* modified) {
    const u32 size = (u32)(job.end - job.begin);
    for (; i < size; i += stride) {
        Word made = random_word<WIDTH, REAL>(job, stream.word((u32)job.from + i), special);
        const u64 word = job.begin + i;
        if (i + 1 == size && job.tail < 16) made = joined(made, first[word], job.tail);
        if (what & 2) {
            first[word] = made;
            if (job.what & 4) second[word] = made;
        } else if (!same(first[word], made)) {
            atomicAdd(modified, 1ull);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 5)
sassafras_step(Word* first, Word* second, const Job* jobs, u32 count, u64 words, const u64* counter, u64 index,
               u32 what, u32 special_every, u64* totals, u64* seen) {
    const u64 taken = *counter + index;
    const u64 next = (what & 1) && (what & 2) ? taken + 1 : taken;
    const bool special = special_every && next % special_every == special_every - 1;
    const Stream stream(next);
    u64 difference = 0;
    const u32 stride = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (u32 j = 0; j < count; ++j) {
        const Job job = jobs[j];
        const u32 size = (u32)(job.end - job.begin);
        // jobs follow each other over the threads, so that many small ones do not all go to the first
        const u32 turned = (u32)job.from % stride, begin = thread >= turned ? thread - turned : thread + stride - turned;
        if (what & job.what & 1) {
            const Word *const a = first + job.begin, *const b = second + job.begin;
#pragma unroll 4
            for (u32 i = begin; i < size; i += stride)
                if (!same(a[i], b[i])) difference = ~((job.begin + i) * 16);
        }
        if (!(what & job.what & 10)) continue;
        switch (job.dtype) {
            case 0: renew<8, true>(first, second, job, stream, begin, stride, what, special, totals + 3); break;
            case 1: renew<4, true>(first, second, job, stream, begin, stride, what, special, totals + 3); break;
            case 2: case 3: renew<2, true>(first, second, job, stream, begin, stride, what, special, totals + 3); break;
            case 4: case 5: renew<1, true>(first, second, job, stream, begin, stride, what, special, totals + 3); break;
            case 16: renew<8, false>(first, second, job, stream, begin, stride, what, special, totals + 3); break;
            case 17: renew<4, false>(first, second, job, stream, begin, stride, what, special, totals + 3); break;
            case 18: renew<2, false>(first, second, job, stream, begin, stride, what, special, totals + 3); break;
            default: renew<1, false>(first, second, job, stream, begin, stride, what, special, totals + 3);
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

// Is this GPU ours alone? One block on each multiprocessor reads the clock for `span_ns`; where another context has work,
// the GPU is shared in slices of time, and the clock jumps by a slice. gaps[block]: the longest jump, in nanoseconds.
extern "C" __global__ void sassafras_ticks(u64* gaps, u64 span_ns) {
    u64 begin, now, before, longest = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    before = now = begin;
    while (now - begin < span_ns) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - before > longest) longest = now - before;
        before = now;
    }
    if (threadIdx.x == 0) gaps[blockIdx.x] = longest;
}
