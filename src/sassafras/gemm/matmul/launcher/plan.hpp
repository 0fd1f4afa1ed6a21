// Plans: what serves a problem (a kernel, a cuBLASLt algorithm, torch), with everything that a launch needs but the
// addresses; and the driver's structures, declared here because no CUDA header is needed to build the launcher.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "problem.hpp"

namespace {

// --- the CUDA driver (cuda.h) ------------------------------------------------------------------------------------

struct LaunchAttribute {
    int id;
    char pad[4];
    union { char bytes[64]; struct { unsigned x, y, z; } cluster; int value; };
};
struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned count;
};
constexpr int kClusterDimension = 4; // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kOverlap = 6;          // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
inline void *const kPerThread = (void *)2; // CU_STREAM_PER_THREAD: another stream in every thread, which torch's allocator does not know
constexpr int kTorch = -2;                 // no driver's error: torch is to serve this call
struct alignas(128) TensorMap { unsigned char bytes[128]; };

using LaunchKernelEx = int (*)(const LaunchConfig *, void *function, void **params, void **extra);
using ContextGet = int (*)(void **);
using ContextPush = int (*)(void *);
using ContextPop = int (*)(void **);
using EncodeTiled = int (*)(TensorMap *, int type, unsigned rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const unsigned *box, const unsigned *element_strides,
                            int interleave, int swizzle, int promotion, int fill);
using LtMatmul = int (*)(void *handle, void *operation, const void *alpha, const void *a, void *a_layout, const void *b,
                         void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                         const void *algo, void *workspace, size_t bytes, void *stream);

// --- plans --------------------------------------------------------------------------------------------------------

struct MapSpec {
    int which, type, swizzle;
    unsigned rank;
    uint64_t dims[5], strides[5];
    unsigned box[5], element_strides[5] = {1, 1, 1, 1, 1};
    TensorMap cached[4];
    void *address[4] = {nullptr, nullptr, nullptr, nullptr};
    int next = 0;
};
constexpr int kPromotion = 2; // CU_TENSOR_MAP_L2_PROMOTION_L2_128B

// What a launch gives by name; then constants and tensor maps.
enum Value { kA, kB, kC, kWorkspace, kBias, kAddend, kAlpha, kBeta, kActivation, kNorm, kEps, kSecond, kThird, kSecondBias, kThirdBias, kQNorm, kKNorm, kStrides, kValues = kStrides + kMostStrides, kConstant = kValues, kMap };
const char *const kNames[kValues] = {"a", "b", "c", "workspace", "bias", "addend", "alpha", "beta", "activation",
                                     "norm", "eps", "second", "third", "second_bias", "third_bias", "q_norm", "k_norm",
                                     "stride0", "stride1", "stride2", "stride3", "stride4", "stride5", "stride6",
                                     "stride7", "stride8", "stride9", "stride10", "stride11", "stride12", "stride13"};

constexpr size_t kMostParameters = 64;

// One launch of a kernel.
struct Launch {
    void *function = nullptr;
    LaunchConfig how{};
    LaunchAttribute attributes[2]{};
    struct Parameter { int what; uint64_t value; }; // a Value; of kConstant its value, of kMap its place in maps
    std::vector<Parameter> parameters;
    std::vector<std::unique_ptr<MapSpec>> maps; // cache: the last addresses' maps
};

enum class Kind { Torch, Kernel, Lt };

// Tables and calls share a plan: it lives until the last call that found it is done, whatever replaces it in the table.
// Once it is in a table nothing of it changes but its caches, which a call reads and writes between two calls of Python
// and so under the GIL (the module does not declare that it can do without).
struct Plan {
    Kind kind = Kind::Torch;
    void *context = nullptr;
    std::vector<std::unique_ptr<Launch>> launches; // one after the other; they share the workspace
    size_t workspace = 0; // bytes, from torch's allocator at every call
    // cuBLASLt
    void *handle = nullptr, *operation = nullptr, *first = nullptr, *second = nullptr, *out = nullptr;
    uint64_t algorithm[8] = {};
};

// --- from Python's words ------------------------------------------------------------------------------------------

constexpr char kProblem[] = "(iiLLLiLLLiLLLLi)"; // problem.py's fields

PyObject *key_tuple(const Key &key) {
    return Py_BuildValue(kProblem, (int)key.device, (int)key.dtype, (long long)key.m, (long long)key.n, (long long)key.k,
                         (int)key.transposed, (long long)key.lda, (long long)key.ldb, (long long)key.ldc, (int)key.aligned,
                         (long long)key.matrices, (long long)key.step_a, (long long)key.step_b, (long long)key.step_c,
                         (int)key.extra);
}

