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
    u32 what;          // bits: 1 compare both arenas, 2 fill, 4 fill the second arena too, 8 verify what was filled,
                       // 16 a launch changes little of it: see born()
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
// The step is launched before the launch ahead of it has ended.
__device__ void wait_for_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

// A real number in [1, 2) from the upper 23 bits: one funnel shift instead of a conversion.
__device__ float one_and(u32 r) { return __uint_as_float(__funnelshift_r(r, 0x7f, 9)); }

// Two neighbouring elements as real numbers, uniform or normal. Those of up to 2 bytes share one draw: its upper 23 bits
// and its lower 16 or 14 (the angle), of which the first's lowest bits, which rounding removes, are a part.
template <bool NARROW, bool UNIFORM> __device__ void real_pair(const Job& job, u32 word, u32 number, float* pair) {
    const u32 r = Stream::draw(word, NARROW ? number : 2 * number);
    const u32 other = NARROW ? r << (UNIFORM ? 16 : 18) : Stream::draw(word, 2 * number + 1);
    if (UNIFORM) {
        pair[0] = job.p0 + (job.p1 - job.p0) * (one_and(r) - 1.0f);
        pair[1] = job.p0 + (job.p1 - job.p0) * (one_and(other) - 1.0f);
    } else {  // Box and Muller; the radius ends at 5.6 standard deviations
        const float radius = job.p1 * root(-1.3862944f * log_of_2(2.0f - one_and(r)));
        const float angle = 6.2831853f * one_and(other);
        pair[0] = job.p0 + radius * cosine(angle);
        pair[1] = job.p0 + radius * sine(angle);
    }
}

// Lemire's multiplication instead of a division where the span allows it.
template <u32 WIDTH> __device__ u64 whole_value(const Job& job, u32 word, u32 k) {
    const u64 span = (u64)(job.i1 - job.i0);
    const u32 r = Stream::draw(word, k);
    u64 below = ((u64)r * span) >> 32;
    if (WIDTH == 8 && span >> 32) below = (((u64)Stream::draw(word, 16 + k) << 32) | r) % span;
    return (u64)(job.i0 + (long long)below);
}

// Element e of a word becomes the low bytes of a value.
template <u32 WIDTH> __device__ void put(u32* bits, u32 e, u64 value) {
    if (WIDTH == 8) {
        bits[(2 * e) % 4] = (u32)value;
        bits[(2 * e + 1) % 4] = (u32)(value >> 32);
    } else {
        const u32 mask = WIDTH >= 4 ? 0xffffffffu : (1u << (8 * WIDTH % 32)) - 1, at = e * WIDTH * 8 % 32;
        bits[e * WIDTH / 4] = (bits[e * WIDTH / 4] & ~(mask << at)) | ((u32)value & mask) << at;
    }
}

// Four of them of a byte each, 16 random bits for each: the third byte of a product is the value.
__device__ u32 four_bytes(const Job& job, u32 word, u32 k) {
    const u64 span = (u64)(job.i1 - job.i0);
    const u32 few = span < 0x10000 ? (u32)span : 0x10000u, low = 0x01010101u * ((u32)job.i0 & 255u);
    const u32 r = Stream::draw(word, k / 2), s = Stream::draw(word, k / 2 + 1);
    const u32 two = __byte_perm((r & 0xffff) * few, (r >> 16) * few, 0x62);
    const u32 more = __byte_perm((s & 0xffff) * few, (s >> 16) * few, 0x62);
    const u32 x = __byte_perm(two, more, 0x5410);
    const u32 sum = ((x & 0x7f7f7f7fu) + (low & 0x7f7f7f7fu)) ^ ((x ^ low) & 0x80808080u);  // four sums without carries
    return job.dtype == 21 ? sum & 0x01010101u : sum;
}

// 16 random bytes: elements of WIDTH bytes, REAL numbers or whole ones, UNIFORM or normal.
template <u32 WIDTH, bool REAL, bool UNIFORM> __device__ Word random_word(const Job& job, u32 word) {
    u32 bits[4] = {0, 0, 0, 0};
    if (WIDTH == 1 && !REAL && UNIFORM)
        return Word{four_bytes(job, word, 0), four_bytes(job, word, 4), four_bytes(job, word, 8), four_bytes(job, word, 12)};
#pragma unroll
    for (u32 k = 0; k < 16 / WIDTH; k += 2) {  // a word's first element is even, since a word holds at least two
        float pair[2] = {0.0f, 0.0f};
        if (REAL || !UNIFORM) real_pair<WIDTH <= 2, UNIFORM>(job, word, k / 2, pair);
        if constexpr (REAL && WIDTH <= 2) {
            bits[k * WIDTH / 4] |= packed(job.dtype, pair[0], pair[1]) << (8 * k * WIDTH % 32);
        } else {
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                u64 value;
                if (REAL) value = WIDTH == 8 ? (u64)__double_as_longlong((double)pair[e]) : __float_as_uint(pair[e]);
                else value = UNIFORM ? whole_value<WIDTH>(job, word, k + e) : (u64)(long long)rintf(pair[e]);
                if (WIDTH == 1 && job.dtype == 21) value &= 1;
                put<WIDTH>(bits, k + e, value);
            }
        }
    }
    return Word{bits[0], bits[1], bits[2], bits[3]};
}

