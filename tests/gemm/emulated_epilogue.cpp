// usage: PROGRAM JOB
// Runs launches with an epilogue on the CPU, of all families. JOB is a text file of whitespace-separated words:
//   instance  grid x y z  cluster x y z  threads  shared_bytes  policy(0 late, 1 random, 2 eager)  seed  repeats  bytes by which operands miss a 256-byte boundary
//   workspace_bytes  files of a b c bias addend norm second third second_bias third_bias ("-": null, "c": C itself)
//   then the kernel's parameters in order, each a kind and its value:
//     a to third_bias as above, workspace: nothing;  int N;  float BITS
//     map  operand(0 a, 1 b, 2 c, 4 addend, 6 second, 7 third)  extents x y z  strides y z  box x y  swizzle
// C is written back, and how often each of its elements was stored to a file of the same name with ".stores".
// INSTANCES is a list of X(number, type).
#include "sm90_gemm_unaligned.cuh"
#include "sm90_gemm_split_k.cuh"
#include "sm90_gemm_small.cuh"
#include "sm90_gemm_fallback.cuh"
#include "sm90_gemm_persistent.cuh"
#include "sm90_gemm_stream.cuh"
#include <fstream>
#include <string>

using namespace sassafras;

// A parameter's value, whatever its type; an aggregate's initialiser converts it.
struct Any {
    std::string kind;
    long long number = 0;
    void *pointer = nullptr;
    const TensorMap *map = nullptr;
    operator int() const { return want("int"), (int)number; }
    operator long long() const { return want("int"), number; }
    operator float() const {
        want("float");
        const int bits = (int)number;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    }
    operator u16 *() const { return want("pointer"), (u16 *)pointer; }
    operator const u16 *() const { return want("pointer"), (const u16 *)pointer; }
    operator float *() const { return want("pointer"), (float *)pointer; }
    operator const TensorMap *() const { return want("map"), map; }
    void want(const char *kind_wanted) const {
        if (kind != kind_wanted) emulator::fail("host and kernel disagree on a parameter");
    }
};

static std::vector<char> contents(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) emulator::fail("cannot open an input");
    return {std::istreambuf_iterator<char>(file), {}};
}

// 256-byte boundary, and `shift` bytes more: kernels for any alignment
static char *placed(const std::vector<char> &data, int shift) {
    char *raw = (char *)std::aligned_alloc(256, (data.size() + 511) / 256 * 256) + shift;
    std::memcpy(raw, data.data(), data.size());
    return raw;
}

template <class T, class = void> struct Needs { // what the kernel itself says, where it does
    static bool fit(size_t, unsigned, int) { return true; }
};
template <class T> struct Needs<T, std::void_t<decltype(T::SHARED_BYTES)>> {
    static bool fit(size_t bytes, unsigned threads, int slices) {
        int wanted = T::SHARED_BYTES;
        if constexpr (requires { T::with_sums(1); }) wanted = T::with_sums(slices);
        return wanted == (int)bytes && T::THREADS == (int)threads;
    }
};

// The first parameters are the plain problem's, the last 13 the epilogue's.
template <class Plain, size_t... I> static Plain plain(const std::vector<Any> &p, std::index_sequence<I...>) { return Plain{p[I]...}; }
template <size_t... I> static Epilogue last(const std::vector<Any> &p, std::index_sequence<I...>) {
    return Epilogue{p[p.size() - 13 + I]...};
}
constexpr size_t count_of(const LeanProblem &) { return 12; }
constexpr size_t count_of(const StagedProblem &) { return 10; }
constexpr size_t count_of(const SplitKProblem &) { return 14; }
constexpr size_t count_of(const EarlySplitKProblem &) { return 15; }
constexpr size_t count_of(const PersistentProblem &) { return 18; }
constexpr size_t count_of(const FoldedPersistentProblem &) { return 19; }
constexpr size_t count_of(const PairPersistentProblem &) { return 19; }
constexpr size_t count_of(const AnyRowsProblem &) { return 14; }
constexpr size_t count_of(const StreamProblem &) { return 10; }
constexpr size_t count_of(const NormedStreamProblem &) { return 12; }
template <class Plain, class Operand> constexpr size_t count_of(const Joined<Plain, Operand> &) { return count_of(Plain{}) + 6; }

template <class Plain> static General<Plain> problem(const std::vector<Any> &p, const General<Plain> *) {
    constexpr size_t COUNT = count_of(Plain{});
    if (p.size() != COUNT + 13) emulator::fail("host and kernel disagree on the number of parameters");
    return {plain<Plain>(p, std::make_index_sequence<COUNT>()), last(p, std::make_index_sequence<13>())};
}

