// The compiled launcher behind sassafras.matmul: two tensors in, one kernel launched (or two), some hundred nanoseconds.
//
// It needs Python's headers and nothing else. Tensors are read through DLPack's C exchange table, which torch
// publishes as `torch.Tensor.__dlpack_c_exchange_api__` (a stable C interface: no torch header, no ABI to match);
// the CUDA driver's functions come as addresses from Python, which found them in the library that torch uses. So
// one build serves every torch, and the tests run it against a stand-in for the driver.
//
// A call looks its problem up in a table of plans that Python filled: run our kernel, a chosen cuBLASLt algorithm,
// or torch.matmul. What is not in the table, or needs care (gradients, modes, autocast), is answered with
// NotImplemented, and Python takes over. Everything runs under the GIL; but whatever calls Python may give it up meanwhile, and
// another thread may then replace any plan. So a call holds its plan, and what it puts together for a launch is its own.
#include "epilogue.hpp"
#include "plan.hpp"

#include <string>
#include <unordered_map>

namespace {

using Held = std::shared_ptr<const Plan>;

struct Launcher {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    const ExchangeApi *api;
    PyTypeObject *tensor, *parameter;
    PyObject *matmul, *mm; // the second for two matrices: torch.matmul gets there by a detour
    PyObject *empty_bytes, *counters, *stream, *grad_enabled;
    PyObject *strict; // must reductions be FP32, or results reproducible?
    PyObject *modes;  // functions that say 0, False or None (this and the next three: eligible.py)
    PyObject *watchers; // the same, of which a call that torch serves depends
    PyObject *views;    // methods that say False of a tensor whose bytes are its values
    PyObject *admit;    // may `out` be written? Raises its version counter
    PyObject *new_empty, *requires_grad, *names; // interned; kwnames ("out",)
    int device_type;
    LaunchKernelEx launch;
    ContextGet context_get;
    ContextPush context_push;
    ContextPop context_pop;
    EncodeTiled encode;
    StreamIsCapturing is_capturing;
    StreamGetId stream_id;
    LtMatmul lt_matmul;
    std::unordered_map<Key, Held, Hash> *plans;
    std::unordered_map<FusedKey, Held, FusedHash> *fused_plans; // see epilogue.hpp
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

bool ours(const Launcher *self, PyObject *object) { return unwrapped(self, object) && as_it_lies(self, object); }

// --- running a plan ----------------------------------------------------------------------------------------------

PyObject *call_torch(Launcher *self, const Call &call, PyObject *a, PyObject *b, PyObject *out) {
    PyObject *args[3] = {a, b, out};
    return PyObject_Vectorcall(call.left.ndim == 2 ? self->mm : self->matmul, args, 2, out ? self->names : nullptr);
}

// A fresh C, of torch's allocator: record_stream and graph pools work as for any tensor.
PyObject *fresh(Launcher *self, PyObject *like, const DLTensor &left, int64_t n) {
    PyObject *args[10] = {like};
    int count = 1;
    bool ok = true;
    for (int d = 0; d + 1 < left.ndim; ++d) ok &= (args[count++] = PyLong_FromLongLong(left.shape[d])) != nullptr;
    ok &= (args[count++] = PyLong_FromLongLong(n)) != nullptr;
    PyObject *made = ok ? PyObject_VectorcallMethod(self->new_empty, args, (size_t)count, nullptr) : nullptr;
    for (int i = 1; i < count; ++i) Py_XDECREF(args[i]);
    return made;
}

bool current_stream(Launcher *self, int device, void *&stream) {
    if (!self->stream) return self->api->current_stream(self->device_type, device, &stream) == 0;
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
int encoded(Launcher *self, MapSpec &map, const uint64_t *operands, void *&to) {
    void *at = (void *)(uintptr_t)operands[map.which];
    int slot = 0, code = 0;
    while (slot < 4 && map.address[slot] != at) ++slot;
    if (slot == 4) {
        slot = map.next;
        map.next = (map.next + 1) % 4;
        map.address[slot] = nullptr;
        code = self->encode(&map.cached[slot], map.type, map.rank, at, map.dims, map.strides, map.box,
                            map.element_strides, map.interleave, map.swizzle, map.promotion, map.fill);
        if (code == 0) map.address[slot] = at;
    }
    to = &map.cached[slot];
    return code;
}

// The driver's error that a DriverError tells of, which is forgotten; -1 with any other exception left as it is.
int driver_error() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const bool usual = value && PyObject_IsInstance(value, PyExc_Exception) == 1; // SystemExit has a code as well
    PyObject *number = usual ? PyObject_GetAttrString(value, "code") : nullptr;
    const long code = number && PyLong_Check(number) ? PyLong_AsLong(number) : 0;
    Py_XDECREF(number);
    PyErr_Clear();
    if (code <= 0) {
        PyErr_Restore(type, value, trace);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return (int)code;
}

// Zeroed words for a launch on this stream, whose context is current. 0, the driver's error, or -1 with a Python error set.
int counters_for(Launcher *self, const Plan &plan, int device, void *stream, uint64_t &to) {
    int capturing = 0;
    if (int code = self->is_capturing(stream, &capturing)) return code;
    unsigned long long id = 0;
    const bool known = !capturing && self->stream_id(stream, &id) == 0;
    constexpr unsigned kept = sizeof plan.counters_of / sizeof plan.counters_of[0];
    for (unsigned i = 0; known && i < kept && i < plan.counters_known; ++i)
        if (plan.counters_of[i].stream_id == id) {
            to = plan.counters_of[i].address;
            return 0;
        }
    PyObject *address = PyObject_CallFunction(self->counters, "niK", (Py_ssize_t)plan.counters, device,
                                              (unsigned long long)(uintptr_t)stream);
    if (!address) return driver_error();
    to = PyLong_AsUnsignedLongLong(address);
    Py_DECREF(address);
    if (PyErr_Occurred()) return -1;
    if (known) plan.counters_of[plan.counters_known++ % kept] = {id, to};
    return 0;
}

// One launch. values: addresses of a, b, c, workspace and counters.
int start(Launcher *self, const Plan &plan, const uint64_t *values, const Given *given, void *stream) {
    uint64_t words[kMostParameters];
    void *pointers[kMostParameters];
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
        const auto &parameter = plan.parameters[i];
        pointers[i] = &words[i];
        if (parameter.what == 6) {
            if (int code = encoded(self, *plan.maps[(size_t)parameter.index], values, pointers[i])) return code;
        } else if (parameter.what < 5) {
            words[i] = values[parameter.what];
        } else if (parameter.what > 6 && given) {
            words[i] = given->values[parameter.what - 7];
        } else {
            words[i] = plan.constants[(size_t)parameter.index];
        }
    }
    LaunchConfig how = plan.launch;
    how.stream = stream;
    return self->launch(&how, plan.function, pointers, nullptr);
}

// Makes a plan's context current, if it is another one, until the end of a block.
class Current {
  public:
    Current(const Launcher *launcher, void *context) : self(launcher) {
        void *before = nullptr;
        pushed = self->context_get && context && (self->context_get(&before), before != context);
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

// 0, or the driver's (cuBLASLt's) error; -1 with a Python error set; kTorch.
int enqueue(Launcher *self, const Plan &plan, const Call &call, void *c, PyObject *&scratch, const Given *given = nullptr) {
    void *stream = nullptr;
    if (!current_stream(self, call.key.device, stream)) return -1;
    if (stream == kPerThread && (plan.workspace || plan.counters)) return kTorch; // other threads would be given the same
    void *workspace = nullptr;
    if (plan.workspace) {
        // from torch's allocator, per call: ordered on this stream, and of a graph's own pool while it is captured
        PyObject *args[2] = {PyLong_FromSize_t(plan.workspace), PyLong_FromLong(call.key.device)};
        if (args[0] && args[1]) scratch = PyObject_Vectorcall(self->empty_bytes, args, 2, nullptr);
        Py_XDECREF(args[0]);
        Py_XDECREF(args[1]);
        DLTensor bytes;
        if (!scratch || view(self->api, scratch, bytes) != Read::Ok) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "the workspace cannot be read");
            return -1;
        }
        workspace = address(bytes);
    }
    const Current context(self, plan.context);
    if (context.code) return context.code;
    uint64_t counters = 0;
    if (plan.counters)
        if (int code = counters_for(self, plan, call.key.device, stream, counters)) return code;
    if (plan.kind == Kind::Lt) {
        const float one = 1.0f, zero = 0.0f;
        return self->lt_matmul(plan.handle, plan.operation, &one, call.b, plan.first, call.a, plan.second, &zero, c,
                               plan.out, c, plan.out, plan.algorithm, workspace, plan.workspace, stream);
    }
    const uint64_t values[5] = {(uint64_t)(uintptr_t)call.a, (uint64_t)(uintptr_t)call.b, (uint64_t)(uintptr_t)c,
                                (uint64_t)(uintptr_t)workspace, counters};
    const int code = start(self, plan, values, given, stream);
    return plan.then && code == 0 ? start(self, *plan.then, values, given, stream) : code;
}

// Torch serves a problem from now on, unless another plan than this one does by now.
template <class Table, class Key> void give_up(Table &plans, const Key &key, const Held &plan) {
    const auto at = plans.find(key);
    if (at != plans.end() && at->second == plan) at->second = std::make_shared<const Plan>();
}

// The plan of this problem; null: Python has to look.
Held planned(Launcher *self, PyObject *a, PyObject *b, PyObject *out, Call &call) {
    if (read(self->api, self->device_type, a, b, out, call) == Read::Ok) {
        const auto at = self->plans->find(call.key);
        if (at != self->plans->end()) {
            ++self->hits;
            return at->second;
        }
    }
    ++self->misses;
    return nullptr;
}

PyObject *run(Launcher *self, const Held &plan, const Call &call, PyObject *a, PyObject *b, PyObject *out) {
    if (plan->kind == Kind::Torch) return call_torch(self, call, a, b, out);
    if (plan->kind == Kind::Lt) { // its algorithm was chosen without regard to reductions and determinism
        PyObject *said = PyObject_CallNoArgs(self->strict);
        if (!said) return nullptr;
        const int strict = PyObject_IsTrue(said);
        Py_DECREF(said);
        if (strict < 0) return nullptr;
        if (strict) return call_torch(self, call, a, b, out);
    }
    if (out) {
        const int may = admitted(self, out);
        if (may <= 0) return may < 0 ? nullptr : call_torch(self, call, a, b, out);
    }
    PyObject *made = nullptr;
    void *c = call.c;
    if (!out) {
        DLTensor fresh_view;
        made = fresh(self, a, call.left, call.key.n);
        if (!made) return nullptr;
        if (view(self->api, made, fresh_view) != Read::Ok) {
            Py_DECREF(made);
            Py_RETURN_NOTIMPLEMENTED;
        }
        c = address(fresh_view);
    }
    PyObject *scratch = nullptr;
    const int code = enqueue(self, *plan, call, c, scratch);
    Py_XDECREF(scratch);
    if (code == 0) {
        ++self->served;
        if (made) return made;
        Py_INCREF(out);
        return out;
    }
    Py_XDECREF(made);
    if (PyErr_Occurred()) return nullptr;
    if (code == kTorch) return call_torch(self, call, a, b, out);
    ++self->refused;
    give_up(*self->plans, call.key, plan);
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                         "sassafras.matmul: a kernel could not be launched (error %d) for %lldx%lldx%lld; torch.matmul "
                         "serves this problem from now on", code, (long long)call.key.m, (long long)call.key.n,
                         (long long)call.key.k) < 0)
        return nullptr;
    return call_torch(self, call, a, b, out);
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
int tracked(Launcher *self, PyObject *const *tensors, int count) {
    int grad = 0;
    for (int i = 0; i < count && grad == 0; ++i)
        if (tensors[i]) grad = wants_grad(self, tensors[i]);
    if (grad <= 0) return grad;
    PyObject *said = PyObject_CallNoArgs(self->grad_enabled);
    if (!said) return -1;
    Py_DECREF(said);
    return said == Py_True; // True and False outlive it
}

PyObject *called(PyObject *object, PyObject *const *args, size_t flags, PyObject *kwnames) {
    auto *self = (Launcher *)object;
    const Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (kwnames || count < 2 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "a, b and perhaps out are expected, by position");
        return nullptr;
    }
    PyObject *a = args[0], *b = args[1], *out = count == 3 && args[2] != Py_None ? args[2] : nullptr;
    PyObject *const tensors[3] = {a, b, out};
    for (PyObject *tensor : tensors)
        if (tensor && !unwrapped(self, tensor)) Py_RETURN_NOTIMPLEMENTED;
    Call call;
    const Held plan = planned(self, a, b, out, call);
    if (!plan) Py_RETURN_NOTIMPLEMENTED;
    const int seen = observed(plan->kind == Kind::Torch ? self->watchers : self->modes);
    if (seen < 0) return nullptr;
    if (seen) Py_RETURN_NOTIMPLEMENTED;
    if (plan->kind == Kind::Torch) return call_torch(self, call, a, b, out); // which asks the rest itself
    for (PyObject *tensor : tensors)
        if (tensor && !as_it_lies(self, tensor)) Py_RETURN_NOTIMPLEMENTED;
    const int grad = tracked(self, tensors, 3);
    if (grad < 0) return nullptr;
    if (grad) Py_RETURN_NOTIMPLEMENTED;
    return run(self, plan, call, a, b, out);
}

