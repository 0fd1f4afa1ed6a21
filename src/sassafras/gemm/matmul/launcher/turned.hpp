// What lies between queries, keys and values of a token and its attention, read as problem.hpp reads products. The twin of
// turned_problem.py.
#pragma once
#include "attention.hpp"

namespace {

constexpr uint8_t kTurned = 64; // Key::transposed
constexpr uint8_t kInt = 0;     // a type's code
constexpr int kTurnedTensors = 11, kAt = 7, kQNormAt = 8, kKNormAt = 9, kTurnedOut = 10;

// q, k, v, cos, sin, keys, values, at, q_norm, k_norm, out; both norms may be null.
struct Turned { PyObject *tensors[kTurnedTensors]; };

// Do a cache's rows of different sequences and heads share no elements?
bool rows_apart(const DLTensor &t) {
    const int near = t.shape[0] > 1 && (t.shape[1] == 1 || t.strides[0] < t.strides[1]) ? 0 : 1;
    int64_t end = t.shape[3];
    for (int d : {near, 1 - near}) {
        if (t.shape[d] == 1) continue;
        if (t.strides[d] < end) return false;
        end += t.strides[d] * (t.shape[d] - 1);
    }
    return true;
}

// What is asked for; false: nothing that a plan can serve. The key's m, n, k, lda and ldb are sequences, heads of q, rows of a cache,
// heads of k, and elements of a head; `second` and on are v, cos, sin and keys, `norm` and `bias` values and at.
bool read_turned(const ExchangeApi *api, int device_type, const Turned &asked, Call &call) {
    DLTensor t[kTurnedTensors];
    const bool norms = asked.tensors[kQNormAt];
    if (norms != (asked.tensors[kKNormAt] != nullptr)) return false;
    for (int i = 0; i < kTurnedTensors; ++i)
        if (asked.tensors[i] && (!view(api, asked.tensors[i], t[i]) || (i != kAt && !alike(t[i], t[0])))) return false;
    const auto &[q, k, v, cos, sin, keys, values, at, q_norm, k_norm, out] = t;
    if (q.device.type != device_type || q.dtype.bits != 16 || q.dtype.lanes != 1) return false;
    if (q.dtype.code != kFloat && q.dtype.code != kBfloat) return false;
    if (at.device.type != q.device.type || at.device.id != q.device.id || at.dtype.code != kInt || at.dtype.bits != 64) return false;
    if (at.dtype.lanes != 1 || at.ndim != 1 || at.shape[0] != 1) return false;
    for (int i : {0, 1, 2, 5, 6, kTurnedOut})
        if (t[i].ndim != 4) return false;
    const int64_t batch = q.shape[0], heads = q.shape[1], head = q.shape[3], groups = keys.shape[1], rows = keys.shape[2];
    if (q.shape[2] != 1 || batch < 1 || heads < 1 || groups < 1 || rows < 1 || head < 1 || heads % groups) return false;
    const int64_t new_row[4] = {batch, groups, 1, head}, cache[4] = {batch, groups, rows, head};
    for (int d = 0; d < 4; ++d)
        if (k.shape[d] != new_row[d] || v.shape[d] != new_row[d] || keys.shape[d] != cache[d] || values.shape[d] != cache[d] ||
            out.shape[d] != q.shape[d])
            return false;
    for (const DLTensor *angle : {&cos, &sin})
        if (angle->ndim != 2 || angle->shape[1] != head || (angle->shape[0] != 1 && angle->shape[0] != batch)) return false;
    uintptr_t places = (uintptr_t)address(out);
    for (const DLTensor *norm : {&q_norm, &k_norm}) {
        if (norms && (norm->ndim != 1 || norm->shape[0] != head || (head > 1 && norm->strides[0] != 1))) return false;
        if (norms) places |= (uintptr_t)address(*norm);
    }
    if (!tight(out)) return false;
    int64_t *to = call.strides;
    for (int i = 0; i < 7; ++i) {
        places |= (uintptr_t)address(t[i]);
        if (head > 1 && t[i].strides[t[i].ndim - 1] != 1) return false;
        for (int d = 0, count = i < 3 ? 2 : i < 5 ? 1 : 3; d < count; ++d) {
            *to = t[i].shape[d] == 1 ? 0 : t[i].strides[d];
            if (*to % 8 || *to++ >> 31) return false;
        }
    }
    if ((places & 15) != 0 || !rows_apart(keys) || !rows_apart(values)) return false;
    for (int written : {5, 6, kTurnedOut})
        for (int i = 0; i < kTurnedTensors; ++i)
            if (i != written && asked.tensors[i] &&
                overlap(address(t[written]), span(t[written]), address(t[i]), i == kAt ? 4 : span(t[i])))
                return false;
    call.a = address(q), call.b = address(k), call.second = address(v), call.third = address(cos), call.second_bias = address(sin);
    call.third_bias = address(keys), call.norm = address(values), call.bias = address(at), call.c = address(out);
    call.addend = nullptr;
    if (norms) call.q_norm = address(q_norm), call.k_norm = address(k_norm);
    std::memset(&call.key, 0, sizeof(Key));
    Key &key = call.key;
    key.m = batch, key.n = heads, key.k = rows, key.lda = groups, key.ldb = head;
    key.device = q.device.id, key.dtype = q.dtype.code == kBfloat, key.transposed = kTurned;
    return true;
}

} // namespace
