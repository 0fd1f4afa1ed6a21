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
#include "turned.hpp"
#include "launcher.hpp"

namespace {

// The arguments of a call: 1; 0: Python has to look at them; -1 with a Python error set.
int parse(PyObject *const *args, Py_ssize_t count, Arguments &asked) {
    if (count < 2 || count > 11) {
        PyErr_SetString(PyExc_TypeError, "a, b, out, bias, activation, alpha, beta, addend, norm, eps, constant are expected, by position");
        return -1;
    }
    asked.a = args[0], asked.b = args[1];
    if (count > 2 && args[2] != Py_None) asked.out = args[2];
    if (count > 3 && args[3] != Py_None) asked.bias = args[3];
    for (Py_ssize_t i = 5; i < count && i < 7; ++i) // tensors would be waited for, and their gradients lost
        if (!PyFloat_Check(args[i]) && !PyLong_Check(args[i])) return 0;
    if (count > 4) asked.activation = PyLong_AsLong(args[4]);
    if (count > 5) asked.alpha = PyFloat_AsDouble(args[5]);
    if (count > 6) asked.beta = PyFloat_AsDouble(args[6]);
    if (count > 8 && args[8] != Py_None) asked.norm = args[8];
    if (count > 9) asked.eps = PyFloat_AsDouble(args[9]);
    if (count > 10) asked.constant = args[10] == Py_True;
    if (PyErr_Occurred()) return -1;
    if (count > 7 && args[7] != Py_None && asked.beta != 0) asked.addend = args[7];
    return asked.beta == 0 || asked.out || asked.addend;
}

// Whether a predicate holds for all tensors of a call.
template <class F> bool every(const Launcher *self, const Arguments &asked, F holds) {
    for (PyObject *tensor : {asked.a, asked.b, asked.out, asked.bias, asked.addend, asked.norm})
        if (tensor && !holds(self, tensor)) return false;
    return true;
}

// C; NotImplemented: Python has to look; None: torch serves what Python composes
PyObject *serve(Launcher *self, const Arguments &asked) {
    if (!every(self, asked, unwrapped)) Py_RETURN_NOTIMPLEMENTED;
    Call call;
    const Held plan = planned(self, asked, call);
    if (!plan) Py_RETURN_NOTIMPLEMENTED;
    const bool torchs = plan->kind == Kind::Torch && torch_alone(asked, call);
    const int seen = observed(torchs ? self->watchers : self->modes);
    if (seen < 0) return nullptr;
    if (seen) Py_RETURN_NOTIMPLEMENTED;
    if (torchs) return by_torch(self, asked, call); // which asks the rest itself
    if (!every(self, asked, as_it_lies)) Py_RETURN_NOTIMPLEMENTED;
    const int grad = tracked(self, asked);
    if (grad < 0) return nullptr;
    if (grad) Py_RETURN_NOTIMPLEMENTED;
    return run(self, plan, asked, call);
}

// launcher(a, b, out=None, bias=None, activation's number=0, alpha=1, beta=0, addend=None)
PyObject *called(PyObject *object, PyObject *const *args, size_t flags, PyObject *kwnames) {
    Arguments asked;
    const int usable = parse(args, kwnames ? 0 : PyVectorcall_NARGS(flags), asked);
    if (usable < 0) return nullptr;
    if (!usable) Py_RETURN_NOTIMPLEMENTED;
    return serve((Launcher *)object, asked);
}

// linear(x, weight, bias, residual, activation's number): activation(x @ weight^T + residual + bias)
PyObject *linear(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "x, weight, bias, residual and activation are expected, by position");
        return nullptr;
    }
    Arguments asked;
    asked.a = args[0], asked.b = args[1], asked.linear = true;
    if (args[2] != Py_None) asked.bias = args[2];
    if (args[3] != Py_None) asked.addend = args[3], asked.beta = 1;
    asked.activation = PyLong_AsLong(args[4]);
    if (PyErr_Occurred()) return nullptr;
    return serve((Launcher *)object, asked);
}

// raw(...): the same whatever modes are active
PyObject *raw(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    Arguments asked;
    const int usable = parse(args, count, asked);
    if (usable < 0) return nullptr;
    if (!usable || !every(self, asked, unwrapped) || !every(self, asked, as_it_lies)) Py_RETURN_NOTIMPLEMENTED;
    Call call;
    const Held plan = planned(self, asked, call);
    if (!plan) Py_RETURN_NOTIMPLEMENTED;
    return run(self, plan, asked, call);
}

