// Stands in for kernels/ptx.cuh on the CPU: runs a kernel's own source lane by lane.
//
// Every lane of a cluster is a fiber; barriers and mma switch between them. Global accesses are
// checked against the buffers' bounds and alignment, and every element of C must be stored exactly once.
// It emulates what the instructions do, not what they cost.
#pragma once
#undef _FORTIFY_SOURCE // its longjmp refuses to change stacks
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <malloc.h>
#include <memory>
#include <ucontext.h>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__

struct Dim { unsigned x = 1, y = 1, z = 1; };

namespace emulator {

[[noreturn]] inline void fail(const char *what) {
    std::fprintf(stderr, "emulator: %s\n", what);
    std::_Exit(3); // on a stack that destructors would free
}

struct Barrier { // generation-counted
    unsigned expected = 0, arrived = 0, generation = 0;
};
struct Warp {
    Barrier barrier;
    uint32_t a[32][4], b[32][2];
    const uint16_t *row[32];
};
struct Copy { void *to; const void *from; bool ok; size_t size; };
struct Cta {
    Barrier barrier;
    std::vector<float> shared;
    std::vector<Warp> warps;
    Dim index;
    bool waited = false; // a thread has returned from wait_for_predecessors
};
struct Cluster {
    Barrier barrier;
    std::vector<Cta> ctas;
};
struct Fiber { // runs one lane after the other: it is begun once, then left and entered by longjmp, without system calls
    ucontext_t start;
    jmp_buf left;
    bool begun = false;
    std::unique_ptr<char[]> stack;
};
struct Lane {
    Fiber *fiber;
    Dim thread;
    Cta *cta;
    Cluster *cluster;
    std::vector<std::vector<Copy>> groups{1}; // asynchronous copies, the last group still open
    bool done = false, may_load = false; // after wait_for_predecessors
    std::function<bool()> ready; // what a blocked lane waits for
};
struct Range { const char *begin, *end; };

inline jmp_buf scheduler;
inline Lane *lane;
inline Dim block_dim, grid_dim;
inline std::vector<Range> readable;
inline Range writable;
inline std::vector<unsigned char> stores; // of each FP16 element of C: whether it was stored
inline bool once = false;                // nobody may store an element again, not even the same: C is read as well
inline std::function<void()> body;

inline bool (*idle)() = [] { return false; }; // called when no lane can run; true if that changed something
inline void (*round_begins)() = [] {}, (*lane_ends)() = [] {};
inline bool (*pauses)(const Lane &) = nullptr; // sits this round out

[[gnu::noinline]] inline void yield() {
    if (!_setjmp(lane->fiber->left)) longjmp(scheduler, 1);
}
[[gnu::noinline]] inline void enter() { // until `lane` yields
    if (_setjmp(scheduler)) return;
    Fiber &fiber = *lane->fiber;
    if (fiber.begun) longjmp(fiber.left, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
}

template <class Condition> inline void block_until(Condition condition) { // the condition must not use `lane`
    while (!condition()) {
        lane->ready = condition;
        yield();
        lane->ready = nullptr;
    }
}

inline void wait(Barrier &barrier) {
    const unsigned generation = barrier.generation;
    if (++barrier.arrived == barrier.expected) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    block_until([&barrier, generation] { return barrier.generation != generation; });
}

inline void trampoline() {
    for (;;) { // what enters again after the end is another lane
        body();
        lane_ends();
        lane->done = true;
        yield();
    }
}

// Memory stays with the process: each cluster's is as large as the one before it, and new pages take longer than the kernel.
inline const int kept = mallopt(M_MMAP_THRESHOLD, 1 << 30) + mallopt(M_TRIM_THRESHOLD, 1 << 30) + mallopt(M_TOP_PAD, 1 << 22);

inline void run_cluster(Cluster &cluster) {
    static std::deque<Fiber> fibers;
    std::vector<Lane> lanes(cluster.ctas.size() * block_dim.x);
    for (size_t i = fibers.size(); i < lanes.size(); ++i) {
        Fiber &fiber = fibers.emplace_back();
        fiber.stack.reset(new char[65536]);
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.get();
        fiber.start.uc_stack.ss_size = 65536;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, trampoline, 0);
    }
    for (size_t i = 0; i < lanes.size(); ++i) {
        Lane &l = lanes[i];
        l.fiber = &fibers[i];
        l.thread.x = i % block_dim.x;
        l.cta = &cluster.ctas[i / block_dim.x];
        l.cluster = &cluster;
    }
    size_t left = lanes.size();
    while (left) {
        bool moved = false;
        round_begins();
        for (Lane &l : lanes)
            if (!l.done && pauses && pauses(l)) {
                moved = true;
            } else if (!l.done && (!l.ready || l.ready())) {
                lane = &l;
                enter();
                left -= l.done;
                moved = true;
            }
        if (!moved && left && !idle()) fail("the lanes wait for each other forever");
    }
}

// grid.x is the cluster's size
inline void launch(Dim grid, unsigned threads, size_t shared_bytes, std::function<void()> kernel) {
    grid_dim = grid;
    block_dim = Dim{threads, 1, 1};
    body = kernel;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y) {
            Cluster cluster;
            cluster.ctas.resize(grid.x);
            cluster.barrier.expected = grid.x * threads;
            for (unsigned x = 0; x < grid.x; ++x) {
                Cta &cta = cluster.ctas[x];
                cta.barrier.expected = threads;
                cta.shared.assign(shared_bytes / 4, NAN);
                cta.warps.resize(threads / 32);
                for (Warp &warp : cta.warps) warp.barrier.expected = 32;
                cta.index = Dim{x, y, z};
            }
            run_cluster(cluster);
        }
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    value = (h & 0x7c00) == 0x7c00 ? (h & 1023 ? NAN : INFINITY) : value * 0x1p112f; // exponents are 112 apart
    std::memcpy(&bits, &value, 4);
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint16_t float_to_half(float f) { // to nearest even
    const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
    const double x = std::fabs((double)f);
    if (std::isnan(f)) return 0x7fff;
    if (x >= 65520.0) return sign | 0x7c00;
    int exponent = x > 0 ? std::max(std::ilogb(x), -14) : -14;
    double units = std::nearbyint(std::ldexp(x, 10 - exponent));
    if (units >= 2048) { units /= 2; ++exponent; }
    const unsigned u = (unsigned)units;
    return sign | (u < 1024 ? u : ((exponent + 15) << 10) + (u - 1024));
}

inline void check_read(const void *at, size_t bytes) {
    if ((uintptr_t)at % bytes) fail("misaligned load");
    for (const Range &r : readable)
        if ((const char *)at >= r.begin && (const char *)at + bytes <= r.end) return;
    fail("load outside of A and B");
}

inline void check_predecessors() {
    if (!lane->may_load) fail("a load that does not wait for the launch before this one");
}

inline void write(void *at, const void *from, size_t bytes) {
    if ((uintptr_t)at % bytes) fail("misaligned store");
    if ((char *)at < writable.begin || (char *)at + bytes > writable.end) fail("store outside of C");
    size_t e = ((char *)at - writable.begin) / 2;
    for (const char *old = (char *)at, *now = (const char *)from, *end = old + bytes; old < end; old += 2, now += 2, ++e) {
        if (stores[e] && once) fail("an element of C is stored twice");
        if (stores[e] && std::memcmp(old, now, 2)) fail("an element of C is stored twice, differently");
        stores[e] = 1;
    }
    std::memcpy(at, from, bytes);
}

} // namespace emulator