// Some problems say what may be read early: the caller's B, or what joined problems have of it.
template <class Problem> static void tell(const Problem &given, std::vector<std::unique_ptr<TensorMap>> &maps, char *const *buffers, const char *b) {
    if constexpr (requires { given.early; }) {
        emulator::fixed_early = given.early;
        for (auto &map : maps) map->fixed = given.early && (map->base == b || map->base == buffers[6] || map->base == buffers[7]);
    }
}

int main(int, char **argv) {
    std::ifstream job(argv[1]);
    auto number = [&] {
        long long value;
        if (!(job >> value)) emulator::fail("the job is too short");
        return value;
    };
    const int instance = (int)number();
    auto extents = [&] {
        Dim d{};
        d.x = (unsigned)number();
        d.y = (unsigned)number();
        d.z = (unsigned)number();
        return d;
    };
    const Dim grid = extents(), cluster = extents();
    const unsigned threads = (unsigned)number();
    const size_t shared_bytes = number();
    emulator::policy = (emulator::Policy)number();
    emulator::dice.seed((unsigned)number());
    const int repeats = (int)number(), shift = (int)number();
    std::vector<float> workspace(number() / 4 + 4, NAN);
    float *const work = (float *)(((uintptr_t)workspace.data() + 15) & ~(uintptr_t)15);
    emulator::scratch = {{(char *)work, (char *)(workspace.data() + workspace.size())}};
    std::string files[10];
    char *buffers[10] = {};
    std::vector<char> before;
    for (int i = 0; i < 10; ++i) {
        job >> files[i];
        if (files[i] == "-") continue;
        if (i == 4 && files[i] == "c") {
            buffers[4] = buffers[2];
            emulator::once = true;
            emulator::readable.push_back(emulator::writable);
            continue;
        }
        const std::vector<char> data = contents(files[i]);
        buffers[i] = placed(data, shift);
        const emulator::Range range{buffers[i], buffers[i] + data.size()};
        if (i == 2) emulator::writable = range, before = data;
        else emulator::readable.push_back(range);
    }
    std::vector<Any> parameters;
    std::vector<std::unique_ptr<TensorMap>> maps;
    for (std::string kind; job >> kind;) {
        Any value{"pointer"};
        const std::string names[] = {"a", "b", "c", "bias", "addend", "norm", "second", "third", "second_bias", "third_bias"};
        const auto found = std::find(names, names + 10, kind);
        if (found != names + 10) value.pointer = buffers[found - names];
        else if (kind == "workspace") value.pointer = work;
        else if (kind == "map" || kind == "map2") { // of three dimensions, of two
            maps.push_back(std::make_unique<TensorMap>());
            TensorMap &map = *maps.back();
            map.base = buffers[number()];
            for (long long &extent : map.extent) extent = number();
            map.layers = number();
            map.stride = number();
            map.apart = number();
            for (int &extent : map.box) extent = (int)number();
            map.swizzle = (int)number();
            map.rank = kind == "map" ? 3 : 2;
            value = {"map", 0, nullptr, &map};
        } else value = {kind, number()};
        parameters.push_back(value);
    }
    const size_t size = emulator::writable.end - emulator::writable.begin;
    std::vector<char> first;
    for (int turn = 0; turn < repeats; ++turn) {
        std::memcpy(buffers[2], before.data(), size);
        emulator::stores.assign(size / 2, 0);
        bool found = false;
#define X(id, type)                                                                                                \
    if (instance == id) {                                                                                          \
        using Kernel = type;                                                                                       \
        if (!Needs<Kernel>::fit(shared_bytes, threads, (int)cluster.x)) emulator::fail("host and kernel disagree on shared memory"); \
        const auto given = problem(parameters, (const Kernel::Problem *)nullptr);                                  \
        tell(given, maps, buffers, buffers[std::find(files, files + 2, "b") - files]);                                                                                               \
        emulator::launch_clusters(grid, cluster, threads, shared_bytes, turn > 0, [&] { Kernel::run_batched(given); }); \
        found = true;                                                                                              \
    }
        INSTANCES
        if (!found) emulator::fail("no such instance");
        if (turn == 0) first.assign(buffers[2], buffers[2] + size);
        else if (std::memcmp(first.data(), buffers[2], size)) emulator::fail("two launches differ");
    }
    std::ofstream(files[2], std::ios::binary).write(buffers[2], (std::streamsize)size);
    std::ofstream(files[2] + ".stores", std::ios::binary).write((const char *)emulator::stores.data(), (std::streamsize)(size / 2));
    return 0;
}
