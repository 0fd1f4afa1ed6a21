// The few functions of the CUDA driver that dispatch calls, on the CPU. It checks what it is given, keeps count, and
// computes what our kernels compute, so that argument packing is checked by results. "Device memory" is the host's. Any
// thread may call it, as the driver; a launch computes in the thread that makes it.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace {
constexpr int INVALID = 1, BAD_CONTEXT = 201, BAD_IMAGE = 200, NOT_FOUND = 500;
struct Function { std::string name; int shared_limit = 48 * 1024; };
struct Map { uint64_t magic, address, dims[3], strides[2]; int type, rank, swizzle; unsigned box[3]; };
static_assert(sizeof(Map) <= 128);
struct State {
    long launches = 0, encodes = 0, loads = 0;
    void *stream = nullptr, *context = nullptr;
    unsigned grid[3] = {}, threads = 0, shared = 0, cluster[3] = {};
    int capturing = 0, fail = 0, mode = 0, relaxed_loads = 0, overlap = 0;
    int fail_adding = 0, all_shared = 0; // the second of two launches fails; functions that asked for all shared memory
    // of the launch before this one, and the workspaces of both
    int overlap_before = 0;
    void *stream_before = nullptr, *workspace = nullptr, *workspace_before = nullptr;
    unsigned grid_before[3] = {};
    int failing_thread = 0; // only its launches fail; 0: those of all
    int fail_loading = 0;
} state;
std::mutex guard; // of everything here that threads share
using Locked = std::lock_guard<std::mutex>;
thread_local std::vector<void *> contexts; // the stack of current ones
thread_local int capture_mode = 0;
char primary[4];

// What a kernel takes, as the tests describe it from our families' own words.
struct Description {
    std::vector<std::pair<std::string, std::string>> parameters; // name, kind
    bool mn_a, mn_b, swapped, bf16;
};
std::map<std::string, Description> described;