// A converter (PyArg_ParseTuple, "O&"): 1, or 0 with a Python error set.
int parse_key(PyObject *tuple, void *to) {
    int device, dtype, transposed, aligned, extra;
    long long m, n, k, lda, ldb, ldc, matrices, step_a, step_b, step_c;
    if (!PyArg_Parse(tuple, kProblem, &device, &dtype, &m, &n, &k, &transposed, &lda, &ldb, &ldc, &aligned, &matrices,
                     &step_a, &step_b, &step_c, &extra))
        return 0;
    *(Key *)to = {m, n, k, lda, ldb, ldc, matrices, step_a, step_b, step_c, device, (uint8_t)dtype, (uint8_t)transposed,
                  (uint8_t)aligned, (uint8_t)extra};
    return 1;
}

template <class T> bool numbers(PyObject *from, T *to, unsigned count) {
    PyObject *fast = PySequence_Fast(from, "a sequence of numbers is expected");
    if (!fast) return false;
    bool ok = PySequence_Fast_GET_SIZE(fast) == (Py_ssize_t)count;
    if (!ok) PyErr_SetString(PyExc_ValueError, "a sequence has the wrong length");
    for (unsigned i = 0; ok && i < count; ++i) {
        to[i] = (T)PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i));
        ok = !PyErr_Occurred();
    }
    Py_DECREF(fast);
    return ok;
}

// One parameter: (name of kNames,), ("value", int) or ("map", operand, type, dims, strides, box, swizzle)
bool add_parameter(Launch &launch, PyObject *item) {
    const char *what = PyTuple_Check(item) && PyTuple_GET_SIZE(item) ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(item, 0)) : "";
    if (!what) return false;
    const std::string name = what;
    for (int i = 0; i < kValues; ++i)
        if (name == kNames[i]) {
            launch.parameters.push_back({i, 0});
            return true;
        }
    if (name == "value" && PyTuple_GET_SIZE(item) == 2) {
        const uint64_t value = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(item, 1));
        launch.parameters.push_back({kConstant, value});
        return !PyErr_Occurred();
    }
    if (name == "map") {
        auto map = std::make_unique<MapSpec>();
        const char *text, *operand;
        PyObject *dims, *strides, *box;
        if (!PyArg_ParseTuple(item, "ssiOOOi", &text, &operand, &map->type, &dims, &strides, &box, &map->swizzle))
            return false;
        map->which = (int)(std::find(kNames, kNames + kValues, std::string(operand)) - kNames);
        const Py_ssize_t rank = PySequence_Size(dims);
        if (rank < 1 || rank > 5 || (map->which > kC && map->which != kAddend && map->which != kSecond && map->which != kThird)) {
            PyErr_SetString(PyExc_ValueError, "a tensor map has one to five extents and belongs to an operand");
            return false;
        }
        map->rank = (unsigned)rank;
        if (!numbers(dims, map->dims, map->rank) || !numbers(strides, map->strides, map->rank - 1) ||
            !numbers(box, map->box, map->rank))
            return false;
        launch.parameters.push_back({kMap, launch.maps.size()});
        launch.maps.push_back(std::move(map));
        return true;
    }
    PyErr_Format(PyExc_ValueError, "no parameter is called %s", what);
    return false;
}

// One launch, plan.py's LaunchPlan: (grid, threads, shared, cluster, parameters, overlap). False with a Python error set.
bool add_launch(Plan &plan, uint64_t function, PyObject *described) {
    auto launch = std::make_unique<Launch>();
    LaunchConfig &how = launch->how;
    unsigned x, y, z;
    PyObject *parameters;
    int overlap;
    if (!PyArg_Parse(described, "((III)II(III)O!p)", &how.grid_x, &how.grid_y, &how.grid_z, &how.block_x, &how.shared, &x, &y,
                     &z, &PyTuple_Type, &parameters, &overlap))
        return false;
    launch->function = (void *)(uintptr_t)function;
    how.block_y = how.block_z = 1;
    how.attributes = launch->attributes; // a Launch never moves: it lives behind a pointer
    const Py_ssize_t count = PyTuple_GET_SIZE(parameters);
    if (count > (Py_ssize_t)kMostParameters) {
        PyErr_Format(PyExc_ValueError, "a kernel takes %d parameters at most", (int)kMostParameters);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!add_parameter(*launch, PyTuple_GET_ITEM(parameters, i))) return false;
    if (x * y * z > 1) {
        LaunchAttribute &attribute = launch->attributes[how.count++];
        attribute.id = kClusterDimension;
        attribute.cluster = {x, y, z};
    }
    if (overlap) {
        LaunchAttribute &attribute = launch->attributes[how.count++];
        attribute.id = kOverlap;
        attribute.value = 1;
    }
    plan.launches.push_back(std::move(launch));
    return true;
}

} // namespace
