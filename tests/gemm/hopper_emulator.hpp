// Stands in for kernels/ptx_hopper.cuh on the CPU: mbarriers, tensor copies, warpgroup products, clusters.
//
// What the hardware does on its own time (tensor copies, products, tensor stores) is queued and happens as late as the waits
// allow, at random, or at once, by `policy`. The emulator stops with a message when a kernel
//   - waits for something that cannot come (it then prints all barriers: wrong byte counts show),
//   - lets a copy overwrite what queued products still read, or reads what a queued copy has yet to write,
//   - reads or changes accumulators of queued products (they hold NaN meanwhile), or queues products of another width on them,
//   - overwrites a buffer that a queued tensor store still reads, or ends before it has been read,
//   - stores by TMA what was written without a proxy fence,
//   - touches the shared memory of a CTA that has ended.
// Matrix descriptors are decoded from the PTX ISA's description (sections "Shared Memory Matrix Layout", "Matrix Descriptor
// Format" of wgmma) and the canonical layouts that CUTLASS documents, not from our own encoder.
#pragma once
#include "lane_emulator.hpp"
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>

namespace sassafras {
struct TensorMap { // what the driver encodes
    char *base;
    long long extent[2], stride; // elements along x and y; bytes from row to row
    int box[2], swizzle;         // elements; bytes
    long long layers = 1, apart = 0; // a third dimension: extent; bytes from one to the next
    int deep = 0; // layers of a box; 0: one of a batch, past whose end nobody copies
    int rank = 2;
    bool fixed = false; // nothing writes the operand: it may be read before the launch ahead has ended
};
} // namespace sassafras

