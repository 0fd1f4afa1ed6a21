// From the arguments of a call to its problem, the key of every plan: shapes, strides, types and addresses, read through
// DLPack's C exchange table. The twin of problem.py.
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
constexpr uint8_t kBiasAlone = 1; // Key::extra of a product with a bias
constexpr long kSwiglu = 5;       // problem.py's SWIGLU

// --- what a call looks like ------------------------------------------------------------------------------------

// activation(alpha * a @ b + beta * addend + bias), as Python calls it. Without an addend of its own, `out` is one. SwiGLU's
// addend is up's weight, if `b` is the gate's alone; C has half as many columns as they have together. norm, eps, constant:
// as in problem.py's MatmulCall.
struct Arguments {
    PyObject *a, *b, *out = nullptr, *bias = nullptr, *addend = nullptr, *norm = nullptr;
    bool linear = false; // b is given as its transpose, torch.nn.functional.linear's weight
    bool constant = false;
    long activation = 0;
    double alpha = 1, beta = 0, eps = 0;
    uint8_t extra() const {
        return (uint8_t)((bias ? 1 : 0) | (beta != 0 ? 2 : 0) | (alpha != 1 ? 4 : 0) | activation << 3 | (norm ? 64 : 0) |
                         (constant ? 128 : 0));
    }
};

// One problem: everything that decides which kernel may run and how (problem.py has the fields' meanings). Strides of
// extents of one are normalised.
struct Key {
    int64_t m, n, k, lda, ldb, ldc, matrices, step_a, step_b, step_c;
    int32_t device;
    uint8_t dtype;      // 0 FP16, 1 BF16
    uint8_t transposed; // bit 0: B is n x k ("t"), bit 1: A is k x m
    uint8_t aligned;    // all addresses multiples of 16 bytes
    uint8_t extra;      // Arguments::extra
    bool operator==(const Key &o) const {
        uint64_t mine[11], other[11], differ = 0;
        std::memcpy(mine, this, sizeof(Key));
        std::memcpy(other, &o, sizeof(Key));
        for (int i = 0; i < 11; ++i) differ |= mine[i] ^ other[i];
        return differ == 0;
    }
};
static_assert(sizeof(Key) == 88, "no padding: keys are compared and hashed as bytes");

struct Hash {
    size_t operator()(const Key &key) const {
        uint64_t words[11], h = 0, odd = 0x9E3779B97F4A7C15ull;
        std::memcpy(words, &key, sizeof(Key));
        for (uint64_t word : words) { // products that do not wait for each other
            h += word * odd;
            odd += 0xD6E8FEB86659FD92ull;
        }
        return (size_t)(h ^ h >> 32);
    }
};

constexpr int kMostStrides = 14;