// --- an epilogue, batches ------------------------------------------------------------------------------------------

// fused(a, b, out, bias, activation's number, alpha, beta) -> C; NotImplemented: Python has to look; None: torch serves
PyObject *fused(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "a, b, out, bias, activation, alpha and beta are expected, by position");
        return nullptr;
    }
    PyObject *tensors[4] = {args[0], args[1], args[2] == Py_None ? nullptr : args[2], args[3] == Py_None ? nullptr : args[3]};
    for (PyObject *tensor : tensors)
        if (tensor && !ours(self, tensor)) Py_RETURN_NOTIMPLEMENTED;
    for (int i = 5; i < 7; ++i) // tensors would be waited for, and their gradients lost
        if (!PyFloat_Check(args[i]) && !PyLong_Check(args[i])) Py_RETURN_NOTIMPLEMENTED;
    const long activation = PyLong_AsLong(args[4]);
    const double alpha = PyFloat_AsDouble(args[5]), beta = PyFloat_AsDouble(args[6]);
    if (PyErr_Occurred()) return nullptr;
    PyObject *out = tensors[2];
    if (beta != 0 && !out) Py_RETURN_NOTIMPLEMENTED;
    const int grad = tracked(self, tensors, 4);
    if (grad < 0) return nullptr;
    if (grad) Py_RETURN_NOTIMPLEMENTED;
    const int seen = observed(self->modes);
    if (seen < 0) return nullptr;
    if (seen) Py_RETURN_NOTIMPLEMENTED;

    FusedCall call;
    if (read_fused(self->api, self->device_type, tensors[0], tensors[1], out, tensors[3], call) != Read::Ok)
        Py_RETURN_NOTIMPLEMENTED;
    call.key.extra = (uint8_t)((tensors[3] ? 1 : 0) | (beta != 0 ? 2 : 0) | activation << 2);
    const auto at = self->fused_plans->find(call.key);
    if (at == self->fused_plans->end()) Py_RETURN_NOTIMPLEMENTED;
    const Held plan = at->second;
    if (plan->kind == Kind::Torch) Py_RETURN_NONE;
    if (out) {
        const int may = admitted(self, out);
        if (may < 0) return nullptr;
        if (!may) Py_RETURN_NONE;
    }
    PyObject *made = nullptr;
    void *c = call.c;
    if (!out) {
        PyObject *arguments[12] = {tensors[0]};
        int number = 1;
        bool ok = true;
        for (int d = 0; d < call.ndim; ++d) ok &= (arguments[number++] = PyLong_FromLongLong(call.leading[d])) != nullptr;
        ok &= (arguments[number++] = PyLong_FromLongLong(call.rows)) != nullptr;
        ok &= (arguments[number++] = PyLong_FromLongLong(call.key.n)) != nullptr;
        if (ok) made = PyObject_VectorcallMethod(self->new_empty, arguments, (size_t)number, nullptr);
        for (int i = 1; i < number; ++i) Py_XDECREF(arguments[i]);
        DLTensor fresh_view;
        if (!made) return nullptr;
        if (view(self->api, made, fresh_view) != Read::Ok) {
            Py_DECREF(made);
            Py_RETURN_NOTIMPLEMENTED;
        }
        c = address(fresh_view);
    }
    const Given given{{(uint64_t)(uintptr_t)call.bias, beta != 0 ? (uint64_t)(uintptr_t)c : 0, float_bits(alpha),
                       float_bits(beta), (uint64_t)activation}};
    Call plain{};
    plain.key.device = call.key.device;
    plain.a = call.a, plain.b = call.b;
    PyObject *scratch = nullptr;
    const int code = enqueue(self, *plan, plain, c, scratch, &given);
    Py_XDECREF(scratch);
    if (code == 0) {
        ++self->hits, ++self->served;
        return made ? made : Py_NewRef(out);
    }
    Py_XDECREF(made);
    if (PyErr_Occurred()) return nullptr;
    if (code == kTorch) Py_RETURN_NONE;
    ++self->refused;
    give_up(*self->fused_plans, call.key, plan);
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                         "sassafras.matmul: a kernel with an epilogue could not be launched (error %d) for "
                         "%lldx%lldx%lld; torch serves this problem from now on", code, (long long)call.key.m,
                         (long long)call.key.n, (long long)call.key.k) < 0)
        return nullptr;
    Py_RETURN_NONE;
}