namespace emulator {

enum Policy { LATE, RANDOM, EAGER };
inline Policy policy = LATE;
// Planted in what the kernel asks for, so that tests can see that the checks bite.
enum Fault {
    NONE, NO_WAIT_FOR_EMPTY, NO_WAIT_FOR_FULL, WRONG_BYTES, NO_PROXY_FENCE, NO_STORE_WAIT, NO_PRODUCT_WAIT, NO_WAIT_FOR_SUMS,
    OFFSETS_EXCHANGED, NO_REMOTE_ARRIVAL, NO_PRODUCT_FENCE
};
inline Fault fault = NONE;
// Number of a fault that a test put into the kernels' text (`hopper_launch.spoilt`).
inline const int spoilt = std::getenv("SPOILT") ? std::atoi(std::getenv("SPOILT")) : 0;
inline std::mt19937 dice;
inline constexpr unsigned WINDOW = 0x450; // where dynamic shared memory starts in a CTA's window: not 1024-aligned

struct Phase { // an mbarrier
    unsigned count = 0, pending = 0, parity = 0;
    long long bytes = 0;
};
struct Granule { // 16 bytes of shared memory
    int product_reads = 0, copy_writes = 0, store_reads = 0, writer = -1;
    unsigned stamp = 0;
    bool barrier = false;
};
struct Product {
    uint64_t a, b;
    int n;
    bool bf16, a_mn, b_mn, accumulate;
    float *d[128] = {};
    int issued = 0;
    std::vector<Granule *> reads;
};
struct Held { // accumulators while products are queued
    std::vector<float> values;
    int queued = 0;
};
struct Group { // of 128 threads
    std::deque<Product> products; // all of the launch
    size_t executed = 0;
    std::map<float *, Held> held;
};
struct Thread {
    size_t products = 0;                 // issued
    std::vector<size_t> commits;         // `products` at each commit
    bool fenced = false;
    unsigned epoch = 1;                  // proxy fences
    unsigned met = 0;                    // the cluster's meeting at which it has arrived
    std::vector<std::vector<std::function<void()>>> stores{1}; // tensor stores, the last group open
};
struct Hopper { // of one CTA
    std::map<unsigned, Phase> barriers; // by offset
    std::vector<Granule> granules;
    std::map<int, Barrier> named;
    std::map<int, Group> groups;
    std::vector<Thread> threads;
    unsigned running;
};
inline std::vector<Hopper> hoppers;
inline std::deque<std::function<void()>> copies; // queued
inline std::vector<Range> scratch;                // workspace, counters

inline unsigned rank_of(const Lane *l) { return (unsigned)(l->cta - l->cluster->ctas.data()); }
inline Hopper &here() { return hoppers[rank_of(lane)]; }
inline Thread &self() { return here().threads[lane->thread.x]; }

inline char *bytes_at(unsigned rank, unsigned offset, size_t size) {
    if (rank >= hoppers.size()) fail("no such CTA in the cluster");
    if (!hoppers[rank].running) fail("access to the shared memory of a CTA that has ended");
    std::vector<float> &shared = lane->cluster->ctas[rank].shared;
    if (offset < WINDOW || offset - WINDOW + size > 4 * shared.size()) fail("access outside of shared memory");
    return (char *)shared.data() + (offset - WINDOW);
}
inline Granule &granule(unsigned rank, unsigned offset) { return hoppers[rank].granules.at(offset / 16); }

inline unsigned swizzled(unsigned address, int mode) {
    if (mode == 128) return address ^ ((address >> 7 & 7) << 4);
    if (mode == 64) return address ^ ((address >> 7 & 3) << 4);
    if (mode == 32) return address ^ ((address >> 7 & 1) << 4);
    return address;
}

inline void settle_phase(Phase &phase) {
    if (phase.pending == 0 && phase.bytes == 0) {
        phase.parity ^= 1;
        phase.pending = phase.count;
    }
}
inline Phase &phase_at(unsigned rank, unsigned offset) {
    bytes_at(rank, offset, 8);
    auto found = hoppers[rank].barriers.find(offset);
    if (found == hoppers[rank].barriers.end()) fail("a barrier that was not initialised");
    return found->second;
}
inline void arrive(unsigned rank, unsigned offset) {
    Phase &phase = phase_at(rank, offset);
    if (phase.pending == 0) fail("more arrivals than a barrier expects");
    --phase.pending;
    settle_phase(phase);
}

inline float element(const char *at, bool bf16) {
    uint16_t raw;
    std::memcpy(&raw, at, 2);
    if (!bf16) return half_to_float(raw);
    const uint32_t wide = (uint32_t)raw << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

// Offset in the CTA's window of element (row of m or n, k) of a 16-wide slice that a matrix descriptor describes.
inline unsigned described(uint64_t descriptor, bool mn_major, int row, int k) {
    const unsigned start = (unsigned)(descriptor & 0x3fff) << 4, leading = (unsigned)(descriptor >> 16 & 0x3fff) << 4,
                   stride = (unsigned)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1) fail("a descriptor of another swizzle than 128 bytes");
    if (descriptor >> 49 & 7) fail("a descriptor with a base offset");
    // K-major, in elements: ((8, rows / 8), k) with strides ((64, stride), 1);
    // MN-major: ((64, rows / 64), (8, 2)) with strides ((1, leading), (64, stride))
    const unsigned linear = mn_major ? start + (row / 64) * leading + (k / 8) * stride + (k % 8) * 128 + (row % 64) * 2
                                     : start + (row / 8) * stride + (row % 8) * 128 + k * 2;
    return swizzled(linear, 128);
}

// The 16 bytes that hold 8 elements of a slice, along the lines in memory: their offset, and their first element.
template <class Visit> inline void each_granule(int rows, uint64_t descriptor, bool mn_major, Visit visit) {
    if (rows % 8) fail("a slice whose rows are no multiple of 8");
    for (int i = 0; i < 2 * rows; ++i) {
        const int row = mn_major ? i % (rows / 8) * 8 : i / 2, k = mn_major ? i / (rows / 8) : i % 2 * 8;
        visit(described(descriptor, mn_major, row, k), row, k);
    }
}

// b by k, so that a row's sums are added side by side, each in the order of k
// (AVX2 has no multiplication that adds unrounded: the sums are the same)
[[gnu::noinline, gnu::optimize("O3"), gnu::target_clones("avx2", "default")]]
inline void add_products(double *__restrict sums, const double *a, const double (&b)[16][256], int n) {
    for (int k = 0; k < 16; ++k)
        for (int column = 0; column < n; ++column) sums[column] += a[k] * b[k][column];
}

inline void execute(Hopper &cta, unsigned rank, Group &group) {
    Product &p = group.products[group.executed++];
    static double a[64][16], b[16][256], sums[256];
    each_granule(64, p.a, p.a_mn, [&](unsigned offset, int row, int k) {
        const char *at = bytes_at(rank, offset, 16);
        for (int i = 0; i < 8; ++i) (p.a_mn ? a[row + i][k] : a[row][k + i]) = element(at + 2 * i, p.bf16);
    });
    each_granule(p.n, p.b, p.b_mn, [&](unsigned offset, int row, int k) {
        const char *at = bytes_at(rank, offset, 16);
        for (int i = 0; i < 8; ++i) (p.b_mn ? b[k][row + i] : b[k + i][row]) = element(at + 2 * i, p.bf16);
    });
    for (Granule *g : p.reads) --g->product_reads;
    Held *held[128];
    for (int thread = 0; thread < 128; ++thread) held[thread] = &group.held.at(p.d[thread]);
    for (int row = 0; row < 64; ++row) {
        // this row's accumulators: of four threads, every other pair
        const int thread = row / 16 * 32 + row % 8 * 4, upper = row / 8 % 2;
        float *of[4];
        for (int i = 0; i < 4; ++i) of[i] = held[thread + i]->values.data() + 2 * upper;
        if (!p.accumulate) std::fill(sums, sums + p.n, 0.0);
        for (int column = 0; p.accumulate && column < p.n; column += 8)
            for (int i = 0; i < 8; ++i) sums[column + i] = of[i / 2][column / 2 + i % 2];
        add_products(sums, a[row], b, p.n);
        for (int column = 0; column < p.n; column += 8)
            for (int i = 0; i < 8; ++i) of[i / 2][column / 2 + i % 2] = (float)sums[column + i];
    }
    for (int thread = 0; thread < 128; ++thread)
        if (--held[thread]->queued == 0) {
            std::memcpy(p.d[thread], held[thread]->values.data(), 2 * p.n);
            group.held.erase(p.d[thread]);
        }
    p.reads = {};
    (void)cta;
}

inline void run_copy(size_t which) {
    auto copy = std::move(copies[which]);
    copies.erase(copies.begin() + which);
    copy();
}

inline void report() {
    for (size_t r = 0; r < hoppers.size(); ++r)
        for (const auto &[offset, phase] : hoppers[r].barriers)
            std::fprintf(stderr, "  CTA %zu barrier %#x: parity %u, %u of %u arrivals and %lld bytes to come\n", r, offset,
                         phase.parity, phase.pending, phase.count, phase.bytes);
}

// Clusters run one after the other, in an order drawn from the dice when `shuffle`.
inline void launch_clusters(Dim grid, Dim shape, unsigned threads, size_t shared_bytes, bool shuffle,
                            std::function<void()> kernel) {
    const unsigned cluster_size = shape.x * shape.y * shape.z;
    if (grid.x % shape.x || grid.y % shape.y || grid.z % shape.z) fail("the grid is no multiple of the cluster");
    grid_dim = grid;
    block_dim = Dim{threads, 1, 1};
    body = kernel;
    idle = [] {
        if (copies.empty()) {
            report();
            return false;
        }
        run_copy(policy == RANDOM ? dice() % copies.size() : 0);
        return true;
    };
    static unsigned paused; // CTAs and warps that sit out the round (a hash of it)
    pauses = [](const Lane &l) {
        return policy == RANDOM && (paused >> rank_of(&l) & 1 || (paused >> (8 + l.thread.x / 32 % 16) & 1));
    };
    round_begins = [] {
        if (policy != RANDOM) return;
        paused = (unsigned)(dice() & dice());
        for (size_t i = copies.size(); i-- > 0;)
            if (dice() % 8 == 0) run_copy(i);
    };
    lane_ends = [] {
        for (const auto &group : self().stores)
            if (!group.empty()) fail("a thread ends before its tensor stores have been read");
        --here().running;
    };
    std::vector<Dim> order;
    for (unsigned z = 0; z < grid.z; z += shape.z)
        for (unsigned y = 0; y < grid.y; y += shape.y)
            for (unsigned x = 0; x < grid.x; x += shape.x) order.push_back({x, y, z});
    if (shuffle) std::shuffle(order.begin(), order.end(), dice);
    for (const Dim first : order) {
        Cluster cluster;
        cluster.ctas.resize(cluster_size);
        cluster.barrier.expected = cluster_size * threads;
        hoppers.assign(cluster_size, {});
        for (unsigned r = 0; r < cluster_size; ++r) {
            Cta &cta = cluster.ctas[r];
            cta.barrier.expected = threads;
            cta.shared.assign(shared_bytes / 4, NAN);
            cta.warps.resize(threads / 32);
            for (Warp &warp : cta.warps) warp.barrier.expected = 32;
            cta.index = Dim{first.x + r % shape.x, first.y + r / shape.x % shape.y, first.z + r / shape.x / shape.y};
            hoppers[r].granules.resize((WINDOW + shared_bytes) / 16 + 1);
            hoppers[r].threads.resize(threads);
            hoppers[r].running = threads;
        }
        run_cluster(cluster);
        if (!copies.empty()) fail("a CTA ends before its copies have landed");
    }
}

inline void generic_write(unsigned offset, size_t size) {
    const unsigned rank = rank_of(lane);
    bytes_at(rank, offset, size);
    for (unsigned at = offset & ~15u; at < offset + size; at += 16) {
        Granule &g = granule(rank, at);
        if (g.barrier) fail("a write over a barrier");
        if (g.store_reads) fail("a buffer is overwritten while a tensor store reads it");
        if (g.copy_writes || g.product_reads) fail("a stage in use is overwritten");
        g.writer = (int)lane->thread.x;
        g.stamp = self().epoch;
    }
}

// z: -1 for instructions of two dimensions
inline void layer_of(const sassafras::TensorMap *map, int z) {
    if ((z < 0) != (map->rank == 2)) fail("an instruction of other dimensions than its tensor map");
    if (!map->deep && z >= map->layers) fail("a layer past the end of the batch");
}

inline bool thrifty = false; // rows outside are not to be asked for

inline void copy_box(unsigned to, const sassafras::TensorMap *map, int x, int y, unsigned barrier, unsigned mask, int z = -1) {
    layer_of(map, z);
    if (!map->fixed) check_predecessors();
    const int row_bytes = 2 * map->box[0];
    // found on an H200, 2026-11-22: an illegal instruction; no manual says it
    if (x % 8) fail("a tensor copy that does not begin at a multiple of 16 bytes");
    if (thrifty && (x >= map->extent[0] || (long long)y + map->box[1] > map->extent[1])) fail("a tensor copy asks for rows outside");
    if (to % 128) fail("a tensor copy to an address that is not a multiple of 128");
    if (row_bytes % 16 || (map->swizzle && row_bytes > map->swizzle)) fail("a box wider than its swizzle");
    std::vector<unsigned> ranks;
    for (unsigned r = 0; r < 16; ++r)
        if (mask >> r & 1) ranks.push_back(r);
    const int deep = std::max(1, map->deep), lines = map->box[1]; // a box's layers follow each other
    const unsigned size = row_bytes * lines * deep, offset = to & 0xffffff, bar = barrier & 0xffffff;
    for (unsigned r : ranks) {
        bytes_at(r, offset, size);
        for (unsigned at = offset; at < offset + size; at += 16) {
            Granule &g = granule(r, at);
            if (g.barrier) fail("a copy over a barrier");
            if (g.product_reads) fail("a copy overwrites a stage that products still read");
            if (g.copy_writes) fail("two copies to one place");
            ++g.copy_writes;
        }
    }
    const sassafras::TensorMap tensor = *map;
    Lane *const issuer = lane;
    copies.push_back([=] {
        Lane *const before = lane;
        lane = issuer; // for its cluster
        for (unsigned r : ranks) {
            for (int row = 0; row < lines * deep; ++row)
                for (int i = 0; i < tensor.box[0]; i += 8) { // 16 bytes, which stay together when swizzled
                    uint16_t values[8] = {};
                    const long long ex = (long long)x + i, ey = (long long)y + row % lines, ez = std::max(z, 0) + row / lines;
                    const long long count = std::min(8ll, tensor.extent[0] - ex);
                    if (ex >= 0 && count > 0 && ey >= 0 && ey < tensor.extent[1] && ez < tensor.layers) {
                        const char *from = tensor.base + ey * tensor.stride + 2 * ex + ez * tensor.apart;
                        check_read(from, 2); // operands lie further apart than both ends
                        check_read(from + 2 * count - 2, 2);
                        std::memcpy(values, from, 2 * count);
                    }
                    std::memcpy(bytes_at(r, swizzled(offset + row * row_bytes + 2 * i, tensor.swizzle), 16), values, 16);
                }
            for (unsigned at = offset; at < offset + size; at += 16) {
                --granule(r, at).copy_writes;
                granule(r, at).writer = -1;
            }
            Phase &phase = phase_at(r, bar);
            phase.bytes -= size;
            settle_phase(phase);
        }
        lane = before;
    });
    if (policy == EAGER) run_copy(copies.size() - 1);
}

inline void finish_stores(size_t pending) {
    auto &groups = self().stores;
    while (groups.size() > pending + 1) {
        for (auto &store : groups.front()) store();
        groups.erase(groups.begin());
    }
}

} // namespace emulator

