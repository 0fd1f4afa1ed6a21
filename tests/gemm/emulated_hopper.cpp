// usage: PROGRAM JOB, or PROGRAM order ROWS COLUMNS GROUP (prints where each tile lies)
// Runs launches of TMA kernels on the CPU. JOB is a text file of whitespace-separated words:
//   instance  grid x y z  cluster x y z  threads  shared_bytes  policy(0 late, 1 random, 2 eager)  seed  repeats  fault
//   thrifty(1: a copy that asks for rows outside of its operand is a fault)
//   count, then the scalars in the order of the kernel's parameters
//   count, then of each tensor map: operand(0 a, 1 b, 2 c)  rank  extents  strides  box  swizzle
//   workspace_bytes  files a b c
// INSTANCES is a list of X(number, type, kind): kind `ws` (Persistent), `wf` (the same, FOLDS), `cs` (SplitK), `any` (AnyRows) or `st` (Stream).
#include "sm90_gemm_unaligned.cuh"
#include "sm90_gemm_persistent.cuh"
#include "sm90_gemm_split_k.cuh"
#include "sm90_gemm_stream.cuh"
#include <fstream>
#include <iostream>

using namespace sassafras;

static std::vector<char> contents(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) emulator::fail("cannot open an input");
    return {std::istreambuf_iterator<char>(file), {}};
}

static char *aligned(const std::vector<char> &data) {
    char *raw = (char *)std::aligned_alloc(256, (data.size() + 255) / 256 * 256);
    std::memcpy(raw, data.data(), data.size());
    return raw;
}

// Dynamic shared memory that a kernel wants when so many CTAs split k.
template <class Kernel> static int wanted_bytes(int slices) {
    if constexpr (requires { Kernel::with_sums(1); }) return Kernel::with_sums(slices);
    return Kernel::SHARED_BYTES;
}

int main(int, char **argv) {
    if (std::string(argv[1]) == "order") { // rows, columns, group, dividers: where each tile lies
        sassafras::PersistentProblem p{};
        int *const numbers[] = {&p.tiles_m,    &p.tiles_n, &p.group,      &p.band_by,   &p.band_shift,
                                &p.wide_by, &p.wide_shift, &p.rest_by, &p.rest_shift};
        for (int i = 0; i < 9; ++i) *numbers[i] = std::atoi(argv[2 + i]);
        sassafras::Work work(0);
        for (work.tile = 0; work.tile < p.tiles_m * p.tiles_n; ++work.tile) {
            int row, column;
            work.place(p, row, column);
            std::cout << row << " " << column << "\n";
        }
        return 0;
    }
    std::ifstream job(argv[1]);
    auto number = [&] {
        long long value;
        if (!(job >> value)) emulator::fail("the job is too short");
        return value;
    };
    const int instance = (int)number();
    Dim grid{};
    grid.x = (unsigned)number();
    grid.y = (unsigned)number();
    grid.z = (unsigned)number();
    Dim cluster{};
    cluster.x = (unsigned)number();
    cluster.y = (unsigned)number();
    cluster.z = (unsigned)number();
    const unsigned threads = (unsigned)number();
    const size_t shared_bytes = number();
    emulator::policy = (emulator::Policy)number();
    emulator::dice.seed((unsigned)number());
    const int repeats = (int)number();
    emulator::fault = (emulator::Fault)number();
    emulator::thrifty = number() != 0;
    std::vector<int> s(number());
    for (int &value : s) value = (int)number();
    std::vector<TensorMap> maps(number());
    // of the split-K kernel, which has no map for C: slices where no band lies along x
    const int slices = maps.size() == 2 && s[9] ? 1 : (int)grid.x;
    std::vector<int> operands;
    for (TensorMap &map : maps) {
        operands.push_back((int)number());
        map.rank = (int)number();
        for (long long &extent : map.extent) extent = number();
        if (map.rank == 3) map.layers = number();
        map.stride = number();
        if (map.rank == 3) map.apart = number();
        for (int &extent : map.box) extent = (int)number();
        if (map.rank == 3) map.deep = (int)number();
        map.swizzle = (int)number();
    }
    std::vector<float> workspace(number() / 4 + 4, NAN);
    float *const work = (float *)(((uintptr_t)workspace.data() + 15) & ~(uintptr_t)15);
    emulator::scratch = {{(char *)work, (char *)(workspace.data() + workspace.size())}};
    std::string files[3];
    for (std::string &name : files) job >> name;
    char *operand[3];
    std::vector<char> first;
    for (int i = 0; i < 3; ++i) {
        const std::vector<char> data = contents(files[i]);
        operand[i] = aligned(data);
        if (i < 2)
            emulator::readable.push_back({operand[i], operand[i] + data.size()});
        else
            emulator::writable = {operand[i], operand[i] + data.size()};
    }
    for (size_t i = 0; i < maps.size(); ++i) maps[i].base = operand[operands[i]];
    const size_t size = emulator::writable.end - emulator::writable.begin;
    for (int turn = 0; turn < repeats; ++turn) {
        std::memset(operand[2], 0xff, size);
        emulator::stores.assign(size / 2, 0);
#define X(id, type, kind)                                                                                              \
    if (instance == id) {                                                                                             \
        if (wanted_bytes<type>(slices) != (int)shared_bytes || type::THREADS != (int)threads)                                 \
            emulator::fail("host and kernel disagree on shared memory or threads");                                   \
        emulator::launch_clusters(grid, cluster, threads, shared_bytes, turn > 0, [&] { type::run(kind); });           \
    }
#define ws {&maps[0], &maps[1], &maps[2], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], s[13], s[14]}
#define wf {&maps[0], &maps[1], &maps[2], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], s[13], s[14], s[15]}
#define cs {&maps[0], &maps[1], (u16 *)operand[2], work, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]}
#define any {&maps[0], &maps[1], &maps[2], &maps[3], (u16 *)operand[2], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]}
#define st {(u16 *)operand[0], (u16 *)operand[1], (u16 *)operand[2], s[0], s[1], s[2], s[3], s[4], s[5], s[6]}
        INSTANCES
        for (unsigned char count : emulator::stores)
            if (count != 1) emulator::fail("an element of C was not stored");
        if (turn == 0) first.assign(operand[2], operand[2] + size);
        else if (std::memcmp(first.data(), operand[2], size)) emulator::fail("two launches differ");
    }
    std::ofstream(files[2], std::ios::binary).write(operand[2], (std::streamsize)size);
    return 0;
}