// key(...): the problem as a tuple, None where no plan can serve it
PyObject *key_of(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    Arguments asked;
    const int usable = parse(args, count, asked);
    if (usable < 0) return nullptr;
    Call call;
    if (!usable || !every(self, asked, unwrapped) || !every(self, asked, as_it_lies) ||
        !read(self->api, self->device_type, asked, call))
        Py_RETURN_NONE;
    return key_tuple(call.key);
}

// True: a kernel was launched, which writes `out`; False: torch serves; the problem as a tuple: there is no plan yet
PyObject *launched(Launcher *self, const Arguments &asked, const Call &call) {
    const auto at = self->plans->find(call.key);
    if (at == self->plans->end()) return key_tuple(call.key);
    const Held plan = at->second;
    if (plan->kind != Kind::Kernel) Py_RETURN_FALSE;
    const int may = admitted(self, asked.out);
    if (may <= 0) return may < 0 ? nullptr : Py_NewRef(Py_False);
    PyObject *scratch = nullptr;
    const int code = enqueue(self, *plan, asked, call, call.c, scratch);
    Py_XDECREF(scratch);
    if (code == 0) Py_RETURN_TRUE;
    return refused(self, plan, call, code) < 0 ? nullptr : Py_NewRef(Py_False);
}

// rows(kind, a, other, bias, out, eps, constant), of plain tensors: True: a kernel was launched; False: torch serves; None: no plan can;
// the problem as a tuple: there is no plan yet
PyObject *rows(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "kind, a, other, bias, out, eps and constant are expected, by position");
        return nullptr;
    }
    const auto given = [&](int i) { return args[i] == Py_None ? nullptr : args[i]; };
    const Rows read{args[1], given(2), given(3), args[4], (uint8_t)PyLong_AsLong(args[0]), args[6] == Py_True};
    Arguments asked;
    asked.a = read.a, asked.b = read.a, asked.out = read.out, asked.norm = read.other, asked.bias = read.bias;
    asked.eps = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred()) return nullptr;
    Call call;
    if (!every(self, asked, unwrapped) || !every(self, asked, as_it_lies) ||
        !read_rows(self->api, self->device_type, read, call))
        Py_RETURN_NONE;
    return launched(self, asked, call);
}

// joined(a, weights and biases of three, norm, out, eps, constant): the same for products that share their rows; None: without
PyObject *joined(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count != 11) {
        PyErr_SetString(PyExc_TypeError, "a, three weights, three biases, norm, out, eps and constant are expected, by position");
        return nullptr;
    }
    for (int i = 0; i < 9; ++i) {
        const bool absent = args[i] == Py_None, wanted = i == 0 || i == 8;
        if (absent ? wanted : !unwrapped(self, args[i]) || !as_it_lies(self, args[i])) Py_RETURN_NONE;
    }
    const auto given = [&](int i) { return args[i] == Py_None ? nullptr : args[i]; };
    const JoinedCall read{args[0], {given(1), given(2), given(3)}, {given(4), given(5), given(6)}, given(7), args[8], args[10] == Py_True};
    Arguments asked;
    asked.a = read.a, asked.b = read.weights[0], asked.out = read.out;
    asked.eps = PyFloat_AsDouble(args[9]);
    if (PyErr_Occurred()) return nullptr;
    Call call;
    if (!read_joined(self->api, self->device_type, read, call)) Py_RETURN_NONE;
    return launched(self, asked, call);
}

// attention(q, k, v, mask, out, scale): the same for one query row a head
PyObject *attention(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "q, k, v, mask, out and scale are expected, by position");
        return nullptr;
    }
    for (int i = 0; i < 5; ++i) {
        const bool absent = i == 3 && args[i] == Py_None;
        if (!absent && (!unwrapped(self, args[i]) || !as_it_lies(self, args[i]))) Py_RETURN_NONE;
    }
    const Attention read{args[0], args[1], args[2], args[3] == Py_None ? nullptr : args[3], args[4]};
    Arguments asked;
    asked.a = read.q, asked.b = read.k, asked.out = read.out;
    asked.eps = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred()) return nullptr;
    Call call;
    if (!read_attention(self->api, self->device_type, read, call)) Py_RETURN_NONE;
    return launched(self, asked, call);
}

