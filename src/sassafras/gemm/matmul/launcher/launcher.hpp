// The launcher's state, and how a plan is run: everything between a call that was read and its result.
#pragma once
#include "plan.hpp"

#include <unordered_map>

namespace {

using Held = std::shared_ptr<const Plan>;
using Plans = std::unordered_map<Key, Held, Hash>;

struct Launcher {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    const ExchangeApi *api;
    PyTypeObject *tensor, *parameter;
    PyObject *mm; // for two matrices: torch.matmul gets there by a detour
    // launcher_python.py's Torch
    PyObject *matmul, *torch_linear, *empty_bytes, *stream, *grad_enabled, *strict, *modes, *watchers, *views, *admit;
    PyObject *new_empty, *requires_grad, *names; // interned; kwnames ("out",)
    int device_type;
    LaunchKernelEx launch;
    ContextGet context_get;
    ContextPush context_push;
    ContextPop context_pop;
    EncodeTiled encode;
    LtMatmul lt_matmul; // null without cuBLASLt
    Plans *plans;
    unsigned long long hits, misses, refused, served;
};

// No subclass, which may mean anything.
bool unwrapped(const Launcher *self, PyObject *object) {
    return Py_TYPE(object) == self->tensor || Py_TYPE(object) == self->parameter;
}

// Are a plain tensor's bytes its values? (A view with the negative bit set looks like any other to DLPack.)
bool as_it_lies(const Launcher *self, PyObject *object) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->views); ++i) {
        PyObject *said = PyObject_CallOneArg(PyTuple_GET_ITEM(self->views, i), object);
        if (!said) PyErr_Clear();
        Py_XDECREF(said); // True and False outlive it
        if (said != Py_False) return false;
    }
    return true;
}

// May `out` be written past torch's dispatcher? (-1: a Python error)
int admitted(const Launcher *self, PyObject *out) {
    PyObject *said = PyObject_CallOneArg(self->admit, out);
    Py_XDECREF(said);
    return said ? said == Py_True : -1;
}

// Is anything active that wants to see this call (function or dispatch modes, functorch, autocast)?
int observed(PyObject *modes) {
    const Py_ssize_t count = PyTuple_GET_SIZE(modes);
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *said = PyObject_CallNoArgs(PyTuple_GET_ITEM(modes, i));
        if (!said) return -1;
        const int yes = said == Py_None ? 0 : PyObject_IsTrue(said);
        Py_DECREF(said);
        if (yes) return yes;
    }
    return 0;
}

int wants_grad(Launcher *self, PyObject *tensor) {
    PyObject *said = PyObject_GetAttr(tensor, self->requires_grad);
    if (!said) return -1;
    const int yes = said == Py_True;
    Py_DECREF(said);
    return yes;
}

// Would autograd record this call? (-1: a Python error)
int tracked(Launcher *self, const Arguments &asked) {
    int grad = 0;
    for (PyObject *tensor : {asked.a, asked.b, asked.out, asked.bias, asked.addend, asked.norm})
        if (tensor && grad == 0) grad = wants_grad(self, tensor);
    if (grad <= 0) return grad;
    PyObject *said = PyObject_CallNoArgs(self->grad_enabled);
    if (!said) return -1;
    Py_DECREF(said);
    return said == Py_True; // True and False outlive it
}

// --- running a plan ----------------------------------------------------------------------------------------------

// Whether one function of torch does all that is asked for.
bool torch_alone(const Arguments &asked, const Call &call) {
    return call.key.extra == 0 || (asked.linear && call.key.extra == kBiasAlone);
}

// torch.matmul's or linear's result; None where more is asked for, which Python composes.
PyObject *by_torch(Launcher *self, const Arguments &asked, const Call &call) {
    if (!torch_alone(asked, call)) Py_RETURN_NONE;
    PyObject *args[3] = {asked.a, asked.b, asked.linear ? asked.bias : asked.out};
    if (asked.linear) return PyObject_Vectorcall(self->torch_linear, args, asked.bias ? 3 : 2, nullptr);
    return PyObject_Vectorcall(call.matrices ? self->mm : self->matmul, args, 2, asked.out ? self->names : nullptr);
}