float load(const uint16_t *at, bool bf16) {
    if (!bf16) return (float)*(const _Float16 *)at;
    const uint32_t bits = (uint32_t)*at << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
void store(uint16_t *at, float value, bool bf16) {
    if (!bf16) {
        *(_Float16 *)at = (_Float16)value;
        return;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    *at = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
struct Matrix { uint16_t *at; long s0, s1, apart; };

std::vector<float> widened(const uint16_t *at, long rows, long columns, long s0, long s1, bool bf16) {
    std::vector<float> wide((size_t)(rows * columns));
    for (long i = 0; i < rows; ++i)
        for (long j = 0; j < columns; ++j) wide[(size_t)(i * columns + j)] = load(at + i * s0 + j * s1, bf16);
    return wide;
}
// (m, n) sums over l of a[i, l] * b[j, l], each in the order of l; its columns are added up side by side, which is quick
[[gnu::optimize("O3")]] std::vector<float> products(const Matrix &a, const Matrix &b, long m, long n, long k, bool bf16) {
    const std::vector<float> left = widened(a.at, m, k, a.s0, a.s1, bf16), right = widened(b.at, k, n, b.s1, b.s0, bf16);
    std::vector<float> found((size_t)(m * n));
    for (long i = 0; i < m; ++i) {
        float *const sums = found.data() + i * n;
        for (long l = 0; l < k; ++l) {
            const float factor = left[(size_t)(i * k + l)], *const line = right.data() + l * n;
            for (long j = 0; j < n; ++j) sums[j] += factor * line[j];
        }
    }
    return found;
}
void gemm(const Matrix &a, const Matrix &b, const Matrix &c, long m, long n, long k, bool bf16) {
    const std::vector<float> sums = products(a, b, m, n, k, bf16);
    for (long i = 0; i < m; ++i)
        for (long j = 0; j < n; ++j) store(c.at + i * c.s0 + j * c.s1, sums[(size_t)(i * n + j)], bf16);
}
struct Epilogue { const uint16_t *bias, *addend; float alpha, beta; int activation; long ld, step, matrices; };

float activated(float x, int which) {
    if (which == 1) return x < 0 ? 0 : x;
    if (which == 2) return 0.5f * x * (1 + std::erf(x / std::sqrt(2.0f)));
    if (which == 3) return 0.5f * x * (1 + std::tanh(std::sqrt(2 / 3.14159265f) * (x + 0.044715f * x * x * x)));
    return which == 4 ? x / (1 + std::exp(-x)) : x;
}

// Rows over the root of their mean squares, times a weight; `centred`: less their mean, and with a bias, if any.
std::vector<uint16_t> normalised(const Matrix &a, long m, long k, const uint16_t *norm, float eps, bool bf16, bool centred = false,
                                 const uint16_t *bias = nullptr) {
    const std::vector<float> wide = widened(a.at, m, k, a.s0, a.s1, bf16);
    std::vector<uint16_t> found((size_t)(m * k));
    for (long i = 0; i < m; ++i) {
        const float *const row = wide.data() + i * k;
        const float mean = centred ? std::accumulate(row, row + k, 0.0f) / (float)k : 0;
        float squares = 0;
        for (long j = 0; j < k; ++j) squares += (row[j] - mean) * (row[j] - mean);
        const float scale = 1 / std::sqrt(squares / (float)k + eps);
        for (long j = 0; j < k; ++j)
            store(&found[(size_t)(i * k + j)], (row[j] - mean) * scale * load(norm + j, bf16) + (bias ? load(bias + j, bf16) : 0), bf16);
    }
    return found;
}

// silu of the first half of columns, times the second, which may have a matrix of its own
void paired(const Matrix &a, const Matrix &b, const uint16_t *other, const Matrix &c, long m, long half, long k, bool bf16,
            const Epilogue &e) {
    const std::vector<float> gate = products(a, b, m, half, k, bf16),
                             up = products(a, {(uint16_t *)other, b.s0, b.s1, 0}, m, half, k, bf16);
    for (long i = 0; i < m; ++i)
        for (long j = 0; j < half; ++j) {
            const float first = gate[(size_t)(i * half + j)] + (e.bias ? load(e.bias + j, bf16) : 0);
            const float second = up[(size_t)(i * half + j)] + (e.bias ? load(e.bias + half + j, bf16) : 0);
            store(c.at + i * c.s0 + j * c.s1, activated(first, 4) * second, bf16);
        }
}

// swapped: the kernel's rows are C's columns
void general(const Matrix &a, const Matrix &b, const Matrix &c, long m, long n, long k, bool bf16, bool swapped,
             const Epilogue &e) {
    for (long z = 0; z < e.matrices; ++z) {
        const std::vector<float> sums = products({a.at + z * a.apart, a.s0, a.s1, 0}, {b.at + z * b.apart, b.s0, b.s1, 0},
                                                 m, n, k, bf16);
        for (long i = 0; i < m; ++i)
            for (long j = 0; j < n; ++j) {
                const long row = swapped ? j : i, column = swapped ? i : j;
                float sum = e.alpha * sums[(size_t)(i * n + j)];
                if (e.beta != 0) sum += e.beta * load(e.addend + z * e.step + row * e.ld + column, bf16);
                if (e.bias) sum += load(e.bias + column, bf16);
                store(c.at + z * c.apart + i * c.s0 + j * c.s1, activated(sum, e.activation), bf16);
            }
    }
}
// Attention of one query row a head, each of `group` heads sharing keys and values. What lies where, in elements, in the order of the
// kernels' parameters.
void attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, const uint16_t *mask, uint16_t *c, const long (&at)[10], long batch,
            long heads, long group, long keys, long size, float scale, bool bf16) {
    for (long b = 0; b < batch; ++b)
        for (long h = 0; h < heads; ++h) {
            std::vector<float> weights((size_t)keys), sums((size_t)size);
            const uint16_t *const row = q + b * at[0] + h * at[1];
            float most = -INFINITY, total = 0;
            for (long i = 0; i < keys; ++i) {
                float dot = 0;
                for (long j = 0; j < size; ++j) dot += load(row + j, bf16) * load(k + b * at[2] + h / group * at[3] + i * at[4] + j, bf16);
                weights[(size_t)i] = dot * scale + (mask ? load(mask + b * at[8] + h * at[9] + i, bf16) : 0);
                most = std::fmax(most, weights[(size_t)i]);
            }
            for (long i = 0; i < keys; ++i) {
                const float weight = std::exp(weights[(size_t)i] - (most == -INFINITY ? 0 : most));
                total += weight;
                for (long j = 0; j < size; ++j) sums[(size_t)j] += weight * load(v + b * at[5] + h / group * at[6] + i * at[7] + j, bf16);
            }
            for (long j = 0; j < size; ++j) store(c + (b * heads + h) * size + j, total ? sums[(size_t)j] / total : 0, bf16);
        }
}
// A head's halves turned by angles, or as they are without; with `norm` the head is normalised first.
void turn(const uint16_t *x, const uint16_t *cosines, const uint16_t *sines, uint16_t *to, long size, bool bf16, const uint16_t *norm = nullptr,
          float eps = 0) {
    float squares = 0;
    for (long j = 0; j < size; ++j) squares += load(x + j, bf16) * load(x + j, bf16);
    const auto at = [&](long j) { return load(x + j, bf16) * (norm ? load(norm + j, bf16) / std::sqrt(squares / (float)size + eps) : 1); };
    for (long j = 0; j < size; ++j) {
        const long other = (j + size / 2) % size;
        const float value = at(j), across = at(other) * (j < size / 2 ? -1 : 1);
        store(to + j, cosines ? value * load(cosines + j, bf16) + across * load(sines + j, bf16) : value, bf16);
    }
}
template <class T> T value(void **params, int i) { T v; std::memcpy(&v, params[i], sizeof v); return v; }
} // namespace

extern "C" {
struct Config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct { int id; char pad[4]; union { char bytes[64]; unsigned cluster[3]; int value; }; } *attributes;
    unsigned count;
};
State *stand_in() { return &state; }

int cuInit(unsigned flags) { return flags ? INVALID : 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal >= 0 && ordinal < 4 ? 0 : 101; }
int cuDeviceGetName(char *to, int size, int) { return std::strncpy(to, "NVIDIA H200", (size_t)size), 0; }
int cuDeviceGetAttribute(int *to, int which, int) { // an H200's
    const int known[][2] = {{13, 1980000}, {16, 132}, {36, 3201000}, {37, 6144}, {75, 9}, {76, 0}};
    for (const auto &one : known)
        if (one[0] == which) return *to = one[1], 0;
    return INVALID;
}
int cuDevicePrimaryCtxRetain(void **to, int device) { return *to = &primary[device], 0; }
int cuCtxGetCurrent(void **to) { return *to = contexts.empty() ? nullptr : contexts.back(), 0; }
int cuCtxPushCurrent_v2(void *context) { return contexts.push_back(context), context ? 0 : BAD_CONTEXT; }
int cuCtxPopCurrent_v2(void **to) {
    if (contexts.empty()) return BAD_CONTEXT;
    *to = contexts.back();
    contexts.pop_back();
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    std::swap(*mode, capture_mode);
    const Locked locked(guard);
    return state.mode = capture_mode, 0;
}
int cuModuleLoadData(void **module, const void *image) {
    if (contexts.empty()) return BAD_CONTEXT;
    const Locked locked(guard);
    ++state.loads;
    state.relaxed_loads += capture_mode == 2;
    if (state.fail_loading) return state.fail_loading;
    return *module = &state, std::memcmp(image, "\x7f" "ELF", 4) ? BAD_IMAGE : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    static std::map<std::string, Function> known;
    if (module != &state) return NOT_FOUND;
    const Locked locked(guard);
    Function &made = known[name];
    made.name = name;
    return *function = &made, 0;
}
int cuFuncGetAttribute(int *to, int which, void *) { return *to = 64, which == 1 ? 0 : INVALID; }
int cuFuncSetAttribute(void *function, int which, int to) {
    const Locked locked(guard);
    if (which == 9 && to == 100) return ++state.all_shared, 0;
    if (which != 8 || to + 64 > 227 * 1024) return INVALID;
    return ((Function *)function)->shared_limit = to, 0;
}
int cuTensorMapEncodeTiled(void *to, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,
                           const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
    if ((uintptr_t)to % 64 || !address || (uintptr_t)address % 16 || rank < 2 || rank > 3 || interleave || promotion != 2 || fill)
        return INVALID;
    Map map{};
    map.magic = 0x5AFE, map.address = (uint64_t)address, map.type = type, map.rank = (int)rank, map.swizzle = swizzle;
    for (unsigned d = 0; d < rank; ++d) {
        if (steps[d] != 1 || !box[d] || box[d] > 256) return INVALID;
        map.dims[d] = dims[d], map.box[d] = box[d];
        if (d + 1 < rank && (map.strides[d] = strides[d]) % 16) return INVALID;
    }
    {
        const Locked locked(guard);
        ++state.encodes;
    }
    std::memset(to, 0, 128);
    std::memcpy(to, &map, sizeof map);
    return 0;
}
int cuLaunchKernelEx(const Config *config, void *handle, void **params, void **extra) {
    if (state.fail && (!state.failing_thread || state.failing_thread == gettid())) return state.fail;
    if (extra || contexts.empty() || !config->stream) return contexts.empty() ? BAD_CONTEXT : INVALID;
    const Function &function = *(Function *)handle;
    std::unique_lock<std::mutex> locked(guard); // until it computes
    if ((int)config->shared > function.shared_limit) return INVALID;
    state.stream_before = state.stream, state.overlap_before = state.overlap, state.workspace_before = state.workspace;
    std::memcpy(state.grid_before, state.grid, sizeof state.grid);
    state.workspace = nullptr;
    state.context = contexts.back(), state.stream = config->stream;
    std::memcpy(state.grid, config->grid, sizeof state.grid);
    state.threads = config->block[0], state.shared = config->shared;
    std::fill(state.cluster, state.cluster + 3, 1u);
    state.overlap = 0;
    for (unsigned i = 0; i < config->count; ++i) {
        const auto &attribute = config->attributes[i];
        if (attribute.id == 4)
            std::memcpy(state.cluster, attribute.cluster, sizeof state.cluster);
        else if (attribute.id == 6)
            state.overlap = attribute.value;
        else
            return INVALID;
    }
    if (config->block[1] != 1) return INVALID;
    const std::string &name = function.name;
    ++state.launches;
    const auto found = described.find(name);
    if (found == described.end()) return NOT_FOUND;
    const Description &d = found->second;
    const auto index = [&](const std::string &wanted) {
        for (size_t i = 0; i < d.parameters.size(); ++i)
            if (d.parameters[i].first == wanted) return (int)i;
        return -1;
    };
    const auto scalar = [&](const char *wanted, long otherwise) {
        const int i = index(wanted);
        return i < 0 ? otherwise : (long)value<int>(params, i);
    };
    const int scratch = index("workspace");
    void *const workspace = scratch >= 0 ? value<void *>(params, scratch) : nullptr;
    if (scratch >= 0) state.workspace = workspace;
    locked.unlock();
    sched_yield(); // arguments are the caller's until we return: whoever changes them meanwhile changes what we compute
    if (name.rfind("add_", 0) == 0) { // the second of two launches: what the parts have left, in the order of k
        if (state.fail_adding) return state.fail_adding;
        const long rows = scalar("m", 0), columns = scalar("n", 0), parts = scalar("parts", 0), ldc = scalar("ldc", 0);
        const float *const sums = (const float *)workspace;
        uint16_t *const c = value<uint16_t *>(params, index("c"));
        if (!sums || parts < 2 || scalar("tiles_m", 0) * scalar("rows", 0) < rows ||
            scalar("tiles_n", 0) * scalar("columns", 0) < columns)
            return INVALID;
        for (long i = 0; i < rows; ++i)
            for (long j = 0; j < columns; ++j) {
                float sum = 0;
                for (long part = 0; part < parts; ++part) sum += sums[(part * rows + i) * columns + j];
                store(c + (d.swapped ? j * ldc + i : i * ldc + j), sum, d.bf16);
            }
        return 0;
    }
    if (name.rfind("attention_", 0) == 0) {
        const auto at = [&](const char *wanted) { return value<uint16_t *>(params, index(wanted)); };
        const char *const names[10] = {"q_batch", "q_head", "k_batch", "k_head", "k_row", "v_batch", "v_head", "v_row", "mask_batch", "mask_head"};
        long strides[10];
        for (int i = 0; i < 10; ++i) strides[i] = (long)value<long long>(params, index(names[i]));
        const long group = scalar("group", 0), parts = scalar("parts", 0), size = std::strtol(name.c_str() + name.find("_d") + 2, nullptr, 10);
        const bool masked = name.back() == 'm';
        if (config->grid[0] != parts << scalar("log2_splits", 0) || state.cluster[0] != 1u << scalar("log2_splits", 0) || masked != !!at("mask")) return INVALID;
        attend(at("q"), at("k"), at("v"), at("mask"), at("c"), strides, config->grid[2], config->grid[1] * group * parts, group * parts,
               scalar("keys", 0), size, value<float>(params, index("scale")), d.bf16);
        return 0;
    }
    if (name.rfind("turned_", 0) == 0) {
        const auto at = [&](const char *wanted) { return value<uint16_t *>(params, index(wanted)); };
        const auto step = [&](const char *wanted) { return (long)value<long long>(params, index(wanted)); };
        const long heads = scalar("heads", 0), groups = scalar("groups", 0), rows = scalar("rows", 0);
        const long size = std::strtol(name.c_str() + name.find("_d") + 2, nullptr, 10);
        long row = (long)*value<const long long *>(params, index("at"));
        const float eps = value<float>(params, index("eps"));
        if (row < -rows || row >= rows || (long)config->grid[0] * config->block[0] * 16 < (heads + 2 * groups) * size) return INVALID;
        row += row < 0 ? rows : 0;
        for (long b = 0; b < (long)config->grid[1]; ++b) {
            const uint16_t *const cosines = at("cos") + b * step("cos_batch"), *const sines = at("sin") + b * step("sin_batch");
            for (long h = 0; h < heads; ++h)
                turn(at("q") + b * step("q_batch") + h * step("q_head"), cosines, sines, at("c") + (b * heads + h) * size, size, d.bf16, at("q_norm"), eps);
            for (long h = 0; h < groups; ++h) {
                turn(at("k") + b * step("k_batch") + h * step("k_head"), cosines, sines,
                     at("keys") + b * step("keys_batch") + h * step("keys_head") + row * step("keys_row"), size, d.bf16, at("k_norm"), eps);
                turn(at("v") + b * step("v_batch") + h * step("v_head"), nullptr, nullptr,
                     at("values") + b * step("values_batch") + h * step("values_head") + row * step("values_row"), size, d.bf16);
            }
        }
        return 0;
    }
    const bool centred = name.rfind("layernorm_", 0) == 0;
    if (centred || name.rfind("rms_", 0) == 0 || name.rfind("gated_", 0) == 0) { // what works row by row
        const auto at = [&](const char *wanted) { return value<uint16_t *>(params, index(wanted)); };
        const long lda = scalar("lda", 0), ldc = scalar("ldc", 0);
        if (name[0] != 'g') {
            const long m = config->grid[0], k = scalar("k", 0);
            const Matrix a{at("a"), lda, 1, 0};
            const std::vector<uint16_t> rows = normalised(a, m, k, at("norm"), value<float>(params, index("eps")), d.bf16, centred,
                                                          centred ? at("bias") : nullptr);
            for (long i = 0; i < m; ++i) std::memcpy(at("c") + i * ldc, rows.data() + i * k, 2 * (size_t)k);
            return lda < k || ldc < k ? INVALID : 0;
        }
        const long m = config->grid[1], n = scalar("n", 0), ldb = scalar("ldb", 0);
        if (n > 8 * (long)config->grid[0] * (long)config->block[0] || lda < n || ldb < n || ldc < n) return INVALID;
        for (long i = 0; i < m; ++i)
            for (long j = 0; j < n; ++j)
                store(at("c") + i * ldc + j,
                      activated(load(at("a") + i * lda + j, d.bf16), 4) * load(at("b") + i * ldb + j, d.bf16), d.bf16);
        return 0;
    }
    long extents[3] = {-1, -1, -1}; // of the kernel's rows of A, rows of B, and k
    bool bad = false;
    const bool fused = index("alpha") >= 0;
    const auto wide = [&](const std::string &wanted) { return fused ? (long)value<long long>(params, index(wanted)) : 0L; };
    const auto matrix = [&](const char *operand, bool mn, int which) {
        const int map = index(std::string("map_") + operand), plain = index(operand);
        if (map >= 0) {
            const Map m = value<Map>(params, map);
            bad |= (uintptr_t)params[map] % 64 || m.magic != 0x5AFE || m.rank != (fused ? 3 : 2) || m.type != (d.bf16 ? 9 : 6);
            const long stride = (long)m.strides[0] / 2;
            if (which < 2) {
                extents[which] = (long)(mn ? m.dims[0] : m.dims[1]);
                extents[2] = (long)(mn ? m.dims[1] : m.dims[0]);
            }
            return Matrix{(uint16_t *)m.address, mn ? 1 : stride, mn ? stride : 1, m.dims[2] > 1 ? (long)m.strides[1] / 2 : 0L};
        }
        if (const int more = index(std::string(operand) + "_more"); more >= 0) { // every eighth row, twice
            const bool k_rows = which == 1 && mn;
            const long rows = scalar(which == 0 ? "m" : k_rows ? "k" : "n", -1), length = scalar(k_rows ? "n" : "k", -1);
            const long leading = scalar(("ld" + std::string(operand)).c_str(), -1);
            const Map maps[2] = {value<Map>(params, more), value<Map>(params, index(std::string(operand) + "_less"))};
            const long lines[2] = {rows % 8, 8}, counts[2] = {rows / 8 + 1, rows / 8};
            for (int i = 0; i < 2; ++i) {
                const Map &m = maps[i];
                bad |= (uintptr_t)params[more] % 64 || m.magic != 0x5AFE || m.rank != 2 || m.address != maps[0].address;
                if (lines[i] == 0 || counts[i] == 0) continue; // never used
                bad |= (long)m.dims[0] != (lines[i] - 1) * leading + length || (long)m.dims[1] != counts[i];
                bad |= (long)m.strides[0] != 16 * leading || m.type != (d.bf16 ? 9 : 6);
            }
            return Matrix{(uint16_t *)maps[0].address, mn ? 1 : leading, mn ? leading : 1, 0L};
        }
        if (plain < 0) return bad = true, Matrix{};
        const long leading = scalar(("ld" + std::string(operand)).c_str(), -1);
        bad |= leading < 1;
        return Matrix{value<uint16_t *>(params, plain), mn ? 1 : leading, mn ? leading : 1, wide(std::string("batch_") + operand)};
    };
    const Matrix a = matrix("a", d.mn_a, 0), b = matrix("b", d.mn_b, 1), c = matrix("c", d.swapped, 2);
    const long m = scalar("m", extents[0]), n = scalar("n", extents[1]), k = scalar("k", extents[2]);
    if (name.rfind("cs_", 0) == 0 && name.back() == 'p') { // the first: sums of its parts, and no C
        const long parts = config->grid[2], each = 64 * scalar("tiles_per_slice", 0); // parts lie along z
        float *const sums = (float *)workspace;
        if (bad || !sums || parts < 2 || m < 1 || n < 1 || k < 1 || (parts - 1) * each >= k || parts * each < k) return INVALID;
        for (long part = 0; part < parts; ++part) {
            const long first = part * each, size = first + each < k ? each : k - first;
            const std::vector<float> part_sums =
                products({a.at + first * a.s1, a.s0, a.s1, 0}, {b.at + first * b.s1, b.s0, b.s1, 0}, m, n, size, d.bf16);
            std::memcpy(sums + part * m * n, part_sums.data(), part_sums.size() * sizeof(float));
        }
        return 0;
    }
    if (const int at = index("workspace"); at >= 0)
        if (auto *words = value<float *>(params, at)) words[0] = words[63] = -1;
    if (bad || m < 1 || n < 1 || k < 1) return INVALID;
    if (!fused) {
        gemm(a, b, c, m, n, k, d.bf16);
        return 0;
    }
    const auto pointer = [&](const char *wanted) { return value<const uint16_t *>(params, index(wanted)); };
    const long each = scalar("tiles_each", 0), tiles = scalar("tiles_m", (long)config->grid[2]);
    const Epilogue e{pointer("bias"), pointer("addend"), value<float>(params, index("alpha")),
                     value<float>(params, index("beta")), (int)scalar("activation", 0), scalar("ld_addend", 0),
                     wide("batch_addend"), each > 0 ? tiles / each : 0};
    if (each < 1 || tiles % each || scalar("out_rows", 0) != (d.swapped ? n : m)) return INVALID;
    std::vector<uint16_t> rows;
    if (index("norm") >= 0) rows = normalised(a, m, k, pointer("norm"), value<float>(params, index("eps")), d.bf16);
    const Matrix x = rows.empty() ? a : Matrix{rows.data(), k, 1, 0};
    if (index("second_column") >= 0) { // products side by side in C
        const long columns = d.swapped ? m : n, second = scalar("second_column", 0), third = scalar("third_column", 0);
        if (second < 1 || third <= second || third > columns || e.beta != 0 || e.activation || second % 16 || third % 16)
            return INVALID;
        const Matrix first = d.swapped ? a : b;
        const auto part = [&](const char *operand, long columns_of) { // by its map, or with B's leading dimension
            if (index(std::string("map_") + operand) < 0) return Matrix{value<uint16_t *>(params, index(operand)), first.s0, 1, 0};
            const Map map = value<Map>(params, index(std::string("map_") + operand));
            bad |= columns_of > 0 && (long)map.dims[1] != columns_of;
            return matrix(operand, false, 3);
        };
        const struct { Matrix b; const uint16_t *bias; long begin, end; } parts[3] = {
            {first, e.bias, 0, second},
            {part("second", third - second), pointer("second_bias"), second, third},
            {part("third", columns - third), pointer("third_bias"), third, columns}};
        for (const auto &[from, bias, begin, end] : parts) {
            if (bad || from.s0 != first.s0 || (begin < end && !from.at)) return INVALID;
            Epilogue one = e;
            one.bias = bias;
            if (begin == end) continue;
            const Matrix to{c.at + begin * (d.swapped ? c.s0 : c.s1), c.s0, c.s1, 0};
            if (d.swapped) general(from, b, to, end - begin, n, k, d.bf16, true, one);
            else general(x, from, to, m, end - begin, k, d.bf16, false, one);
        }
        return bad ? INVALID : 0;
    }
    if (const int at = index("map_up"); at >= 0) { // gate's rows are those of B's map
        const Map up = value<Map>(params, at), gate = value<Map>(params, index("map_b"));
        const long layer = wide("batch_b");
        const bool alike = !std::memcmp(up.dims, gate.dims, 16) && !std::memcmp(up.box, gate.box, sizeof up.box);
        if (e.activation != 5 || up.magic != 0x5AFE || !alike || up.strides[0] != gate.strides[0] ||
            layer >= (long)up.dims[2] || scalar("out_columns", 0) != 2 * n)
            return INVALID;
        paired(x, b, (uint16_t *)up.address + layer * (long)up.strides[1] / 2, c, m, n, k, d.bf16, e);
    } else if (e.activation == 5)
        paired(x, b, e.addend ? e.addend : b.at + n / 2 * b.s0, c, m, n / 2, k, d.bf16, e);
    else general(x, b, c, m, n, k, d.bf16, d.swapped, e);
    return 0;
}
// parameters: "name kind;name kind;..."; mn_a, mn_b: the kernel's operands are contiguous along their rows
void stand_in_describe(const char *name, const char *parameters, int mn_a, int mn_b, int swapped, int bf16) {
    Description made{{}, mn_a != 0, mn_b != 0, swapped != 0, bf16 != 0};
    std::string text = parameters;
    for (size_t start = 0; start < text.size();) {
        const size_t space = text.find(' ', start), end = text.find(';', start);
        made.parameters.emplace_back(text.substr(start, space - start), text.substr(space + 1, end - space - 1));
        start = end + 1;
    }
    described[name] = made;
}
}