// turned(q, k, v, cos, sin, keys, values, at, q_norm, k_norm, out, eps): the same for what is turned ahead of it, and for caches' rows
PyObject *turned(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    auto *self = (Launcher *)object;
    if (count != kTurnedTensors + 1) {
        PyErr_SetString(PyExc_TypeError, "q, k, v, cos, sin, keys, values, at, q_norm, k_norm, out and eps are expected, by position");
        return nullptr;
    }
    Turned read;
    for (int i = 0; i < kTurnedTensors; ++i) {
        const bool absent = (i == kQNormAt || i == kKNormAt) && args[i] == Py_None;
        if (!absent && (!unwrapped(self, args[i]) || !as_it_lies(self, args[i]))) Py_RETURN_NONE;
        read.tensors[i] = absent ? nullptr : args[i];
    }
    Arguments asked;
    asked.a = args[0], asked.b = args[1], asked.out = args[kTurnedOut];
    asked.eps = PyFloat_AsDouble(args[kTurnedTensors]);
    if (PyErr_Occurred()) return nullptr;
    Call call;
    if (!read_turned(self->api, self->device_type, read, call)) Py_RETURN_NONE;
    return launched(self, asked, call);
}

// --- the table of plans --------------------------------------------------------------------------------------------

// add_torch(key)
PyObject *add_torch(PyObject *object, PyObject *tuple) {
    Key key;
    if (!parse_key(tuple, &key)) return nullptr;
    (*((Launcher *)object)->plans)[key] = std::make_shared<const Plan>();
    Py_RETURN_NONE;
}

// add_kernel(key, context, functions, (launches, workspace)): plan.py's KernelPlan
PyObject *add_kernel(PyObject *object, PyObject *args) {
    Key key;
    unsigned long long context;
    PyObject *functions, *launches;
    Py_ssize_t workspace;
    if (!PyArg_ParseTuple(args, "O&KO!(O!n)", parse_key, &key, &context, &PyTuple_Type, &functions, &PyTuple_Type,
                          &launches, &workspace))
        return nullptr;
    auto plan = std::make_shared<Plan>();
    plan->kind = Kind::Kernel;
    plan->context = (void *)(uintptr_t)context;
    plan->workspace = (size_t)workspace;
    const Py_ssize_t count = PyTuple_GET_SIZE(launches);
    if (count < 1 || count != PyTuple_GET_SIZE(functions)) {
        PyErr_SetString(PyExc_ValueError, "a plan has one function a launch, and at least one");
        return nullptr;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        const uint64_t function = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(functions, i));
        if (PyErr_Occurred() || !add_launch(*plan, function, PyTuple_GET_ITEM(launches, i))) return nullptr;
    }
    (*((Launcher *)object)->plans)[key] = std::move(plan);
    Py_RETURN_NONE;
}

// add_lt(key, context, handle, operation, first, second, out, algorithm (64 bytes), workspace)
PyObject *add_lt(PyObject *object, PyObject *args) {
    Key key;
    unsigned long long context, handle, operation, first, second, out;
    const char *blob;
    Py_ssize_t length, workspace;
    if (!PyArg_ParseTuple(args, "O&KKKKKKy#n", parse_key, &key, &context, &handle, &operation, &first, &second, &out, &blob,
                          &length, &workspace))
        return nullptr;
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
    Key key;
    if (!parse_key(tuple, &key)) return nullptr;
    ((Launcher *)object)->plans->erase(key);
    Py_RETURN_NONE;
}

// knows(key): is there a plan for this problem?
PyObject *knows(PyObject *object, PyObject *tuple) {
    Key key;
    if (!parse_key(tuple, &key)) return nullptr;
    return PyBool_FromLong(((Launcher *)object)->plans->count(key) != 0);
}

PyObject *forget(PyObject *object, PyObject *) {
    ((Launcher *)object)->plans->clear();
    Py_RETURN_NONE;
}

PyObject *counts(PyObject *object, PyObject *) {
    auto *self = (Launcher *)object;
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:n}", "hits", self->hits, "misses", self->misses, "refused", self->refused,
                         "ours", self->served, "plans", (Py_ssize_t)self->plans->size());
}