// A fresh C, of torch's allocator: record_stream and graph pools work as for any tensor.
PyObject *fresh(Launcher *self, PyObject *like, const Call &call) {
    PyObject *args[9] = {like};
    int count = 1;
    bool ok = true;
    for (int d = 0; d < call.ndim; ++d) ok &= (args[count++] = PyLong_FromLongLong(call.leading[d])) != nullptr;
    ok &= (args[count++] = PyLong_FromLongLong(call.rows)) != nullptr;
    ok &= (args[count++] = PyLong_FromLongLong(call.columns)) != nullptr;
    PyObject *made = ok ? PyObject_VectorcallMethod(self->new_empty, args, (size_t)count, nullptr) : nullptr;
    for (int i = 1; i < count; ++i) Py_XDECREF(args[i]);
    return made;
}

bool current_stream(Launcher *self, int device, void *&stream) {
    PyObject *number = PyLong_FromLong(device);
    if (!number) return false;
    PyObject *result = PyObject_CallOneArg(self->stream, number);
    Py_DECREF(number);
    if (!result) return false;
    stream = PyLong_AsVoidPtr(result);
    Py_DECREF(result);
    return !PyErr_Occurred();
}

// The tensor map for this address: the last four are kept.
int encoded(Launcher *self, MapSpec &map, const uint64_t *values, void *&to) {
    void *at = (void *)(uintptr_t)values[map.which];
    int slot = 0, code = 0;
    while (slot < 4 && map.address[slot] != at) ++slot;
    if (slot == 4) {
        slot = map.next;
        map.next = (map.next + 1) % 4;
        map.address[slot] = nullptr;
        code = self->encode(&map.cached[slot], map.type, map.rank, at, map.dims, map.strides, map.box,
                            map.element_strides, 0, map.swizzle, kPromotion, 0);
        if (code == 0) map.address[slot] = at;
    }
    to = &map.cached[slot];
    return code;
}

// One launch. values: what it is given, by Value.
int start(Launcher *self, const Launch &launch, const uint64_t *values, void *stream) {
    uint64_t words[kMostParameters];
    void *pointers[kMostParameters];
    for (size_t i = 0; i < launch.parameters.size(); ++i) {
        const auto &parameter = launch.parameters[i];
        pointers[i] = &words[i];
        if (parameter.what == kMap) {
            if (int code = encoded(self, *launch.maps[parameter.value], values, pointers[i])) return code;
        } else {
            words[i] = parameter.what == kConstant ? parameter.value : values[parameter.what];
        }
    }
    LaunchConfig how = launch.how;
    how.stream = stream;
    return self->launch(&how, launch.function, pointers, nullptr);
}

// Makes a plan's context current, if it is another one, until the end of a block.
class Current {
  public:
    Current(const Launcher *launcher, void *context) : self(launcher) {
        void *before = nullptr;
        pushed = context && (self->context_get(&before), before != context);
        if (pushed && (code = self->context_push(context))) pushed = false;
    }
    ~Current() {
        void *popped = nullptr;
        if (pushed) self->context_pop(&popped);
    }
    Current(const Current &) = delete;
    Current &operator=(const Current &) = delete;
    int code = 0; // the driver's error

  private:
    const Launcher *self;
    bool pushed;
};

uint64_t float_bits(double value) {
    const float narrow = (float)value;
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    return bits;
}