#define threadIdx (emulator::lane->thread)
#define blockIdx (emulator::lane->cta->index)
#define blockDim (emulator::block_dim)
#define gridDim (emulator::grid_dim)

namespace sassafras {
using std::min;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

inline void start_successors() {
    if (!emulator::lane->cta->waited) emulator::fail("successors may start before the launch before this one has ended");
}
inline void wait_for_predecessors() { emulator::lane->may_load = emulator::lane->cta->waited = true; }

template <int WORDS> inline void load_global(u32 (&to)[WORDS], const void *from, bool ok) {
    std::memset(to, 0, sizeof to);
    if (!ok) return;
    emulator::check_predecessors();
    emulator::check_read(from, sizeof to);
    std::memcpy(to, from, sizeof to);
}
template <int WORDS> inline void store_global(void *to, const u32 (&from)[WORDS]) {
    emulator::write(to, from, sizeof from);
}
inline void store_global_u16(void *to, u16 from) { emulator::write(to, &from, 2); }

inline u16 to_f16(float value) { return emulator::float_to_half(value); }
inline float from_f16(u16 value) { return emulator::half_to_float(value); }
inline float from_bf16(u16 value) {
    const u32 bits = (u32)value << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

// `value` is that of an element.
template <class Value>
inline void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const Value &value) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    emulator::Warp &warp = emulator::lane->cta->warps[threadIdx.x / 32];
    const u32 a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    std::memcpy(warp.a[lane], a, sizeof a);
    std::memcpy(warp.b[lane], b, sizeof b);
    emulator::wait(warp.barrier);
    for (int q = 0; q < 4; ++q) {
        const int upper = q / 2, column = 2 * t + q % 2; // row g + 8 * upper
        double sum = d[q];
        for (int k = 0; k < 16; ++k) {
            const int owner = (k % 8) / 2, high = k / 8, shift = 16 * (k % 2);
            sum += (double)value((u16)(warp.a[4 * g + owner][2 * high + upper] >> shift)) *
                   (double)value((u16)(warp.b[4 * column + owner][high] >> shift));
        }
        d[q] = (float)sum;
    }
    emulator::wait(warp.barrier);
}
inline void mma_m16n8k16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma(d, a0, a1, a2, a3, b0, b1, from_f16);
}
inline void mma_m16n8k16_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma(d, a0, a1, a2, a3, b0, b1, from_bf16);
}