// fused_key(a, b, out, bias): the problem as `FusedProblem`, or None
PyObject *fused_key(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "a, b, out and bias are expected, by position");
        return nullptr;
    }
    PyObject *out = args[2] == Py_None ? nullptr : args[2], *bias = args[3] == Py_None ? nullptr : args[3];
    for (PyObject *tensor : {args[0], args[1], out, bias})
        if (tensor && !ours(self, tensor)) Py_RETURN_NONE;
    FusedCall call;
    if (read_fused(self->api, self->device_type, args[0], args[1], out, bias, call) != Read::Ok) Py_RETURN_NONE;
    const FusedKey &key = call.key;
    return Py_BuildValue("(iiLLLiLLLiLLLL)", (int)key.device, (int)key.dtype, (long long)key.m, (long long)key.n,
                         (long long)key.k, (int)key.transposed, (long long)key.lda, (long long)key.ldb, (long long)key.ldc,
                         (int)key.aligned, (long long)key.matrices, (long long)key.step_a, (long long)key.step_b,
                         (long long)key.step_c);
}

// --- Python's side -------------------------------------------------------------------------------------------

PyObject *raw(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count < 2 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "a, b and perhaps out are expected");
        return nullptr;
    }
    PyObject *out = count == 3 && args[2] != Py_None ? args[2] : nullptr;
    if (!ours(self, args[0]) || !ours(self, args[1]) || (out && !ours(self, out))) Py_RETURN_NOTIMPLEMENTED;
    Call call;
    const Held plan = planned(self, args[0], args[1], out, call);
    if (!plan) Py_RETURN_NOTIMPLEMENTED;
    return run(self, plan, call, args[0], args[1], out);
}

