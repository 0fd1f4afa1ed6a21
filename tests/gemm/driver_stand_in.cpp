// The few functions of the CUDA driver that dispatch calls, on the CPU. It checks what it is given, keeps count, and
// computes what our kernels compute, so that argument packing is checked by results. "Device memory" is the host's.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
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
    int capturing = 0, fail = 0, mode = 0, relaxed_loads = 0;
} state;
std::vector<void *> contexts; // the stack of current ones
char primary[4];

void gemm(const _Float16 *a, long as0, long as1, const _Float16 *b, long bs0, long bs1, _Float16 *c, long cs0, long cs1,
          long m, long n, long k) {
    for (long i = 0; i < m; ++i)
        for (long j = 0; j < n; ++j) {
            float sum = 0;
            for (long l = 0; l < k; ++l) sum += (float)a[i * as0 + l * as1] * (float)b[l * bs0 + j * bs1];
            c[i * cs0 + j * cs1] = (_Float16)sum;
        }
}
template <class T> T value(void **params, int i) { T v; std::memcpy(&v, params[i], sizeof v); return v; }
} // namespace

extern "C" {
struct Config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct { int id; char pad[4]; union { char bytes[64]; unsigned cluster[3]; }; } *attributes;
    unsigned count;
};
State *stand_in() { return &state; }

int cuInit(unsigned flags) { return flags ? INVALID : 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal >= 0 && ordinal < 4 ? 0 : 101; }
int cuDeviceGetName(char *to, int size, int) { return std::strncpy(to, "NVIDIA H200", (size_t)size), 0; }
int cuDeviceGetAttribute(int *to, int which, int) { return *to = which == 75 ? 9 : 0, which == 75 || which == 76 ? 0 : INVALID; }
int cuDevicePrimaryCtxRetain(void **to, int device) { return *to = &primary[device], 0; }
int cuCtxGetCurrent(void **to) { return *to = contexts.empty() ? nullptr : contexts.back(), 0; }
int cuCtxPushCurrent_v2(void *context) { return contexts.push_back(context), context ? 0 : BAD_CONTEXT; }
int cuCtxPopCurrent_v2(void **to) {
    if (contexts.empty()) return BAD_CONTEXT;
    *to = contexts.back();
    contexts.pop_back();
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { return std::swap(*mode, state.mode), 0; }
int cuStreamIsCapturing(void *, int *status) { return *status = state.capturing, 0; }
int cuModuleLoadData(void **module, const void *image) {
    if (contexts.empty()) return BAD_CONTEXT;
    ++state.loads;
    state.relaxed_loads += state.mode == 2;
    return *module = &state, std::memcmp(image, "\x7f" "ELF", 4) ? BAD_IMAGE : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    static std::map<std::string, Function> known;
    if (module != &state) return NOT_FOUND;
    Function &made = known[name];
    made.name = name;
    return *function = &made, 0;
}
int cuFuncSetAttribute(void *function, int which, int to) {
    if (which != 8 || to > 227 * 1024) return INVALID;
    return ((Function *)function)->shared_limit = to, 0;
}
int cuMemAlloc_v2(unsigned long long *to, size_t bytes) {
    if (contexts.empty()) return BAD_CONTEXT;
    return *to = (unsigned long long)(uintptr_t)std::malloc(bytes), 0;
}
int cuStreamCreate(void **to, unsigned flags) { return *to = &state, flags == 1 ? 0 : INVALID; }
int cuMemsetD32Async(unsigned long long at, unsigned value, size_t words, void *stream) {
    for (size_t i = 0; i < words; ++i) ((unsigned *)(uintptr_t)at)[i] = value;
    return stream == &state ? 0 : INVALID;
}
int cuStreamSynchronize(void *stream) { return stream == &state ? 0 : INVALID; }
int cuTensorMapEncodeTiled(void *to, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,
                           const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
    if ((uintptr_t)to % 64 || (uintptr_t)address % 16 || rank < 2 || rank > 3 || interleave || promotion != 3 || fill)
        return INVALID;
    Map map{};
    map.magic = 0x5AFE, map.address = (uint64_t)address, map.type = type, map.rank = (int)rank, map.swizzle = swizzle;
    for (unsigned d = 0; d < rank; ++d) {
        if (steps[d] != 1 || !box[d] || box[d] > 256) return INVALID;
        map.dims[d] = dims[d], map.box[d] = box[d];
        if (d + 1 < rank && (map.strides[d] = strides[d]) % 16) return INVALID;
    }
    ++state.encodes;
    std::memset(to, 0, 128);
    std::memcpy(to, &map, sizeof map);
    return 0;
}
int cuLaunchKernelEx(const Config *config, void *handle, void **params, void **extra) {
    if (state.fail) return state.fail;
    if (extra || contexts.empty() || !config->stream) return contexts.empty() ? BAD_CONTEXT : INVALID;
    const Function &function = *(Function *)handle;
    if ((int)config->shared > function.shared_limit) return INVALID;
    state.context = contexts.back(), state.stream = config->stream;
    std::memcpy(state.grid, config->grid, sizeof state.grid);
    state.threads = config->block[0], state.shared = config->shared;
    for (int d = 0; d < 3; ++d) state.cluster[d] = config->count ? config->attributes[0].cluster[d] : 1;
    if (config->count > 1 || (config->count && config->attributes[0].id != 4) || config->block[1] != 1) return INVALID;
    const std::string &name = function.name;
    const auto has = [&](const char *text) { return name.find(text) != std::string::npos; };
    ++state.launches;
    if (has("lean_") || has("staged_")) { // a, b, c, m, n, k, lda, ldb, ldc, ...
        auto *a = value<const _Float16 *>(params, 0), *b = value<const _Float16 *>(params, 1);
        auto *c = value<_Float16 *>(params, 2);
        const long m = value<int>(params, 3), n = value<int>(params, 4), k = value<int>(params, 5);
        const long lda = value<int>(params, 6), ldb = value<int>(params, 7), ldc = value<int>(params, 8);
        const bool nn = has("_nn"), swapped = has("swapped");
        gemm(a, lda, 1, b, nn ? ldb : 1, nn ? 1 : ldb, c, swapped ? 1 : ldc, swapped ? ldc : 1, m, n, k);
        return 0;
    }
    if (name == "mapped_tn") { // map of a, map of b, c, ldc, workspace (m * n floats), counters (4 words, zero)
        const Map a = value<Map>(params, 0), b = value<Map>(params, 1);
        if ((uintptr_t)params[0] % 64 || a.magic != 0x5AFE || b.magic != 0x5AFE || a.type != 6 || a.swizzle != 3) return INVALID;
        auto *c = value<_Float16 *>(params, 2);
        const long ldc = value<int>(params, 3);
        auto *workspace = value<float *>(params, 4);
        auto *counters = value<unsigned *>(params, 5);
        const long m = (long)a.dims[1], n = (long)b.dims[1], k = (long)a.dims[0];
        for (int i = 0; i < 4; ++i)
            if (counters[i]) return INVALID;
        for (long i = 0; i < m * n; ++i) workspace[i] = -1;
        gemm((const _Float16 *)a.address, (long)a.strides[0] / 2, 1, (const _Float16 *)b.address, 1, (long)b.strides[0] / 2, c,
             ldc, 1, m, n, k);
        return 0;
    }
    return NOT_FOUND;
}
}