inline u32 lower_halves(u32 x, u32 y) { return (x & 0xffff) | (y << 16); }
inline u32 upper_halves(u32 x, u32 y) { return (x >> 16) | (y & 0xffff0000u); }
inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline u32 pack_f16(float first, float second) { return to_f16(first) | ((u32)to_f16(second) << 16); }
inline u32 pack_bf16(float first, float second) {
    auto one = [](float f) {
        u32 bits;
        std::memcpy(&bits, &f, 4);
        return f != f ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return one(first) | one(second) << 16;
}

// Copies happen as late as the waits allow, so that a missing wait shows.
template <int BYTES> inline void copy_async_part(void *to, const void *from, bool ok) {
    const std::vector<float> &shared = emulator::lane->cta->shared;
    if ((char *)to < (char *)shared.data() || (char *)to + BYTES > (char *)(shared.data() + shared.size()))
        emulator::fail("copy outside of shared memory");
    emulator::check_predecessors();
    if (ok) emulator::check_read(from, BYTES);
    emulator::lane->groups.back().push_back({to, from, ok, BYTES});
}
inline void copy_async(void *to, const void *from, bool ok) { copy_async_part<16>(to, from, ok); }
inline u16 load_global_u16(const u16 *from, bool ok) {
    if (!ok) return 0;
    emulator::check_predecessors();
    emulator::check_read(from, 2);
    return *from;
}
inline void copy_commit() { emulator::lane->groups.emplace_back(); }
template <int PENDING> inline void copy_wait() {
    auto &groups = emulator::lane->groups;
    while (groups.size() > PENDING + 1) {
        for (const emulator::Copy &copy : groups.front())
            copy.ok ? std::memcpy(copy.to, copy.from, copy.size) : std::memset(copy.to, 0, copy.size);
        groups.erase(groups.begin());
    }
}

template <bool TRANSPOSED> inline void matrices(u32 (&to)[4], const void *row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    emulator::Warp &warp = emulator::lane->cta->warps[threadIdx.x / 32];
    const std::vector<float> &shared = emulator::lane->cta->shared;
    if ((char *)row < (char *)shared.data() || (char *)row + 16 > (char *)(shared.data() + shared.size()))
        emulator::fail("ldmatrix outside of shared memory");
    warp.row[lane] = (const uint16_t *)row;
    emulator::wait(warp.barrier);
    for (int i = 0; i < 4; ++i)
        to[i] = TRANSPOSED ? warp.row[8 * i + 2 * t][g] | (u32)warp.row[8 * i + 2 * t + 1][g] << 16
                           : warp.row[8 * i + g][2 * t] | (u32)warp.row[8 * i + g][2 * t + 1] << 16;
    emulator::wait(warp.barrier);
}
inline void load_matrices(u32 (&to)[4], const void *row) { matrices<false>(to, row); }
inline void load_matrices_transposed(u32 (&to)[4], const void *row) { matrices<true>(to, row); }

inline float *shared_floats() { return emulator::lane->cta->shared.data(); }
inline void sync_cta() { emulator::wait(emulator::lane->cta->barrier); }
inline void sync_cluster() { emulator::wait(emulator::lane->cluster->barrier); }
inline void meet_cluster() { sync_cluster(); }
inline float load_remote(const float *mine, u32 rank) {
    const size_t offset = mine - shared_floats();
    const std::vector<float> &other = emulator::lane->cluster->ctas.at(rank).shared;
    if (offset >= other.size()) emulator::fail("distributed shared memory out of bounds");
    return other[offset];
}
inline void load_remote(float (&to)[4], const float *mine, u32 rank) {
    if ((mine - shared_floats()) % 4) emulator::fail("misaligned load from distributed shared memory");
    for (int i = 0; i < 4; ++i) to[i] = load_remote(mine + i, rank);
}
} // namespace sassafras