PyObject *key_of(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count < 2 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "a, b and perhaps out are expected");
        return nullptr;
    }
    PyObject *out = count == 3 && args[2] != Py_None ? args[2] : nullptr;
    if (!ours(self, args[0]) || !ours(self, args[1]) || (out && !ours(self, out))) Py_RETURN_NONE;
    Call call;
    if (read(self->api, self->device_type, args[0], args[1], out, call) != Read::Ok) Py_RETURN_NONE;
    const Key &key = call.key;
    return Py_BuildValue("(iiLLLiLLLii)", (int)key.device, (int)key.dtype, (long long)key.m, (long long)key.n,
                         (long long)key.k, (int)key.transposed, (long long)key.lda, (long long)key.ldb,
                         (long long)key.ldc, (int)key.aligned, (int)call.exchanged);
}

bool parse_key(PyObject *tuple, Key &key) {
    std::memset(&key, 0, sizeof(Key));
    int device, dtype, transposed, aligned, exchanged;
    long long m, n, k, lda, ldb, ldc;
    if (!PyArg_ParseTuple(tuple, "iiLLLiLLLii", &device, &dtype, &m, &n, &k, &transposed, &lda, &ldb, &ldc, &aligned,
                          &exchanged))
        return false;
    key.m = m, key.n = n, key.k = k, key.lda = lda, key.ldb = ldb, key.ldc = ldc, key.device = device;
    key.dtype = (uint8_t)dtype, key.transposed = (uint8_t)transposed, key.aligned = (uint8_t)aligned;
    return true; // `exchanged` only says how the call was read: the problem is the same
}

