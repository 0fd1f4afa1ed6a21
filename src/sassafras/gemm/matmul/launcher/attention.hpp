// Attention of one query row, read as problem.hpp reads products. The twin of attention_problem.py.
#pragma once
#include "problem.hpp"

namespace {

constexpr uint8_t kAttention = 32; // Key::transposed

struct Attention { PyObject *q, *k, *v, *mask = nullptr, *out; };

// Elements from the first to the last.
int64_t span(const DLTensor &t) {
    int64_t last = 0;
    for (int d = 0; d < t.ndim; ++d) last += (t.shape[d] - 1) * t.strides[d];
    return last + 1;
}

// What is asked for; false: nothing that a plan can serve. The key's m, n, k, lda and ldb are sequences, heads of q, keys, heads of k,
// and elements of a head; v and the mask are `second` and `third`.
bool read_attention(const ExchangeApi *api, int device_type, const Attention &asked, Call &call) {
    DLTensor t[5]; // q, k, v, out, mask
    PyObject *const given[5] = {asked.q, asked.k, asked.v, asked.out, asked.mask};
    const int count = asked.mask ? 5 : 4;
    for (int i = 0; i < count; ++i)
        if (!view(api, given[i], t[i]) || !alike(t[i], t[0]) || t[i].ndim != 4) return false;
    const auto &[q, k, v, out, mask] = t;
    if (q.device.type != device_type || q.dtype.bits != 16 || q.dtype.lanes != 1) return false;
    if (q.dtype.code != kFloat && q.dtype.code != kBfloat) return false;
    const int64_t batch = q.shape[0], heads = q.shape[1], head = q.shape[3], groups = k.shape[1], keys = k.shape[2];
    if (q.shape[2] != 1 || batch < 1 || groups < 1 || keys < 1 || head < 1 || heads < 1 || heads % groups) return false;
    const int64_t shared[4] = {batch, groups, keys, head};
    for (int d = 0; d < 4; ++d)
        if (k.shape[d] != shared[d] || v.shape[d] != shared[d] || out.shape[d] != q.shape[d]) return false;
    if (!tight(out)) return false;
    int64_t *to = call.strides;
    uintptr_t places = 0;
    for (int i = 0; i < 4; ++i) {
        places |= (uintptr_t)address(t[i]);
        if (i == 3) continue; // out
        if (head > 1 && t[i].strides[3] != 1) return false;
        for (int d = 0; d < (i ? 3 : 2); ++d) {
            *to = t[i].shape[d] == 1 ? 0 : t[i].strides[d];
            if (*to % 8 || *to++ >> 31) return false;
        }
    }
    if ((places & 15) != 0) return false;
    to[0] = to[1] = 0;
    if (asked.mask) {
        const int64_t wanted[4] = {batch, heads, 1, keys};
        for (int d = 0; d < 4; ++d)
            if (mask.shape[d] != wanted[d] && (d > 1 || mask.shape[d] != 1)) return false;
        if (keys > 1 && mask.strides[3] != 1) return false;
        for (int d = 0; d < 2; ++d)
            if ((to[d] = mask.shape[d] == 1 ? 0 : mask.strides[d]) >> 31) return false;
    }
    call.a = address(q), call.b = address(k), call.second = address(v), call.c = address(out);
    call.third = asked.mask ? address(mask) : nullptr;
    call.bias = call.addend = call.norm = nullptr;
    for (int i = 0; i < count; ++i)
        if (i != 3 && overlap(call.c, span(out), address(t[i]), span(t[i]))) return false;
    std::memset(&call.key, 0, sizeof(Key));
    Key &key = call.key;
    key.m = batch, key.n = heads, key.k = keys, key.lda = groups, key.ldb = head;
    key.device = q.device.id, key.dtype = q.dtype.code == kBfloat, key.transposed = kAttention;
    key.extra = asked.mask ? 1 : 0;
    return true;
}

} // namespace
