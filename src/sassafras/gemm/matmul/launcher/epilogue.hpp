// Calls with an epilogue or batches: the twin of `fused.py`. Reads tensors into a key of their own and runs the plan that
// Python made for it. Included by launcher.cpp, whose plain calls know nothing of it.
#pragma once
#include "plan.hpp"

namespace {

struct FusedKey {
    int64_t m, n, k, lda, ldb, ldc, matrices, step_a, step_b, step_c;
    int32_t device;
    uint8_t dtype, transposed, aligned;
    uint8_t extra; // bit 0: bias, bit 1: beta is not 0, the others: the activation
    bool operator==(const FusedKey &o) const { return std::memcmp(this, &o, sizeof(FusedKey)) == 0; }
};
static_assert(sizeof(FusedKey) == 88, "no padding: keys are compared and hashed as bytes");

struct FusedHash {
    size_t operator()(const FusedKey &key) const {
        uint64_t words[11], h = 0x9E3779B97F4A7C15ull;
        std::memcpy(words, &key, sizeof(FusedKey));
        for (uint64_t word : words) {
            h = (h ^ word) * 0xD6E8FEB86659FD93ull;
            h ^= h >> 32;
        }
        return (size_t)h;
    }
};

struct FusedCall {
    FusedKey key;
    void *a, *b, *c, *bias;
    int64_t rows;       // of each result, as the caller sees it
    int64_t leading[8]; // extents of the batch
    int ndim;           // of them
};

// The one stride of a tensor's leading extents along the batch's; 0: it has one matrix for all. False: none.
bool stride_of(const DLTensor &t, const FusedCall &call, int64_t &step) {
    const int own = t.ndim - 2, missing = call.ndim - own;
    bool one = true, same = true;
    for (int d = 0; d < own; ++d) one &= t.shape[d] == 1;
    step = 0;
    if (one) return true;
    int64_t count = 1;
    for (int d = call.ndim - 1; d >= 0; --d) {
        const int64_t extent = d < missing ? 1 : t.shape[d - missing];
        same &= extent == call.leading[d];
        if (!same) return false;
        if (extent == 1) continue;
        const int64_t stride = d < missing ? 0 : t.strides[d - missing];
        if (count == 1) step = stride;
        else if (stride != step * count) return false;
        count *= extent;
    }
    return true;
}

bool alike(const DLTensor &t, const DLTensor &a) {
    return t.device.type == a.device.type && t.device.id == a.device.id &&
           std::memcmp(&t.dtype, &a.dtype, sizeof(DLDataType)) == 0;
}

Read read_fused(const ExchangeApi *api, int device_type, PyObject *left, PyObject *right, PyObject *out, PyObject *bias,
                FusedCall &call) {
    DLTensor a, b, c, v;
    if (view(api, left, a) != Read::Ok || view(api, right, b) != Read::Ok) return Read::Unsupported;
    if (a.device.type != device_type || !alike(b, a)) return Read::Unsupported;
    if (a.dtype.bits != 16 || a.dtype.lanes != 1 || (a.dtype.code != kFloat && a.dtype.code != kBfloat))
        return Read::Unsupported;
    if (a.ndim < 2 || a.ndim > 8 || b.ndim < 2 || b.ndim > 8) return Read::Unsupported;
    std::memset(&call.key, 0, sizeof(FusedKey));
    FusedKey &key = call.key;
    int64_t m = a.shape[a.ndim - 2];
    const int64_t k = a.shape[a.ndim - 1], n = b.shape[b.ndim - 1];
    if (b.shape[b.ndim - 2] != k || m < 1 || n < 1 || k < 1) return Read::Unsupported;
    call.ndim = (a.ndim > b.ndim ? a.ndim : b.ndim) - 2;
    call.rows = m;
    int64_t matrices = 1;
    for (int d = 0; d < call.ndim; ++d) {
        const int at_a = d - (call.ndim - (a.ndim - 2)), at_b = d - (call.ndim - (b.ndim - 2));
        const int64_t x = at_a < 0 ? 1 : a.shape[at_a], y = at_b < 0 ? 1 : b.shape[at_b];
        if (x != y && x != 1 && y != 1) return Read::Unsupported;
        call.leading[d] = x == 1 ? y : x;
        matrices *= call.leading[d];
    }
    if (matrices < 1) return Read::Unsupported;
    int64_t step_a, step_b, step_c = m * n;
    if (!stride_of(a, call, step_a) || !stride_of(b, call, step_b)) return Read::Unsupported;
    int64_t line_c = n, column_c = 1;
    call.a = address(a), call.b = address(b), call.c = call.bias = nullptr;
    if (out) {
        if (view(api, out, c) != Read::Ok || !alike(c, a) || c.ndim != call.ndim + 2 || c.shape[c.ndim - 1] != n ||
            c.shape[c.ndim - 2] != m)
            return Read::Unsupported;
        for (int d = 0; d < call.ndim; ++d)
            if (c.shape[d] != call.leading[d]) return Read::Unsupported;
        if (!stride_of(c, call, step_c)) return Read::Unsupported;
        line_c = c.strides[c.ndim - 2], column_c = c.strides[c.ndim - 1];
        call.c = address(c);
    }
    if (bias) {
        if (view(api, bias, v) != Read::Ok || !alike(v, a) || v.ndim != 1 || v.shape[0] != n || (n > 1 && v.strides[0] != 1))
            return Read::Unsupported;
        call.bias = address(v);
    }
    const int64_t line_a = a.strides[a.ndim - 2];
    if (matrices > 1 && step_b == 0 && step_a == m * line_a && (!out || step_c == m * line_c)) {
        m *= matrices; // one product of more rows
        matrices = 1;
    }
    if (matrices == 1) step_a = step_b = step_c = 0;
    else if (!step_c) return Read::Unsupported; // an expanded out
    if (step_a < 0 || step_b < 0 || step_c < 0) return Read::Unsupported;
    bool a_transposed, b_transposed, c_transposed = false;
    key.ldc = n;
    if (!lies(m, k, line_a, a.strides[a.ndim - 1], a_transposed, key.lda) || a_transposed) return Read::Unsupported;
    if (!lies(k, n, b.strides[b.ndim - 2], b.strides[b.ndim - 1], b_transposed, key.ldb)) return Read::Unsupported;
    if (out && (!lies(m, n, line_c, column_c, c_transposed, key.ldc) || c_transposed)) return Read::Unsupported;
    key.m = m, key.n = n, key.k = k, key.matrices = matrices;
    key.step_a = step_a, key.step_b = step_b, key.step_c = step_c;
    key.device = a.device.id, key.dtype = a.dtype.code == kBfloat, key.transposed = b_transposed;
    key.aligned = (((uintptr_t)call.a | (uintptr_t)call.b | (uintptr_t)call.c | (uintptr_t)call.bias) & 15) == 0;
    if (out) {
        const int64_t more = matrices - 1, one = extent(m, n, false, key.ldc), size = more * step_c + one;
        if (overlap(call.c, size, call.a, more * step_a + extent(m, k, false, key.lda)) ||
            overlap(call.c, size, call.b, more * step_b + extent(k, n, b_transposed, key.ldb)) ||
            (bias && overlap(call.c, size, call.bias, n)) || (matrices > 1 && step_c < one))
            return Read::Unsupported;
    }
    return Read::Ok;
}

// What a launch gives beside addresses of operands, in the order of the names that `add_parameter` knows.
struct Given {
    uint64_t values[5]; // bias, addend, alpha, beta, activation
};

uint64_t float_bits(double value) {
    const float narrow = (float)value;
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    return bits;
}

} // namespace