// FusedProblem's fields, then `extra`
bool parse_fused_key(PyObject *tuple, FusedKey &key) {
    std::memset(&key, 0, sizeof(FusedKey));
    int device, dtype, transposed, aligned, extra;
    long long m, n, k, lda, ldb, ldc, matrices, step_a, step_b, step_c;
    if (!PyArg_ParseTuple(tuple, "iiLLLiLLLiLLLLi", &device, &dtype, &m, &n, &k, &transposed, &lda, &ldb, &ldc, &aligned,
                          &matrices, &step_a, &step_b, &step_c, &extra))
        return false;
    key.m = m, key.n = n, key.k = k, key.lda = lda, key.ldb = ldb, key.ldc = ldc, key.matrices = matrices;
    key.step_a = step_a, key.step_b = step_b, key.step_c = step_c, key.device = device;
    key.dtype = (uint8_t)dtype, key.transposed = (uint8_t)transposed, key.aligned = (uint8_t)aligned;
    key.extra = (uint8_t)extra;
    return true;
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

// add_torch(key)
PyObject *add_torch(PyObject *object, PyObject *tuple) {
    if (PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) > 11) {
        FusedKey wide;
        if (!parse_fused_key(tuple, wide)) return nullptr;
        (*((Launcher *)object)->fused_plans)[wide] = std::make_shared<const Plan>();
        Py_RETURN_NONE;
    }
    Key key;
    if (!parse_key(tuple, key)) return nullptr;
    (*((Launcher *)object)->plans)[key] = std::make_shared<const Plan>();
    Py_RETURN_NONE;
}

