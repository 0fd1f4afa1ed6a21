// From tensors to a problem: shapes, strides, types and addresses, read through DLPack's C exchange table.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

// --- DLPack 1.x, as far as it is used (dlpack.h, "DLPackExchangeAPI") ------------------------------------------

struct DLDevice { int32_t type, id; };
struct DLDataType { uint8_t code, bits; uint16_t lanes; };
struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct ExchangeApi {
    struct { uint32_t major, minor; } version;
    ExchangeApi *previous;
    void *allocate, *from_py, *to_py;
    int (*view)(void *tensor, DLTensor *out); // borrowed: nothing to free
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
};
constexpr uint8_t kFloat = 2, kBfloat = 4;

// --- what a call looks like ------------------------------------------------------------------------------------

// One problem: everything that decides which kernel may run and how. Strides of extents of one are normalised.
struct Key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t device;
    uint8_t dtype;      // 0 FP16, 1 BF16
    uint8_t transposed; // bit 0: B is n x k ("t"), bit 1: A is k x m
    uint8_t aligned;    // all addresses multiples of 16 bytes
    uint8_t unused;
    bool operator==(const Key &o) const { return std::memcmp(this, &o, sizeof(Key)) == 0; }
};
static_assert(sizeof(Key) == 56, "no padding: keys are compared and hashed as bytes");

struct Hash {
    size_t operator()(const Key &key) const {
        uint64_t words[7], h = 0x9E3779B97F4A7C15ull;
        std::memcpy(words, &key, sizeof(Key));
        for (uint64_t word : words) {
            h = (h ^ word) * 0xD6E8FEB86659FD93ull;
            h ^= h >> 32;
        }
        return (size_t)h;
    }
};

// A call after its tensors were read.
struct Call {
    Key key;
    void *a, *b, *c;
    bool exchanged; // C is column-major: C^T = B^T A^T was asked for, a and b have changed places
    DLTensor left;
};

// Row-major with unit stride along columns?
bool by_rows(int64_t rows, int64_t columns, int64_t s0, int64_t s1, int64_t &leading) {
    if (columns > 1 && s1 != 1) return false;
    if (rows <= 1) {
        leading = columns;
        return true;
    }
    leading = s0;
    return s0 >= columns;
}

// How a matrix lies: false when neither rows nor columns are contiguous (or elements overlap).
bool lies(int64_t rows, int64_t columns, int64_t s0, int64_t s1, bool &transposed, int64_t &leading) {
    int64_t row_leading = 0, column_leading = 0;
    const bool rows_ok = by_rows(rows, columns, s0, s1, row_leading);
    const bool columns_ok = by_rows(columns, rows, s1, s0, column_leading);
    if (!rows_ok && !columns_ok) return false;
    // both hold only where an extent is one: take the one that allows 16-byte accesses
    transposed = !rows_ok || (columns_ok && row_leading % 8 != 0 && column_leading % 8 == 0);
    leading = transposed ? column_leading : row_leading;
    return true;
}


enum class Read { Ok, Unsupported, Error };

Read view(const ExchangeApi *api, PyObject *object, DLTensor &to) {
    if (api->view(object, &to) != 0) {
        PyErr_Clear(); // a tensor without memory of its own kind: torch will know what to do
        return Read::Unsupported;
    }
    return to.data ? Read::Ok : Read::Unsupported; // empty, or one whose zeros are nowhere
}

void *address(const DLTensor &t) { return (char *)t.data + t.byte_offset; }

// First and last byte that a matrix touches.
bool overlap(const void *x, int64_t x_elements, const void *y, int64_t y_elements) {
    const char *a = (const char *)x, *b = (const char *)y;
    return a < b + 2 * y_elements && b < a + 2 * x_elements;
}

int64_t extent(int64_t rows, int64_t columns, bool transposed, int64_t leading) {
    const int64_t lines = transposed ? columns : rows, width = transposed ? rows : columns;
    return (lines - 1) * leading + width;
}

