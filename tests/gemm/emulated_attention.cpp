// usage: PROGRAM JOB
// Runs attention of one query row on the CPU. JOB is a text file of whitespace-separated words:
//   instance  grid x y z  cluster  threads  shared_bytes  policy  seed  files of q k v mask c ("-": null)
//   then the kernel's parameters in order, each a kind and its value: q, k, v, mask, c: nothing;  int N;  float BITS
// C is written back, and how often each of its elements was stored to a file of the same name with ".stores".
// INSTANCES is a list of X(number, type).
#include "sm90_decode_attention.cuh"
#include <fstream>
#include <string>

using namespace sassafras;

struct Any { // a parameter's value, whatever its type
    std::string kind;
    long long number = 0;
    u16 *pointer = nullptr;
    operator int() const { return want("int"), (int)number; }
    operator long long() const { return want("int"), number; }
    operator float() const { return want("float"), as_float((u32)number); }
    operator u16 *() const { return want("pointer"), pointer; }
    operator const u16 *() const { return want("pointer"), pointer; }
    void want(const char *wanted) const {
        if (kind != wanted) emulator::fail("host and kernel disagree on a parameter");
    }
};

template <size_t... I> static DecodeAttentionProblem problem(const std::vector<Any> &p, std::index_sequence<I...>) {
    if (p.size() != sizeof...(I)) emulator::fail("host and kernel disagree on the number of parameters");
    return {p[I]...};
}

int main(int, char **argv) {
    std::ifstream job(argv[1]);
    int instance, threads, shared_bytes, policy, seed;
    Dim grid{}, cluster{};
    job >> instance >> grid.x >> grid.y >> grid.z >> cluster.x >> threads >> shared_bytes >> policy >> seed;
    emulator::policy = (emulator::Policy)policy;
    emulator::dice.seed(seed);
    const std::string names[] = {"q", "k", "v", "mask", "c"};
    std::string files[5];
    u16 *buffers[5] = {};
    for (int i = 0; i < 5; ++i) {
        job >> files[i];
        if (files[i] == "-") continue;
        std::ifstream file(files[i], std::ios::binary);
        const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
        buffers[i] = (u16 *)std::aligned_alloc(256, (data.size() + 255) / 256 * 256);
        std::memcpy(buffers[i], data.data(), data.size());
        const emulator::Range range{(char *)buffers[i], (char *)buffers[i] + data.size()};
        if (i == 4) emulator::writable = range;
        else emulator::readable.push_back(range);
    }
    std::vector<Any> parameters;
    for (std::string kind; job >> kind;) {
        Any value{"pointer"};
        const auto found = std::find(names, names + 5, kind);
        if (found != names + 5) value.pointer = buffers[found - names];
        else job >> value.number, value.kind = kind;
        parameters.push_back(value);
    }
    const size_t size = emulator::writable.end - emulator::writable.begin;
    emulator::stores.assign(size / 2, 0);
    emulator::once = true;
    const auto given = problem(parameters, std::make_index_sequence<19>());
#define X(id, type)                                                                                                    \
    if (instance == id) {                                                                                              \
        using Kernel = type;                                                                                           \
        if (Kernel::SHARED_BYTES != shared_bytes || Kernel::THREADS != threads) emulator::fail("host and kernel disagree"); \
        emulator::launch_clusters(grid, cluster, threads, shared_bytes, policy == emulator::RANDOM, [&] { Kernel::run(given); }); \
    }
    INSTANCES
#undef X
    std::ofstream(files[4], std::ios::binary).write((char *)buffers[4], (std::streamsize)size);
    std::ofstream(files[4] + ".stores", std::ios::binary).write((char *)emulator::stores.data(), (std::streamsize)(size / 2));
    return 0;
}