// One parameter: ("a" | "b" | "c" | "workspace" | "counters",), ("value", int), or
// ("map", operand, type, dims, strides, box, element strides, interleave, swizzle, promotion, fill)
bool add_parameter(Plan &plan, PyObject *item) {
    const char *what = PyTuple_Check(item) && PyTuple_GET_SIZE(item) ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(item, 0)) : "";
    if (!what) return false;
    const std::string name = what;
    static const std::string given[] = {"bias", "addend", "alpha", "beta", "activation"};
    for (int i = 0; i < 5; ++i)
        if (name == given[i]) {
            plan.parameters.push_back({7 + i, (int)plan.constants.size()});
            plan.constants.push_back(0);
            return true;
        }
    static const std::string operands[] = {"a", "b", "c", "workspace", "counters"};
    for (int i = 0; i < 5; ++i)
        if (name == operands[i]) {
            plan.parameters.push_back({i, (int)plan.constants.size()});
            plan.constants.push_back(0);
            return true;
        }
    if (name == "value" && PyTuple_GET_SIZE(item) == 2) {
        const uint64_t value = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(item, 1));
        if (PyErr_Occurred()) return false;
        plan.parameters.push_back({5, (int)plan.constants.size()});
        plan.constants.push_back(value);
        return true;
    }
    if (name == "map") {
        auto map = std::make_unique<MapSpec>();
        const char *text;
        const char *operand;
        PyObject *dims, *strides, *box, *steps;
        if (!PyArg_ParseTuple(item, "ssiOOOOiiii", &text, &operand, &map->type, &dims, &strides, &box, &steps,
                              &map->interleave, &map->swizzle, &map->promotion, &map->fill))
            return false;
        map->which = operand[0] - 'a';
        const Py_ssize_t rank = PySequence_Size(dims);
        if (rank < 1 || rank > 5 || map->which < 0 || map->which > 2 || operand[1]) {
            PyErr_SetString(PyExc_ValueError, "a tensor map has one to five extents and belongs to a, b or c");
            return false;
        }
        map->rank = (unsigned)rank;
        if (!numbers(dims, map->dims, map->rank) || !numbers(strides, map->strides, map->rank - 1) ||
            !numbers(box, map->box, map->rank) || !numbers(steps, map->element_strides, map->rank))
            return false;
        plan.parameters.push_back({6, (int)plan.maps.size()});
        plan.maps.push_back(std::move(map));
        return true;
    }
    PyErr_Format(PyExc_ValueError, "no parameter is called %s", what);
    return false;
}

// What a kernel's plan holds of its launch; false with a Python error set.
bool describe(Plan &plan, unsigned long long function, PyObject *grid, unsigned threads, unsigned shared, PyObject *cluster,
              PyObject *parameters, int overlap) {
    unsigned extents[3], clusters[3];
    if (!numbers(grid, extents, 3) || !numbers(cluster, clusters, 3)) return false;
    plan.kind = Kind::Kernel;
    plan.function = (void *)(uintptr_t)function;
    PyObject *fast = PySequence_Fast(parameters, "parameters are a sequence");
    if (!fast) return false;
    bool ok = true;
    for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(fast); ++i)
        ok = add_parameter(plan, PySequence_Fast_GET_ITEM(fast, i));
    Py_DECREF(fast);
    if (!ok) return false;
    if (plan.parameters.size() > kMostParameters) {
        PyErr_Format(PyExc_ValueError, "a kernel takes %d parameters at most", (int)kMostParameters);
        return false;
    }
    plan.launch = {extents[0], extents[1], extents[2], threads, 1, 1, shared, nullptr, nullptr, 0};
    plan.launch.attributes = plan.attributes; // a Plan never moves: it lives behind a pointer
    if (clusters[0] * clusters[1] * clusters[2] > 1) {
        LaunchAttribute &attribute = plan.attributes[plan.launch.count++];
        attribute.id = kClusterDimension;
        attribute.cluster = {clusters[0], clusters[1], clusters[2]};
    }
    if (overlap) {
        LaunchAttribute &attribute = plan.attributes[plan.launch.count++];
        attribute.id = kOverlap;
        attribute.value = 1;
    }
    return true;
}

// add_kernel(key, function, context, grid, threads, shared, cluster, parameters, workspace, counters, overlap=False,
//            behind=None or (function, grid, threads, shared, cluster, parameters, overlap))
PyObject *add_kernel(PyObject *object, PyObject *args) {
    PyObject *tuple, *grid, *cluster, *parameters, *behind = Py_None;
    unsigned long long function, context;
    Py_ssize_t workspace, counters;
    unsigned threads, shared;
    int overlap = 0;
    if (!PyArg_ParseTuple(args, "O!KKOIIOOnn|pO", &PyTuple_Type, &tuple, &function, &context, &grid, &threads, &shared,
                          &cluster, &parameters, &workspace, &counters, &overlap, &behind))
        return nullptr;
    // a problem with an epilogue or batches has three values more (and what the epilogue has)
    Key key;
    FusedKey wide;
    const bool with_more = PyTuple_GET_SIZE(tuple) > 11;
    if (!(with_more ? parse_fused_key(tuple, wide) : parse_key(tuple, key))) return nullptr;
    auto plan = std::make_shared<Plan>();
    if (!describe(*plan, function, grid, threads, shared, cluster, parameters, overlap)) return nullptr;
    plan->context = (void *)(uintptr_t)context;
    plan->workspace = (size_t)workspace, plan->counters = (size_t)counters;
    if (behind != Py_None) {
        if (!PyTuple_Check(behind)) {
            PyErr_SetString(PyExc_TypeError, "a second kernel is a tuple");
            return nullptr;
        }
        int waits = 0;
        if (!PyArg_ParseTuple(behind, "KOIIOOp", &function, &grid, &threads, &shared, &cluster, &parameters, &waits))
            return nullptr;
        plan->then = std::make_unique<Plan>();
        if (!describe(*plan->then, function, grid, threads, shared, cluster, parameters, waits)) return nullptr;
    }
    if (with_more)
        (*((Launcher *)object)->fused_plans)[wide] = std::move(plan);
    else
        (*((Launcher *)object)->plans)[key] = std::move(plan);
    Py_RETURN_NONE;
}