namespace sassafras {

inline u32 shared_address(const void *at) {
    const char *const begin = (const char *)shared_floats();
    return emulator::rank_of(emulator::lane) << 24 | (u32)(emulator::WINDOW + ((const char *)at - begin));
}
inline u32 cluster_rank() { return emulator::rank_of(emulator::lane); }

inline void barrier_init(u32 barrier, u32 arrivals) {
    const u32 offset = barrier & 0xffffff;
    emulator::bytes_at(cluster_rank(), offset, 8);
    if (offset % 8) emulator::fail("a misaligned barrier");
    emulator::here().barriers[offset] = {arrivals, arrivals, 0, 0};
    emulator::granule(cluster_rank(), offset).barrier = true;
}
inline void barrier_init_fence() {}
inline void own(u32 address) {
    if (address >> 24 != cluster_rank()) emulator::fail("another CTA's address where one's own is wanted");
}
inline void barrier_expect(u32 barrier, u32 bytes) {
    own(barrier);
    emulator::phase_at(cluster_rank(), barrier & 0xffffff).bytes += bytes + (emulator::fault == emulator::WRONG_BYTES ? 16 : 0);
    emulator::arrive(cluster_rank(), barrier & 0xffffff);
}
inline void barrier_arrive(u32 barrier) {
    own(barrier);
    emulator::arrive(cluster_rank(), barrier & 0xffffff);
}
inline void barrier_arrive_remote(u32 barrier, u32 rank) {
    own(barrier);
    if (emulator::fault == emulator::NO_REMOTE_ARRIVAL) rank = cluster_rank();
    emulator::arrive(rank, barrier & 0xffffff);
}
template <int TAG> inline void barrier_wait(u32 barrier, u32 parity) {
    own(barrier);
    using namespace emulator;
    if (fault == (TAG == 1 ? NO_WAIT_FOR_EMPTY : TAG == 4 ? NO_WAIT_FOR_SUMS : NO_WAIT_FOR_FULL)) return;
    emulator::Phase &phase = emulator::phase_at(cluster_rank(), barrier & 0xffffff);
    emulator::block_until([&phase, parity] { return phase.parity != parity; }); // the current phase's parity differs
}
inline void sync_threads(int barrier, int threads) {
    if (barrier < 1 || barrier > 15) emulator::fail("named barriers are 1 to 15");
    emulator::Barrier &named = emulator::here().named[barrier];
    if (named.expected && named.expected != (unsigned)threads) emulator::fail("a barrier with two counts");
    named.expected = threads;
    emulator::wait(named);
}
inline void arrive_threads(int barrier, int threads) {
    if (barrier < 1 || barrier > 15) emulator::fail("named barriers are 1 to 15");
    emulator::Barrier &named = emulator::here().named[barrier];
    if (named.expected && named.expected != (unsigned)threads) emulator::fail("a barrier with two counts");
    named.expected = threads;
    if (++named.arrived == named.expected) {
        named.arrived = 0;
        ++named.generation;
    }
}
inline void keep(u32 &) {}
inline int least(int a, int b) { return std::max(0, std::min(a, b)); }
inline void sync_warp() { emulator::wait(emulator::lane->cta->warps[threadIdx.x / 32].barrier); }

inline u32 broadcast(u32 value) {
    emulator::Warp &warp = emulator::lane->cta->warps[threadIdx.x / 32];
    if (threadIdx.x % 32 == 0) warp.a[0][0] = value;
    emulator::wait(warp.barrier);
    const u32 found = warp.a[0][0];
    emulator::wait(warp.barrier);
    return found;
}

inline bool elected() { return threadIdx.x % 32 == 0; }
inline bool is_elected(int lane) { return lane == 0; }
inline void prefetch_map(const TensorMap *) {}
inline void copy_tile(u32 to, const TensorMap *map, int x, int y, u32 barrier) {
    own(to);
    own(barrier);
    emulator::copy_box(to, map, x, y, barrier, 1u << cluster_rank());
}
inline void copy_tile_multicast(u32 to, const TensorMap *map, int x, int y, u32 barrier, u16 mask) {
    emulator::copy_box(to, map, x, y, barrier, mask);
}
inline void copy_tile(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier) {
    own(to);
    own(barrier);
    emulator::copy_box(to, map, x, y, barrier, 1u << cluster_rank(), z);
}
inline void copy_tile_multicast(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier, u16 mask) {
    emulator::copy_box(to, map, x, y, barrier, mask, z);
}
inline void store_tile(const TensorMap *map, u32 from, int x, int y, int z, u64 policy) {
    if (policy != 0x1000000000000000ull && policy != 0x12F0000000000000ull) emulator::fail("a tensor store with a policy that is none");
    own(from);
    emulator::layer_of(map, z);
    const int row_bytes = 2 * map->box[0];
    const unsigned offset = from & 0xffffff, size = row_bytes * map->box[1], rank = cluster_rank();
    if (x % 8) emulator::fail("a tensor store that does not begin at a multiple of 16 bytes");
    if (from % 128) emulator::fail("a tensor store from an address that is not a multiple of 128");
    emulator::bytes_at(rank, offset, size);
    for (unsigned at = offset; at < offset + size; at += 16) {
        emulator::Granule &g = emulator::granule(rank, at);
        if (g.writer < 0) emulator::fail("a tensor store of what nobody has written");
        if (emulator::here().threads[g.writer].epoch <= g.stamp) emulator::fail("a tensor store of writes without a proxy fence");
        ++g.store_reads;
    }
    const TensorMap tensor = *map;
    emulator::self().stores.back().push_back([=] {
        for (int row = 0; row < tensor.box[1]; ++row)
            for (int i = 0; i < tensor.box[0]; ++i) {
                const long long ex = (long long)x + i, ey = (long long)y + row;
                if (ex < 0 || ex >= tensor.extent[0] || ey < 0 || ey >= tensor.extent[1]) continue;
                const char *at = emulator::bytes_at(rank, emulator::swizzled(offset + row * row_bytes + 2 * i, tensor.swizzle), 2);
                emulator::write(tensor.base + ey * tensor.stride + 2 * ex + std::max(z, 0) * tensor.apart, at, 2);
            }
        for (unsigned at = offset; at < offset + size; at += 16) --emulator::granule(rank, at).store_reads;
    });
}
inline void store_tile(const TensorMap *map, u32 from, int x, int y, u64 policy) { store_tile(map, from, x, y, -1, policy); }
inline void store_commit() {
    emulator::self().stores.emplace_back();
    if (emulator::policy == emulator::EAGER) {
        auto &groups = emulator::self().stores;
        for (auto &store : groups[groups.size() - 2]) store();
        groups[groups.size() - 2].clear();
    }
}
template <int PENDING> inline void store_wait() {
    if (emulator::fault != emulator::NO_STORE_WAIT) emulator::finish_stores(PENDING);
}
inline void async_fence() { emulator::self().epoch += emulator::fault != emulator::NO_PROXY_FENCE; }

template <bool TRANSPOSED> inline void store_matrices(u32 row, const u32 (&from)[4]) {
    own(row);
    if (row % 16) emulator::fail("a misaligned matrix row");
    const unsigned lane = threadIdx.x % 32;
    emulator::generic_write(row & 0xffffff, 16);
    emulator::Warp &warp = emulator::lane->cta->warps[threadIdx.x / 32];
    warp.row[lane] = (const uint16_t *)emulator::bytes_at(cluster_rank(), row & 0xffffff, 16);
    std::memcpy(warp.a[lane], from, sizeof from);
    emulator::wait(warp.barrier);
    for (unsigned e = 0; e < 8; ++e) { // this lane's row: number lane % 8 of matrix lane / 8
        const unsigned r = TRANSPOSED ? e : lane % 8, c = TRANSPOSED ? lane % 8 : e; // of the fragment
        const u32 word = warp.a[4 * r + c / 2][lane / 8];
        const_cast<uint16_t *>(warp.row[lane])[e] = (uint16_t)(word >> (16 * (c % 2)));
    }
    emulator::wait(warp.barrier);
}
inline void load_shared(u32 (&to)[4], u32 at) {
    own(at);
    if (at % 16) emulator::fail("a misaligned load from shared memory");
    if (emulator::granule(cluster_rank(), at & 0xffffff).copy_writes) emulator::fail("what is read has not landed");
    std::memcpy(to, emulator::bytes_at(cluster_rank(), at & 0xffffff, 16), 16);
}

inline void check_scratch(const void *at, size_t size) {
    for (const emulator::Range &r : emulator::scratch)
        if ((const char *)at >= r.begin && (const char *)at + size <= r.end && (uintptr_t)at % size == 0) return;
    emulator::fail("access outside of workspace and counters");
}
inline void store_partial(float *to, const float (&v)[4]) {
    check_scratch(to, 16);
    std::memcpy(to, v, 16);
}
inline void load_partial(float (&v)[4], const float *from) {
    check_scratch(from, 16);
    std::memcpy(v, from, 16);
}
inline float as_float(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline u32 remote_address(u32 mine, u32 rank) {
    own(mine);
    if (rank >= emulator::hoppers.size()) emulator::fail("no such CTA in the cluster");
    return rank << 24 | (mine & 0xffffff);
}
inline void store_async(u32 to, const float (&v)[4], u32 barrier, bool wanted) {
    using namespace emulator;
    if (!wanted) return;
    const unsigned rank = to >> 24, offset = to & 0xffffff, bar = barrier & 0xffffff;
    if (barrier >> 24 != rank || to % 16) fail("a store to another CTA that its barrier does not count, or misaligned");
    char *const at = bytes_at(rank, offset, 16);
    Granule &g = granule(rank, offset);
    if (g.barrier) fail("a write over a barrier");
    if (g.copy_writes || g.product_reads || g.store_reads) fail("a stage in use is overwritten");
    ++g.copy_writes;
    Phase &phase = phase_at(rank, bar);
    const std::array<float, 4> value = {v[0], v[1], v[2], v[3]};
    auto land = [&g, &phase, at, value] {
        std::memcpy(at, value.data(), 16);
        --g.copy_writes;
        g.writer = -1;
        phase.bytes -= 16;
        settle_phase(phase);
    };
    if (policy == EAGER || (policy == RANDOM && dice() % 8)) // few wait: there are thousands
        land();
    else
        copies.push_back(land);
}
inline void arrive_at_cluster() {
    emulator::Barrier &barrier = emulator::lane->cluster->barrier;
    emulator::self().met = barrier.generation;
    if (++barrier.arrived == barrier.expected) {
        barrier.arrived = 0;
        ++barrier.generation;
    }
}
inline void wait_for_cluster() {
    emulator::Barrier &barrier = emulator::lane->cluster->barrier;
    const unsigned met = emulator::self().met;
    emulator::block_until([&barrier, met] { return barrier.generation != met; });
}
template <int COUNT> inline void fewer_registers() {}
template <int COUNT> inline void more_registers() {}

inline void products_fence() { emulator::self().fenced = emulator::fault != emulator::NO_PRODUCT_FENCE; }
template <int COUNT> inline void settle(float (&)[COUNT]) {}

template <int N> struct Products {
    template <bool BF16, bool A_MN, bool B_MN> static void issue(float (&d)[N / 2], u64 a, u64 b, u32 accumulate) {
        using namespace emulator;
        if (fault == OFFSETS_EXCHANGED) b = (b & ~(0x3fff3fffULL << 16)) | (b >> 16 & 0x3fff) << 32 | (b >> 32 & 0x3fff) << 16;
        const unsigned rank = cluster_rank(), index = threadIdx.x % 128;
        Thread &thread = self();
        if (!thread.fenced) fail("products without a fence before them");
        Group &group = here().groups[(int)threadIdx.x / 128];
        if (thread.products == group.products.size()) {
            group.products.push_back({a, b, N, BF16, A_MN, B_MN, accumulate != 0});
            Product &p = group.products.back();
            auto reads = [&](int rows, u64 descriptor, bool mn_major) {
                each_granule(rows, descriptor, mn_major, [&](unsigned offset, int, int) { p.reads.push_back(&granule(rank, offset)); });
            };
            reads(64, a, A_MN);
            reads(N, b, B_MN);
            std::sort(p.reads.begin(), p.reads.end());
            p.reads.erase(std::unique(p.reads.begin(), p.reads.end()), p.reads.end());
            for (Granule *g : p.reads) {
                if (g->copy_writes) fail("products read a stage whose copy has not landed");
                ++g->product_reads;
            }
        }
        Product &p = group.products[thread.products++];
        if (p.a != a || p.b != b || p.n != N || p.accumulate != (accumulate != 0)) fail("a warpgroup's threads disagree on a product");
        p.d[index] = d;
        ++p.issued;
        auto held = group.held.upper_bound(d); // they do not overlap: the last one that begins before, and those from here on
        if (held != group.held.begin()) --held;
        for (; held != group.held.end() && held->first < d + N / 2; ++held)
            if (d < held->first + held->second.values.size() && (held->first != d || held->second.values.size() != N / 2))
                fail("products of two widths share accumulators");
        Held &of = group.held[d];
        if (!of.queued++) {
            of.values.assign(d, d + N / 2);
            std::fill(d, d + N / 2, NAN);
        }
    }
};
inline void products_commit() { emulator::self().commits.push_back(emulator::self().products); }
template <int PENDING> inline void products_wait() {
    using namespace emulator;
    if (fault == NO_PRODUCT_WAIT && PENDING > 0) return;
    Thread &thread = self();
    if (PENDING == 0) thread.fenced = false;
    if (thread.commits.size() <= PENDING) return;
    const size_t upto = thread.commits[thread.commits.size() - 1 - PENDING];
    Hopper &cta = here();
    Group &group = cta.groups[(int)threadIdx.x / 128];
    block_until([&group, upto] { return group.products.size() >= upto && group.products[upto - 1].issued == 128; });
    while (group.executed < upto) execute(cta, cluster_rank(), group);
}

} // namespace sassafras