// A call after its tensors were read.
struct Call {
    Key key;
    void *a, *b, *c, *bias, *addend, *norm;
    void *second = nullptr, *third = nullptr, *second_bias = nullptr, *third_bias = nullptr; // of joined products
    void *q_norm = nullptr, *k_norm = nullptr;
    int64_t strides[kMostStrides] = {}; // of attention, and of what it turns
    int64_t rows, columns, leading[8]; // of each result, as the caller sees it; extents of the batch
    int ndim;                          // of them
    bool matrices;                     // both operands
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

bool view(const ExchangeApi *api, PyObject *object, DLTensor &to) {
    if (api->view(object, &to) != 0) {
        PyErr_Clear(); // a tensor without memory of its own kind: torch will know what to do
        return false;
    }
    return to.data; // null: empty, or one whose zeros are nowhere
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

// The one stride of a tensor's leading extents along the batch's; 0: it has one matrix for all. False: none.
bool stride_of(const DLTensor &t, const Call &call, int64_t &step) {
    const int own = t.ndim - 2, missing = call.ndim - own;
    bool one = true;
    for (int d = 0; d < own; ++d) one &= t.shape[d] == 1;
    step = 0;
    if (one) return true;
    int64_t count = 1;
    for (int d = call.ndim - 1; d >= 0; --d) {
        const int64_t extent = d < missing ? 1 : t.shape[d - missing];
        if (extent != call.leading[d]) return false; // some extents are shared and others are not
        if (extent == 1) continue;
        if (count == 1) step = t.strides[d - missing];
        else if (t.strides[d - missing] != step * count) return false;
        count *= extent;
    }
    return true;
}

bool alike(const DLTensor &t, const DLTensor &a) {
    return t.device.type == a.device.type && t.device.id == a.device.id &&
           std::memcmp(&t.dtype, &a.dtype, sizeof(DLDataType)) == 0;
}

// What is asked for; false: nothing that a plan can serve.
bool read(const ExchangeApi *api, int device_type, const Arguments &asked, Call &call) {
    DLTensor a, b, c, v;
    call.addend = nullptr;
    if (!view(api, asked.a, a) || !view(api, asked.b, b)) return false;
    if (a.device.type != device_type || !alike(b, a)) return false;
    if (a.dtype.bits != 16 || a.dtype.lanes != 1 || (a.dtype.code != kFloat && a.dtype.code != kBfloat))
        return false;
    if (a.ndim < 2 || a.ndim > 8 || b.ndim < 2 || b.ndim > 8 || (asked.linear && b.ndim != 2)) return false;
    const bool pair = asked.activation == kSwiglu;
    if (pair && (b.ndim != 2 || (asked.addend && asked.bias))) return false;
    if (pair && asked.addend) {
        if (!view(api, asked.addend, v) || !alike(v, a) || v.ndim != 2) return false;
        for (int d = 0; d < 2; ++d)
            if (v.shape[d] != b.shape[d] || v.strides[d] != b.strides[d]) return false;
        call.addend = address(v);
    }
    int64_t turned[4] = {b.shape[1], b.shape[0], b.strides[1], b.strides[0]};
    if (asked.linear) b.shape = turned, b.strides = turned + 2;
    const int64_t *tail_a = a.shape + a.ndim - 2, *tail_b = b.shape + b.ndim - 2;
    int64_t m = tail_a[0];
    const int64_t k = tail_a[1], n = pair && asked.addend ? 2 * tail_b[1] : tail_b[1], width = pair ? n / 2 : n;
    if (tail_b[0] != k || m < 1 || n < 1 || k < 1 || (pair && n % 2)) return false;
    call.ndim = (a.ndim > b.ndim ? a.ndim : b.ndim) - 2, call.matrices = call.ndim == 0;
    call.rows = m, call.columns = width;
    int64_t matrices = 1;
    for (int d = 0; d < call.ndim; ++d) {
        const int at_a = d - (call.ndim - (a.ndim - 2)), at_b = d - (call.ndim - (b.ndim - 2));
        const int64_t x = at_a < 0 ? 1 : a.shape[at_a], y = at_b < 0 ? 1 : b.shape[at_b];
        if (x != y && x != 1 && y != 1) return false;
        call.leading[d] = x == 1 ? y : x;
        matrices *= call.leading[d];
    }
    if (matrices < 1) return false;
    call.a = address(a), call.b = address(b), call.c = call.bias = call.norm = nullptr;
    int64_t line_a = a.strides[a.ndim - 2], line_c = width, column_c = 1; // a fresh C's
    if (asked.out) {
        if (!view(api, asked.out, c) || !alike(c, a) || c.ndim != call.ndim + 2 ||
            c.shape[c.ndim - 1] != width || c.shape[c.ndim - 2] != m)
            return false;
        for (int d = 0; d < call.ndim; ++d)
            if (c.shape[d] != call.leading[d]) return false;
        line_c = c.strides[c.ndim - 2], column_c = c.strides[c.ndim - 1];
        call.c = address(c);
    }
    if (asked.bias) {
        if (!view(api, asked.bias, v) || !alike(v, a) || v.ndim != 1 || v.shape[0] != n ||
            (n > 1 && v.strides[0] != 1))
            return false;
        call.bias = address(v);
    }
    if (asked.norm) {
        if (!view(api, asked.norm, v) || !alike(v, a) || v.ndim != 1 || v.shape[0] != k || (k > 1 && v.strides[0] != 1))
            return false;
        call.norm = address(v);
    }
    if (asked.addend && !pair) { // without gaps, as a fresh C
        if (!view(api, asked.addend, v) || !alike(v, a) || v.ndim != call.ndim + 2) return false;
        int64_t step = 1;
        for (int d = v.ndim - 1; d >= 0; --d) {
            const int64_t wanted = d < call.ndim ? call.leading[d] : d == call.ndim ? m : n;
            if (v.shape[d] != wanted || (wanted > 1 && (v.strides[d] != step || (asked.out && c.strides[d] != step)))) return false;
            step *= wanted;
        }
        call.addend = address(v);
    }
    int64_t step_a = 0, step_b = 0, step_c = 0;
    if (matrices > 1) {
        step_c = m * width;
        if (!stride_of(a, call, step_a) || !stride_of(b, call, step_b) || (asked.out && !stride_of(c, call, step_c)))
            return false;
        if (!step_c) return false; // an expanded out
        if (step_a && !step_b && (m == 1 || (step_a == m * line_a && step_c == m * line_c))) {
            if (m == 1) line_a = step_a, line_c = step_c;
            m *= matrices; // one product of more rows
            matrices = 1, step_a = step_c = 0;
        }
    }
    std::memset(&call.key, 0, sizeof(Key));
    Key &key = call.key;
    key.extra = asked.extra();
    bool a_transposed, b_transposed, c_transposed = false;
    key.ldc = width;
    if (!lies(m, k, line_a, a.strides[a.ndim - 1], a_transposed, key.lda) ||
        !lies(k, n, b.strides[b.ndim - 2], b.strides[b.ndim - 1], b_transposed, key.ldb) ||
        (asked.out && !lies(m, width, line_c, column_c, c_transposed, key.ldc)))
        return false;
    if ((matrices > 1 || key.extra) && (a_transposed || c_transposed)) return false;
    if (asked.out) {
        const int64_t more = matrices - 1, one = extent(m, width, c_transposed, key.ldc), size = more * step_c + one;
        if (overlap(call.c, size, call.a, more * step_a + extent(m, k, a_transposed, key.lda)) ||
            overlap(call.c, size, call.b, more * step_b + extent(k, pair && asked.addend ? width : n, b_transposed, key.ldb)) ||
            (asked.bias && overlap(call.c, size, call.bias, n)) || (asked.norm && overlap(call.c, size, call.norm, k)) ||
            (asked.addend && overlap(call.c, size, call.addend, pair ? extent(k, width, b_transposed, key.ldb) : size)) || (more && step_c < one))
            return false;
    }
    key.m = m, key.n = n, key.k = k, key.matrices = matrices;
    key.step_a = step_a, key.step_b = step_b, key.step_c = step_c;
    if (c_transposed) { // C^T (n x m) = B^T (n x k) A^T (k x m)
        std::swap(key.m, key.n);
        std::swap(key.lda, key.ldb);
        std::swap(call.a, call.b);
        const bool was = a_transposed;
        a_transposed = !b_transposed, b_transposed = !was;
    }
    key.device = a.device.id, key.dtype = a.dtype.code == kBfloat;
    key.transposed = (uint8_t)(b_transposed | (a_transposed << 1));
    key.aligned = (((uintptr_t)call.a | (uintptr_t)call.b | (uintptr_t)call.c | (uintptr_t)call.bias |
                    (uintptr_t)call.addend | (uintptr_t)call.norm) & 15) == 0;
    return true;
}

// --- what stands between products ------------------------------------------------------------------------------

constexpr uint8_t kGated = 8, kLayerNorm = 128; // Key::transposed; another: an RMS norm

// out = a's lines normalised and times other, of a layer norm plus bias, if any; or silu(a) * other, where a's lines hold both halves if
// there is no other. constant: as in Arguments.
struct Rows {
    PyObject *a, *other, *bias, *out;
    uint8_t kind;
    bool constant;
};

bool tight(const DLTensor &t) {
    int64_t step = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
        if (t.shape[d] != 1 && t.strides[d] != step) return false;
        step *= t.shape[d];
    }
    return true;
}

// The twin of problem.py's read_rows: the key's m, n and k are C's lines and columns, and elements from line to line of a.
bool read_rows(const ExchangeApi *api, int device_type, const Rows &asked, Call &call) {
    DLTensor a, c, v;
    if (!view(api, asked.a, a) || !view(api, asked.out, c) || a.device.type != device_type || !alike(c, a)) return false;
    if (a.dtype.bits != 16 || a.dtype.lanes != 1 || (a.dtype.code != kFloat && a.dtype.code != kBfloat)) return false;
    if (a.ndim < 1 || c.ndim != a.ndim || !tight(a) || !tight(c)) return false;
    int64_t lines = 1;
    for (int d = 0; d + 1 < a.ndim; ++d) {
        if (a.shape[d] != c.shape[d]) return false;
        lines *= a.shape[d];
    }
    const bool gated = asked.kind == kGated;
    const int64_t line = a.shape[a.ndim - 1], columns = gated && !asked.other ? line / 2 : line;
    if (c.shape[c.ndim - 1] != columns || lines * columns < 1 || (columns != line && line % 2)) return false;
    call.a = address(a), call.c = address(c), call.bias = call.addend = call.norm = nullptr;
    call.b = (char *)call.a + 2 * columns;
    if (asked.other) {
        if (!view(api, asked.other, v) || !alike(v, a) || !tight(v) || v.ndim != (gated ? a.ndim : 1)) return false;
        for (int d = 0; d < v.ndim; ++d)
            if (v.shape[d] != (gated ? a.shape[d] : line)) return false;
        call.b = call.norm = address(v);
        if (overlap(call.c, lines * columns, call.b, gated ? lines * line : line)) return false;
    }
    if (asked.bias) {
        if (asked.kind != kLayerNorm || !view(api, asked.bias, v) || !alike(v, a) || !tight(v) || v.ndim != 1) return false;
        call.bias = address(v);
        if (v.shape[0] != line || overlap(call.c, lines * columns, call.bias, line)) return false;
    }
    if ((((uintptr_t)call.a | (uintptr_t)call.b | (uintptr_t)call.c | (uintptr_t)call.bias) & 15) != 0) return false;
    if (overlap(call.c, lines * columns, call.a, lines * line)) return false;
    std::memset(&call.key, 0, sizeof(Key));
    call.key.m = lines, call.key.n = columns, call.key.k = line;
    call.key.device = a.device.id, call.key.dtype = a.dtype.code == kBfloat;
    call.key.transposed = asked.kind;
    call.key.extra = asked.constant ? 128 : 0;
    return true;
}

// --- products that share their rows ----------------------------------------------------------------------------

constexpr uint8_t kJoined = 16; // Key::transposed

// out = a's lines, normalised if there is a norm, times two or three weights (k, n of their own), with a bias each or none. eps,
// constant: as in Arguments.
struct JoinedCall {
    PyObject *a, *weights[3] = {}, *biases[3] = {}, *norm = nullptr, *out;
    bool constant = false;
};

// The twin of joined_problem.py's read_joined: the key's step_b and step_c are where the second product and the third begin in C.
bool read_joined(const ExchangeApi *api, int device_type, const JoinedCall &asked, Call &call) {
    DLTensor a, c, v;
    if (!view(api, asked.a, a) || !view(api, asked.out, c) || a.device.type != device_type || !alike(c, a)) return false;
    if (a.dtype.bits != 16 || a.dtype.lanes != 1 || (a.dtype.code != kFloat && a.dtype.code != kBfloat)) return false;
    if (a.ndim < 1 || c.ndim != a.ndim || !tight(a) || !tight(c)) return false;
    int64_t lines = 1, n = 0, ldb = 0, cuts[3] = {};
    for (int d = 0; d + 1 < a.ndim; ++d) {
        if (a.shape[d] != c.shape[d]) return false;
        lines *= a.shape[d];
    }
    const int64_t k = a.shape[a.ndim - 1], columns = c.shape[c.ndim - 1];
    call.a = address(a), call.c = address(c), call.addend = call.norm = nullptr;
    void **const to[3] = {&call.b, &call.second, &call.third}, **const biases[3] = {&call.bias, &call.second_bias, &call.third_bias};
    uintptr_t places = (uintptr_t)call.a | (uintptr_t)call.c;
    bool biased = false;
    for (int i = 0; i < 3; ++i) {
        *biases[i] = nullptr;
        if (!asked.weights[i]) {
            if (i < 2 || asked.biases[i]) return false;
            continue;
        }
        if (!view(api, asked.weights[i], v) || !alike(v, a) || v.ndim != 2 || v.shape[0] != k || v.strides[0] != 1) return false;
        const int64_t width = v.shape[1], line = v.strides[1];
        if (width < 1 || width % 16 || line < k || (i && line != ldb)) return false;
        *to[i] = address(v), cuts[i] = n, ldb = line, n += width;
        if (overlap(call.c, lines * columns, *to[i], (width - 1) * line + k)) return false;
        places |= (uintptr_t)*to[i];
        if (!asked.biases[i]) continue;
        if (!view(api, asked.biases[i], v) || !alike(v, a) || v.ndim != 1 || v.shape[0] != width || v.strides[0] != 1) return false;
        *biases[i] = address(v), biased = true;
        if (overlap(call.c, lines * columns, *biases[i], width)) return false;
        places |= (uintptr_t)*biases[i];
    }
    if (!asked.weights[2]) call.third = call.second; // of which there is a tensor map
    if (columns != n || lines * k < 1 || overlap(call.c, lines * n, call.a, lines * k)) return false;
    if (asked.norm) {
        if (!view(api, asked.norm, v) || !alike(v, a) || v.ndim != 1 || v.shape[0] != k || !tight(v)) return false;
        call.norm = address(v);
        if (overlap(call.c, lines * n, call.norm, k)) return false;
        places |= (uintptr_t)call.norm;
    }
    if ((places & 15) != 0) return false;
    std::memset(&call.key, 0, sizeof(Key));
    Key &key = call.key;
    key.m = lines, key.n = n, key.k = k, key.lda = k, key.ldb = ldb, key.ldc = n, key.aligned = 1, key.matrices = 1;
    key.step_b = cuts[1], key.step_c = cuts[2];
    key.device = a.device.id, key.dtype = a.dtype.code == kBfloat, key.transposed = kJoined;
    key.extra = (uint8_t)((biased ? 1 : 0) | (asked.norm ? 64 : 0) | (asked.constant ? 128 : 0));
    return true;
}

} // namespace