// --- the module ------------------------------------------------------------------------------------------------------

// launcher_python.py's Torch, in part tuples.
constexpr struct { const char *name; PyObject *Launcher::*member; bool tuple; } kAsked[] = {
    {"matmul", &Launcher::matmul, false},     {"linear", &Launcher::torch_linear, false},
    {"empty_bytes", &Launcher::empty_bytes, false},
    {"stream", &Launcher::stream, false},     {"strict", &Launcher::strict, false},
    {"admit", &Launcher::admit, false},       {"grad_enabled", &Launcher::grad_enabled, false},
    {"modes", &Launcher::modes, true},        {"watchers", &Launcher::watchers, true},
    {"views", &Launcher::views, true},
};

template <class F> bool function(PyObject *addresses, const char *name, F &to) {
    PyObject *value = PyDict_GetItemString(addresses, name);
    to = value ? (F)PyLong_AsVoidPtr(value) : nullptr;
    if (!to && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "the driver has no function %s", name);
    return to;
}

// Launcher(exchange, tensor, parameter, mm, torch, device_type, addresses)
int init(PyObject *object, PyObject *args, PyObject *) {
    auto *self = (Launcher *)object;
    PyObject *exchange, *tensor, *parameter, *mm, *torch, *addresses;
    if (!PyArg_ParseTuple(args, "OO!O!OOiO!", &exchange, &PyType_Type, &tensor, &PyType_Type, &parameter, &mm, &torch,
                          &self->device_type, &PyDict_Type, &addresses))
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
        !function(addresses, "cuTensorMapEncodeTiled", self->encode))
        return -1;
    if (PyDict_GetItemString(addresses, "cublasLtMatmul") && !function(addresses, "cublasLtMatmul", self->lt_matmul))
        return -1;
    for (const auto &[name, member, tuple] : kAsked) {
        self->*member = PyObject_GetAttrString(torch, name);
        if (!(self->*member)) return -1;
        if (tuple && !PyTuple_Check(self->*member)) {
            PyErr_Format(PyExc_TypeError, "%s is a tuple", name);
            return -1;
        }
    }
    self->tensor = (PyTypeObject *)Py_NewRef(tensor);
    self->parameter = (PyTypeObject *)Py_NewRef(parameter);
    self->mm = Py_NewRef(mm);
    self->new_empty = PyUnicode_InternFromString("new_empty");
    self->requires_grad = PyUnicode_InternFromString("requires_grad");
    self->names = Py_BuildValue("(s)", "out");
    self->plans = new Plans();
    self->vectorcall = called;
    return self->names && self->new_empty && self->requires_grad ? 0 : -1;
}

void dealloc(PyObject *object) {
    auto *self = (Launcher *)object;
    delete self->plans;
    for (const auto &asked : kAsked) Py_XDECREF(self->*asked.member);
    for (PyObject *held : {(PyObject *)self->tensor, (PyObject *)self->parameter, self->mm, self->new_empty,
                           self->requires_grad, self->names})
        Py_XDECREF(held);
    Py_TYPE(object)->tp_free(object);
}

PyMethodDef methods[] = {
    {"linear", (PyCFunction)(void (*)(void))linear, METH_FASTCALL, "the call with a weight (n, k) as b's transpose"},
    {"raw", (PyCFunction)(void (*)(void))raw, METH_FASTCALL, "run a plan whatever modes are active"},
    {"rows", (PyCFunction)(void (*)(void))rows, METH_FASTCALL, "run a plan of what stands between products"},
    {"joined", (PyCFunction)(void (*)(void))joined, METH_FASTCALL, "run a plan of products that share their rows"},
    {"attention", (PyCFunction)(void (*)(void))attention, METH_FASTCALL, "run a plan of attention of one query row"},
    {"turned", (PyCFunction)(void (*)(void))turned, METH_FASTCALL, "run a plan of what is turned ahead of attention"},
    {"key", (PyCFunction)(void (*)(void))key_of, METH_FASTCALL, "the problem as a tuple, or None"},
    {"add_torch", add_torch, METH_O, "let torch serve a problem"},
    {"add_kernel", add_kernel, METH_VARARGS, "let our kernels serve a problem"},
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
