// Plans: what serves a problem (a kernel, a cuBLASLt algorithm, torch), with everything that a launch needs but the
// addresses; and the driver's structures, declared here because no CUDA header is needed to build the launcher.
#pragma once
#include <memory>
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
using StreamIsCapturing = int (*)(void *stream, int *status);
using StreamGetId = int (*)(void *stream, unsigned long long *id);
using LtMatmul = int (*)(void *handle, void *operation, const void *alpha, const void *a, void *a_layout, const void *b,
                         void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                         const void *algo, void *workspace, size_t bytes, void *stream);

// --- plans --------------------------------------------------------------------------------------------------------

struct MapSpec {
    int which, type, interleave, swizzle, promotion, fill;
    unsigned rank;
    uint64_t dims[5], strides[5];
    unsigned box[5], element_strides[5];
    TensorMap cached[4];
    void *address[4] = {nullptr, nullptr, nullptr, nullptr};
    int next = 0;
};

enum class Kind { Torch, Kernel, Lt };

constexpr size_t kMostParameters = 64;

// Where counters of a stream lie. An id is the stream's for the program's life; a handle is used again.
struct CountersOf {
    unsigned long long stream_id;
    uint64_t address;
};

// Tables and calls share a plan: it lives until the last call that found it is done, whatever replaces it in the table.
// Once it is in a table nothing of it changes but its caches, which a call reads and writes between two calls of Python
// and so under the GIL (the module does not declare that it can do without).
struct Plan {
    Kind kind = Kind::Torch;
    void *function = nullptr, *context = nullptr;
    LaunchConfig launch{};
    LaunchAttribute attributes[2]{};
    std::vector<uint64_t> constants; // scalar parameters, eight bytes each; a call works on a copy
    struct Parameter { int what, index; }; // what: 0..2 operand, 3 workspace, 4 counters, 5 constant, 6 tensor map, 7.. Given
    std::vector<Parameter> parameters;
    std::vector<std::unique_ptr<MapSpec>> maps; // cache: the last addresses' maps
    size_t workspace = 0; // bytes, from torch's allocator at every call
    // words that are zero before and after every launch; launches that may overlap have their own (counters.py)
    size_t counters = 0;
    mutable CountersOf counters_of[4] = {}; // cache: the last streams'
    mutable unsigned counters_known = 0;    // how many were ever put there
    std::unique_ptr<Plan> then; // a second kernel of the same call, right behind this one; it shares the workspace
    // cuBLASLt
    void *handle = nullptr, *operation = nullptr, *first = nullptr, *second = nullptr, *out = nullptr;
    uint64_t algorithm[8] = {};
};

} // namespace
