// usage: PROGRAM JOB
// Runs a product's two launches on the CPU: parts that leave their sums, and the kernel that adds them up. JOB is a text file of
// whitespace-separated words:
//   first kernel's number  grid x y z  cluster x y z  threads  shared_bytes
//   second kernel's number  grid x  threads  shared_bytes
//   policy(0 late, 1 random, 2 eager)  seed  repeats  fault
//   count, then the first's scalars; count, then the second's
//   of both tensor maps: operand(0 a, 1 b)  extent x y  stride  box x y  swizzle
//   workspace_bytes  files a b c
// FIRST_KERNELS and SECOND_KERNELS are lists of X(number, type).
static int planted = 0; // number of a fault (test_second_launch.py puts them into the text)
#include "sm90_gemm_split_k_reduce.cuh"
#include "sm90_gemm_split_k.cuh"
#include <fstream>

using namespace sassafras;

int main(int, char **argv) {
    std::ifstream job(argv[1]);
    auto number = [&] {
        long long value;
        if (!(job >> value)) emulator::fail("the job is too short");
        return value;
    };
    auto dim = [&] {
        Dim d{};
        d.x = (unsigned)number(), d.y = (unsigned)number(), d.z = (unsigned)number();
        return d;
    };
    const int first = (int)number();
    const Dim grid = dim(), cluster = dim();
    const int threads = (int)number(), shared_bytes = (int)number(), second = (int)number();
    Dim adding{};
    adding.x = (unsigned)number();
    const int adding_threads = (int)number(), adding_bytes = (int)number();
    emulator::policy = (emulator::Policy)number();
    emulator::dice.seed((unsigned)number());
    const int repeats = (int)number();
    planted = (int)number();
    std::vector<int> s(number());
    for (int &value : s) value = (int)number();
    std::vector<int> t(number());
    for (int &value : t) value = (int)number();
    TensorMap maps[2];
    int operands[2];
    for (int i = 0; i < 2; ++i) {
        operands[i] = (int)number();
        for (long long &extent : maps[i].extent) extent = number();
        maps[i].stride = number();
        for (int &extent : maps[i].box) extent = (int)number();
        maps[i].swizzle = (int)number();
    }
    const size_t sums = number() / 4;
    std::vector<float> workspace(sums + 4);
    float *const work = (float *)(((uintptr_t)workspace.data() + 15) & ~(uintptr_t)15);
    emulator::scratch = {{(char *)work, (char *)(work + sums)}};
    std::string files[3];
    char *operand[3];
    for (int i = 0; i < 3; ++i) {
        job >> files[i];
        std::ifstream file(files[i], std::ios::binary);
        if (!file) emulator::fail("cannot open an input");
        const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
        operand[i] = (char *)std::aligned_alloc(256, (data.size() + 255) / 256 * 256);
        std::memcpy(operand[i], data.data(), data.size());
        if (i < 2)
            emulator::readable.push_back({operand[i], operand[i] + data.size()});
        else
            emulator::writable = {operand[i], operand[i] + data.size()};
    }
    for (int i = 0; i < 2; ++i) maps[i].base = operand[operands[i]];
    u16 *const c = (u16 *)operand[2];
    const size_t size = emulator::writable.end - emulator::writable.begin;
    std::vector<char> before;
    for (int turn = 0; turn < repeats; ++turn) {
        std::fill(workspace.begin(), workspace.end(), NAN);
        std::memset(c, 0xff, size);
        emulator::stores.assign(size / 2, 0);
        const auto agree = [](int wants, int gets) {
            if (wants != gets) emulator::fail("host and kernel disagree on shared memory or threads");
        };
#define X(id, type)                                                                                                    \
    if (first == id) {                                                                                                 \
        agree(type::SHARED_BYTES, shared_bytes), agree(type::THREADS, threads);                                        \
        const SplitKProblem p{&maps[0], &maps[1], c, work, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]};                                     \
        emulator::launch_clusters(grid, cluster, threads, shared_bytes, turn > 0, [&] { type::run(p); });             \
    }
        FIRST_KERNELS
#undef X
        for (unsigned char count : emulator::stores)
            if (count) emulator::fail("the first kernel stores C");
#define X(id, type)                                                                                                    \
    if (second == id) {                                                                                                \
        agree(type::SHARED_BYTES, adding_bytes), agree(type::THREADS, adding_threads);                                 \
        const SplitKReduceProblem p{c, work, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9]};                              \
        emulator::launch_clusters(adding, Dim{}, adding_threads, adding_bytes, turn > 0, [&] { type::run(p); });       \
    }
        SECOND_KERNELS
        for (unsigned char count : emulator::stores)
            if (count != 1) emulator::fail("an element of C was not stored");
        if (turn == 0)
            before.assign(operand[2], operand[2] + size);
        else if (std::memcmp(before.data(), operand[2], size))
            emulator::fail("two launches differ");
    }
    std::ofstream(files[2], std::ios::binary).write(operand[2], (std::streamsize)size);
    return 0;
}