__constant__ u32 SPECIAL[8] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x00000001u,
                               0x807fffffu, 0x7f7fffffu, 0x80000000u, 0x38d1b717u};

// The same with infinities, NaN, subnormal and huge values: one element in 256. Not in random_word: this is rare.
template <u32 WIDTH> __device__ Word with_special(const Job& job, u32 word, const Word& made) {
    u32 bits[4] = {made.x, made.y, made.z, made.w};
#pragma unroll
    for (u32 e = 0; e < 16 / WIDTH; ++e) {
        const u32 r = Stream::draw(word, 64 + e);
        if (r & 255u) continue;
        const u32 value = SPECIAL[(r >> 8) & 7u];
        const float real = __uint_as_float(value);
        put<WIDTH>(bits, e, WIDTH == 8   ? (u64)__double_as_longlong((double)real)
                            : WIDTH == 4 ? value
                                         : packed(job.dtype, real, real));
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

// Of an in/out buffer of which a launch changes little, a seventh gets new values in a sample; the rest is restored. In a
// sample with special values and in the next one, phases 15 and 0 of 16, all is. How many samples ago a word was drawn:
constexpr u32 PARTS = 7;
__device__ u32 age(u32 phase, u32 number) {
    const u32 part = (number >> 8) % PARTS + 1;
    if (phase > 2 * PARTS) return 0;
    return phase < part ? phase : phase < part + PARTS ? phase - part : phase - part - PARTS;
}

// What a step does, to which sample.
struct Step {
    u64 next;  // the sample whose inputs are written or verified
    u32 what, phase;
    bool special, keeps;
};

// Fill whole words i, i + stride, ... of an input, from the last on, without special values: what takes the time. DTYPE:
// the job's, where a constant saves instructions.
template <u32 WIDTH, bool REAL, u32 DTYPE, bool UNIFORM>
__device__ void fill(Word* first, const Job& job, const Stream& stream, u32 i, u32 stride) {
    Job its = job;
    if (DTYPE) its.dtype = DTYPE;
    const u32 size = (u32)(job.end - job.begin), last = (u32)job.from + size - 1;
    Word* const end = first + job.end - 1;
    for (; i < size; i += stride) *(end - i) = random_word<WIDTH, REAL, UNIFORM>(its, stream.word(last - i));
}

// Fill (or verify) a job's words i, i + stride, ..., and compare those of a buffer that is both input and output, from
// the last on: `job.from + at` is a word's number, in the whole of a sample.
template <u32 WIDTH, bool REAL, u32 DTYPE = 0>
__device__ void renew(Word* first, Word* second, const Job& job, const Step& step, u32 i, u32 stride, u64* modified,
                      u32* difference) {
    const Stream stream(step.next);
    const u32 size = (u32)(job.end - job.begin);
    const bool both = job.what & 4, kept = (job.what & 16) && step.keeps;
    if (!both && (step.what & 2) && !step.special) {
        const bool part = i == 0 && job.tail < 16;  // the last word, of which a part is not the buffer's
        const u32 whole = part ? stride : i;
        if (job.fill == 2) fill<WIDTH, REAL, DTYPE, true>(first, job, stream, whole, stride);
        else fill<WIDTH, REAL, DTYPE, false>(first, job, stream, whole, stride);
        if (!part) return;
        stride = size;
    }
    // forth and back: what one step read last is in the L2 for the next
    const bool up = both && (step.next & 1);
    for (; i < size; i += stride) {
        const u32 at = up ? i : size - 1 - i, number = (u32)job.from + at;
        const u64 word = job.begin + at;
        const Stream drawn = kept ? Stream(step.next - age(step.phase, number)) : stream;
        const u32 its = drawn.word(number);
        Word made = job.fill == 2 ? random_word<WIDTH, REAL, true>(job, its) : random_word<WIDTH, REAL, false>(job, its);
        if (REAL && step.special) made = with_special<WIDTH>(job, its, made);
        if (at + 1 == size && job.tail < 16) made = joined(made, first[word], job.tail);
        if (!(step.what & 2)) {
            if (!same(first[word], made)) atomicAdd(modified, 1ull);
        } else if (both) {
            const Word a = first[word], b = second[word];
            if ((step.what & 1) && !same(a, b)) *difference = ~(u32)word;
            if (!kept || !same(a, made)) first[word] = made;
            if (!kept || !same(b, made)) second[word] = made;
        } else {
            first[word] = made;
        }
    }
}

// One step. `what`: 2 fills the inputs of sample counter + index; 3 compares that sample's outputs and fills the
// next one's inputs; 1 compares only; 9 compares, and verifies that the inputs are still what was filled.
// totals: [0] differing samples, [1] ~number of the first one, [2] ~byte offset of some differing word,
// [3] words of inputs that were modified. seen: the last differing sample counted, so that one counts once.
extern "C" __global__ void __launch_bounds__(256, 5)
sassafras_step(Word* first, Word* second, const Job* jobs, u32 count, u64 words, const u64* counter, u64 index,
               u32 what, u32 special_every, u64* totals, u64* seen) {
    constexpr u32 MOST = 32;
    __shared__ Job table[MOST];
    for (u32 k = threadIdx.x; k < count * (u32)(sizeof(Job) / 16) && k < MOST * sizeof(Job) / 16; k += blockDim.x)
        reinterpret_cast<Word*>(table)[k] = reinterpret_cast<const Word*>(jobs)[k];
    __syncthreads();
    wait_for_launch();
    const u64 taken = *counter + index;
    const u64 next = (what & 1) && (what & 2) ? taken + 1 : taken;
    const u32 phase = special_every ? (u32)(next % special_every) : 0;
    const Step step{next, what, phase, special_every && phase + 1 == special_every, special_every == 2 * PARTS + 2};
    u32 difference = 0;  // ~number of some differing word
    const u32 stride = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
    // half of the warps begin with the last job: comparing takes memory's time, filling that of arithmetic. The other
    // half in the next step, so that what was read last is read first
    const bool backwards = (threadIdx.x / 32 ^ (u32)next) & 1;
    for (u32 k = 0; k < count; ++k) {
        const u32 j = backwards ? count - 1 - k : k;
        const Job job = j < MOST ? table[j] : jobs[j];
        const u32 size = (u32)(job.end - job.begin);
        // jobs follow each other over the threads, so that many small ones do not all go to the first
        const u32 turned = (u32)job.from % stride, begin = thread >= turned ? thread - turned : thread + stride - turned;
        if ((what & job.what & 1) && !(what & job.what & 2)) {
            // from the last on, which the launch has written last
            const Word *const a = first + job.end - 1, *const b = second + job.end - 1;
            for (u32 i = begin; i < size; i += 4 * stride) {
                // four at a time also at the end, where the first word of all is compared more than once: a rest of
                // single words would wait for the memory as often
#pragma unroll
                for (u32 k = 0; k < 4; ++k) {
                    const u32 at = min(i + k * stride, size - 1);
                    if (!same(*(a - at), *(b - at))) difference = ~(u32)(job.end - 1 - at);
                }
            }
        }
        if (!(what & job.what & 10)) continue;
        u64* const modified = totals + 3;
        switch (job.dtype) {
            case 0: renew<8, true>(first, second, job, step, begin, stride, modified, &difference); break;
            case 1: renew<4, true>(first, second, job, step, begin, stride, modified, &difference); break;
            case 2: renew<2, true, 2>(first, second, job, step, begin, stride, modified, &difference); break;
            case 3: renew<2, true, 3>(first, second, job, step, begin, stride, modified, &difference); break;
            case 4: case 5: renew<1, true>(first, second, job, step, begin, stride, modified, &difference); break;
            case 16: renew<8, false>(first, second, job, step, begin, stride, modified, &difference); break;
            case 17: renew<4, false>(first, second, job, step, begin, stride, modified, &difference); break;
            case 18: renew<2, false>(first, second, job, step, begin, stride, modified, &difference); break;
            default: renew<1, false>(first, second, job, step, begin, stride, modified, &difference);
        }
    }
    if (difference && atomicExch(seen, taken + 1) != taken + 1) {
        atomicAdd(totals, 1ull);
        atomicMax(totals + 1, ~taken);
        atomicMax(totals + 2, ~((u64)~difference * 16));
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