// What is asked for; Unsupported for everything that a plan cannot serve.
Read read(const ExchangeApi *api, int device_type, PyObject *left, PyObject *right, PyObject *out, Call &call) {
    DLTensor a, b, c;
    if (view(api, left, a) != Read::Ok || view(api, right, b) != Read::Ok) return Read::Unsupported;
    if (a.device.type != device_type || b.device.type != a.device.type || b.device.id != a.device.id)
        return Read::Unsupported;
    if (a.dtype.bits != 16 || a.dtype.lanes != 1 || (a.dtype.code != kFloat && a.dtype.code != kBfloat) ||
        std::memcmp(&a.dtype, &b.dtype, sizeof(DLDataType)) != 0)
        return Read::Unsupported;
    if (a.ndim < 2 || a.ndim > 8 || b.ndim != 2) return Read::Unsupported;
    // leading extents of A fold into its rows where they lie one after the other
    int64_t m = a.shape[a.ndim - 2], row_stride = a.strides[a.ndim - 2];
    for (int d = a.ndim - 3; d >= 0; --d) {
        if (a.shape[d] == 1) continue;
        if (m == 1) row_stride = a.strides[d];
        else if (a.strides[d] != row_stride * m) return Read::Unsupported;
        m *= a.shape[d];
    }
    const int64_t k = a.shape[a.ndim - 1], n = b.shape[1];
    if (b.shape[0] != k || m < 1 || n < 1 || k < 1) return Read::Unsupported;
    std::memset(&call.key, 0, sizeof(Key));
    Key &key = call.key;
    bool a_transposed, b_transposed;
    if (!lies(m, k, row_stride, a.strides[a.ndim - 1], a_transposed, key.lda)) return Read::Unsupported;
    if (!lies(k, n, b.strides[0], b.strides[1], b_transposed, key.ldb)) return Read::Unsupported;
    call.a = address(a), call.b = address(b), call.c = nullptr, call.exchanged = false;
    key.m = m, key.n = n, key.k = k, key.ldc = n;
    key.device = a.device.id, key.dtype = a.dtype.code == kBfloat;
    if (out) {
        if (view(api, out, c) != Read::Ok || c.ndim != a.ndim || c.device.type != a.device.type ||
            c.device.id != a.device.id || std::memcmp(&a.dtype, &c.dtype, sizeof(DLDataType)) != 0)
            return Read::Unsupported;
        int64_t rows = c.shape[c.ndim - 2], stride = c.strides[c.ndim - 2];
        if (c.shape[c.ndim - 1] != n || rows != a.shape[a.ndim - 2]) return Read::Unsupported;
        for (int d = c.ndim - 3; d >= 0; --d) {
            if (c.shape[d] != a.shape[d]) return Read::Unsupported;
            if (c.shape[d] == 1) continue;
            if (rows == 1) stride = c.strides[d];
            else if (c.strides[d] != stride * rows) return Read::Unsupported;
            rows *= c.shape[d];
        }
        bool c_transposed;
        if (!lies(m, n, stride, c.strides[c.ndim - 1], c_transposed, key.ldc)) return Read::Unsupported;
        call.c = address(c);
        const int64_t size = extent(m, n, c_transposed, key.ldc);
        if (overlap(call.c, size, call.a, extent(m, k, a_transposed, key.lda)) ||
            overlap(call.c, size, call.b, extent(k, n, b_transposed, key.ldb)))
            return Read::Unsupported;
        if (c_transposed) { // C^T (n x m) = B^T (n x k) A^T (k x m)
            call.exchanged = true;
            std::swap(key.m, key.n);
            std::swap(key.lda, key.ldb);
            std::swap(call.a, call.b);
            const bool was = a_transposed;
            a_transposed = !b_transposed, b_transposed = !was;
        }
    }
    key.transposed = (uint8_t)(b_transposed | (a_transposed << 1));
    key.aligned = (((uintptr_t)call.a | (uintptr_t)call.b | (uintptr_t)call.c) & 15) == 0;
    call.left = a;
    return Read::Ok;
}

} // namespace