// 0, or the driver's (cuBLASLt's) error; -1 with a Python error set; kTorch.
int enqueue(Launcher *self, const Plan &plan, const Arguments &asked, const Call &call, void *c, PyObject *&scratch) {
    void *stream = nullptr;
    if (!current_stream(self, call.key.device, stream)) return -1;
    if (stream == kPerThread && plan.workspace) return kTorch; // other threads would be given the same
    void *workspace = nullptr;
    if (plan.workspace) {
        // from torch's allocator, per call: ordered on this stream, and of a graph's own pool while it is captured
        PyObject *args[2] = {PyLong_FromSize_t(plan.workspace), PyLong_FromLong(call.key.device)};
        if (args[0] && args[1]) scratch = PyObject_Vectorcall(self->empty_bytes, args, 2, nullptr);
        Py_XDECREF(args[0]);
        Py_XDECREF(args[1]);
        DLTensor bytes;
        if (!scratch || !view(self->api, scratch, bytes)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "the workspace cannot be read");
            return -1;
        }
        workspace = address(bytes);
    }
    const Current context(self, plan.context);
    if (context.code) return context.code;
    if (plan.kind == Kind::Lt) {
        const float one = 1.0f, zero = 0.0f;
        return self->lt_matmul(plan.handle, plan.operation, &one, call.b, plan.first, call.a, plan.second, &zero, c,
                               plan.out, c, plan.out, plan.algorithm, workspace, plan.workspace, stream);
    }
    const uint64_t addend = asked.beta == 0 ? 0 : (uintptr_t)(asked.addend ? call.addend : c);
    uint64_t values[kValues] = {
        (uintptr_t)call.a,    (uintptr_t)call.b, (uintptr_t)c,           (uintptr_t)workspace,
        (uintptr_t)call.bias, addend,            float_bits(asked.alpha), float_bits(asked.beta), (uint64_t)asked.activation,
        (uintptr_t)call.norm, float_bits(asked.eps), (uintptr_t)call.second, (uintptr_t)call.third,
        (uintptr_t)call.second_bias, (uintptr_t)call.third_bias, (uintptr_t)call.q_norm, (uintptr_t)call.k_norm};
    std::copy(call.strides, call.strides + kMostStrides, values + kStrides);
    for (const auto &launch : plan.launches)
        if (int code = start(self, *launch, values, stream)) return code;
    return 0;
}

// Torch serves a problem from now on, unless another plan than this one does by now.
void give_up(Plans &plans, const Key &key, const Held &plan) {
    const auto at = plans.find(key);
    if (at != plans.end() && at->second == plan) at->second = std::make_shared<const Plan>();
}

// What follows from the driver's error: a warning. (-1: a Python error)
int refused(Launcher *self, const Held &plan, const Call &call, int code) {
    if (PyErr_Occurred()) return -1;
    ++self->refused;
    give_up(*self->plans, call.key, plan);
    return PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                            "sassafras.matmul: a kernel could not be launched (error %d) for %lldx%lldx%lld; torch serves "
                            "this problem from now on", code, (long long)call.key.m, (long long)call.key.n, (long long)call.key.k);
}

// The plan of this problem; null: Python has to look.
Held planned(Launcher *self, const Arguments &asked, Call &call) {
    if (read(self->api, self->device_type, asked, call)) {
        const auto at = self->plans->find(call.key);
        if (at != self->plans->end()) {
            ++self->hits;
            return at->second;
        }
    }
    ++self->misses;
    return nullptr;
}

PyObject *run(Launcher *self, const Held &plan, const Arguments &asked, const Call &call) {
    if (plan->kind == Kind::Torch) return by_torch(self, asked, call);
    if (plan->kind == Kind::Lt) { // its algorithm was chosen without regard to reductions and determinism
        PyObject *said = PyObject_CallNoArgs(self->strict);
        if (!said) return nullptr;
        const int strict = PyObject_IsTrue(said);
        Py_DECREF(said);
        if (strict < 0) return nullptr;
        if (strict) return by_torch(self, asked, call);
    }
    if (asked.out) {
        const int may = admitted(self, asked.out);
        if (may <= 0) return may < 0 ? nullptr : by_torch(self, asked, call);
    }
    PyObject *made = nullptr;
    void *c = call.c;
    if (!asked.out) {
        DLTensor fresh_view;
        made = fresh(self, asked.a, call);
        if (!made) return nullptr;
        if (!view(self->api, made, fresh_view)) {
            Py_DECREF(made);
            Py_RETURN_NOTIMPLEMENTED;
        }
        c = address(fresh_view);
    }
    PyObject *scratch = nullptr;
    const int code = enqueue(self, *plan, asked, call, c, scratch);
    Py_XDECREF(scratch);
    if (code == 0) {
        ++self->served;
        return made ? made : Py_NewRef(asked.out);
    }
    Py_XDECREF(made);
    if (PyErr_Occurred()) return nullptr;
    if (code == kTorch) return by_torch(self, asked, call);
    return refused(self, plan, call, code) < 0 ? nullptr : by_torch(self, asked, call);
}

} // namespace