// add_lt(key, context, handle, operation, first, second, out, algorithm (64 bytes), workspace)
PyObject *add_lt(PyObject *object, PyObject *args) {
    PyObject *tuple;
    unsigned long long context, handle, operation, first, second, out;
    const char *blob;
    Py_ssize_t length, workspace;
    if (!PyArg_ParseTuple(args, "O!KKKKKKy#n", &PyTuple_Type, &tuple, &context, &handle, &operation, &first, &second,
                          &out, &blob, &length, &workspace))
        return nullptr;
    Key key;
    if (!parse_key(tuple, key)) return nullptr;
    if (length != 64 || !((Launcher *)object)->lt_matmul) {
        PyErr_SetString(PyExc_ValueError, "an algorithm has 64 bytes, and cuBLASLt has to be there");
        return nullptr;
    }
    auto plan = std::make_shared<Plan>();
    plan->kind = Kind::Lt;
    plan->context = (void *)(uintptr_t)context, plan->handle = (void *)(uintptr_t)handle;
    plan->operation = (void *)(uintptr_t)operation, plan->first = (void *)(uintptr_t)first;
    plan->second = (void *)(uintptr_t)second, plan->out = (void *)(uintptr_t)out;
    plan->workspace = (size_t)workspace;
    std::memcpy(plan->algorithm, blob, 64);
    (*((Launcher *)object)->plans)[key] = std::move(plan);
    Py_RETURN_NONE;
}

// remove(key): the next call asks Python again
PyObject *remove(PyObject *object, PyObject *tuple) {
    if (PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) > 11) {
        FusedKey wide;
        if (!parse_fused_key(tuple, wide)) return nullptr;
        ((Launcher *)object)->fused_plans->erase(wide);
        Py_RETURN_NONE;
    }
    Key key;
    if (!parse_key(tuple, key)) return nullptr;
    ((Launcher *)object)->plans->erase(key);
    Py_RETURN_NONE;
}

// knows(key): is there a plan for this problem?
PyObject *knows(PyObject *object, PyObject *tuple) {
    const auto *self = (Launcher *)object;
    if (PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) > 11) {
        FusedKey wide;
        if (!parse_fused_key(tuple, wide)) return nullptr;
        return PyBool_FromLong(self->fused_plans->count(wide) != 0);
    }
    Key key;
    if (!parse_key(tuple, key)) return nullptr;
    return PyBool_FromLong(self->plans->count(key) != 0);
}

PyObject *forget(PyObject *object, PyObject *) {
    ((Launcher *)object)->plans->clear();
    ((Launcher *)object)->fused_plans->clear();
    Py_RETURN_NONE;
}

PyObject *counts(PyObject *object, PyObject *) {
    auto *self = (Launcher *)object;
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:n}", "hits", self->hits, "misses", self->misses, "refused", self->refused,
                         "ours", self->served, "plans", (Py_ssize_t)self->plans->size());
}

template <class F> bool function(PyObject *addresses, const char *name, F &to) {
    PyObject *value = PyDict_GetItemString(addresses, name);
    to = value ? (F)PyLong_AsVoidPtr(value) : nullptr;
    return !PyErr_Occurred();
}

// Launcher(exchange, tensor, parameter, matmul, mm, empty_bytes, counters, stream, grad_enabled, strict, modes, watchers,
//          views, admit, device_type, addresses)
int init(PyObject *object, PyObject *args, PyObject *) {
    auto *self = (Launcher *)object;
    PyObject *exchange, *tensor, *parameter, *matmul, *mm, *empty_bytes, *counters, *stream, *grad_enabled, *strict;
    PyObject *modes, *watchers, *views, *admit, *addresses;
    int device_type;
    if (!PyArg_ParseTuple(args, "OO!O!OOOOOOOO!O!O!OiO!", &exchange, &PyType_Type, &tensor, &PyType_Type, &parameter, &matmul,
                          &mm, &empty_bytes, &counters, &stream, &grad_enabled, &strict, &PyTuple_Type, &modes,
                          &PyTuple_Type, &watchers, &PyTuple_Type, &views, &admit, &device_type, &PyDict_Type, &addresses))
        return -1;
    auto *api = (const ExchangeApi *)PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
    if (!api) return -1;
    while (api && api->version.major != 1) api = api->previous;
    if (!api || !api->view) {
        PyErr_SetString(PyExc_ValueError, "torch's DLPack table is of another version");
        return -1;
    }
    self->api = api;
    if (!function(addresses, "cuLaunchKernelEx", self->launch) ||
        !function(addresses, "cuCtxGetCurrent", self->context_get) ||
        !function(addresses, "cuCtxPushCurrent", self->context_push) ||
        !function(addresses, "cuCtxPopCurrent", self->context_pop) ||
        !function(addresses, "cuTensorMapEncodeTiled", self->encode) ||
        !function(addresses, "cuStreamIsCapturing", self->is_capturing) ||
        !function(addresses, "cuStreamGetId", self->stream_id) ||
        !function(addresses, "cublasLtMatmul", self->lt_matmul))
        return -1;
    if (!self->launch || !self->encode || !self->is_capturing || !self->stream_id || !self->context_push || !self->context_pop) {
        PyErr_SetString(PyExc_ValueError, "a driver function is missing");
        return -1;
    }
    self->tensor = (PyTypeObject *)Py_NewRef(tensor);
    self->parameter = (PyTypeObject *)Py_NewRef(parameter);
    self->matmul = Py_NewRef(matmul), self->mm = Py_NewRef(mm), self->empty_bytes = Py_NewRef(empty_bytes);
    self->counters = Py_NewRef(counters), self->strict = Py_NewRef(strict);
    self->stream = stream == Py_None ? nullptr : Py_NewRef(stream);
    self->grad_enabled = Py_NewRef(grad_enabled), self->modes = Py_NewRef(modes);
    self->watchers = Py_NewRef(watchers), self->views = Py_NewRef(views), self->admit = Py_NewRef(admit);
    self->device_type = device_type;
    self->new_empty = PyUnicode_InternFromString("new_empty");
    self->requires_grad = PyUnicode_InternFromString("requires_grad");
    self->names = Py_BuildValue("(s)", "out");
    self->plans = new std::unordered_map<Key, Held, Hash>();
    self->fused_plans = new std::unordered_map<FusedKey, Held, FusedHash>();
    self->vectorcall = called;
    return self->names && self->new_empty && self->requires_grad ? 0 : -1;
}

void dealloc(PyObject *object) {
    auto *self = (Launcher *)object;
    delete self->plans;
    delete self->fused_plans;
    for (PyObject *held : {(PyObject *)self->tensor, (PyObject *)self->parameter, self->matmul, self->mm, self->empty_bytes, self->counters, self->strict,
                           self->stream, self->grad_enabled, self->modes, self->watchers, self->views, self->admit,
                           self->new_empty, self->requires_grad, self->names})
        Py_XDECREF(held);
    Py_TYPE(object)->tp_free(object);
}

PyMethodDef methods[] = {
    {"raw", (PyCFunction)(void (*)(void))raw, METH_FASTCALL, "run a plan whatever modes are active"},
    {"key", (PyCFunction)(void (*)(void))key_of, METH_FASTCALL, "the problem as a tuple, or None"},
    {"fused", (PyCFunction)(void (*)(void))fused, METH_FASTCALL, "run a plan with an epilogue or batches"},
    {"fused_key", (PyCFunction)(void (*)(void))fused_key, METH_FASTCALL, "such a problem as a tuple, or None"},
    {"add_torch", add_torch, METH_O, "let torch.matmul serve a problem"},
    {"add_kernel", add_kernel, METH_VARARGS, "let a kernel serve a problem"},
    {"add_lt", add_lt, METH_VARARGS, "let a cuBLASLt algorithm serve a problem"},
    {"remove", remove, METH_O, "drop the plan of a problem"},
    {"knows", knows, METH_O, "whether a problem has a plan"},
    {"forget", forget, METH_NOARGS, "drop all plans"},
    {"counts", counts, METH_NOARGS, "plans found, misses, refused launches, launches, plans"},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject launcher_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "sassafras_launcher", nullptr, -1, nullptr, nullptr, nullptr, nullptr,
                      nullptr};

} // namespace

PyMODINIT_FUNC PyInit_sassafras_launcher() {
    launcher_type.tp_name = "sassafras_launcher.Launcher";
    launcher_type.tp_basicsize = sizeof(Launcher);
    launcher_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
    launcher_type.tp_new = PyType_GenericNew;
    launcher_type.tp_init = init;
    launcher_type.tp_dealloc = dealloc;
    launcher_type.tp_methods = methods;
    launcher_type.tp_call = PyVectorcall_Call;
    launcher_type.tp_vectorcall_offset = offsetof(Launcher, vectorcall);
    if (PyType_Ready(&launcher_type) < 0) return nullptr;
    PyObject *made = PyModule_Create(&module);
    if (!made) return nullptr;
    Py_INCREF(&launcher_type);
    if (PyModule_AddObject(made, "Launcher", (PyObject *)&launcher_type) < 0) return nullptr;
    return made;
}
