"""One calculation as a problem of KernelBench and of flashinfer-bench, with solutions of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BODY = """z = torch.zeros_like(x)
    for i in range(300):
        z = z + torch.softmax(x * scale + y * i, dim=-1)
    return z / 300
"""
MODEL = f"""import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, scale):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
        self.scale = scale

    def forward(self, x, y):
        return work(x + self.bias, y, self.scale)


def work(x, y, scale):
    {BODY}
"""
PROBLEM = (
    MODEL
    + """

def get_inputs():
    return [torch.rand(64, 128), torch.randn(64, 128)]


def get_init_inputs():
    return [128, 2.0]
"""
)
HONEST = MODEL.replace("class Model(", "class ModelNew(")
WRONG = HONEST.replace("+ y * i", "- y * i")
#: remembers results by the contents of the inputs
CACHED = HONEST.replace(
    "        return work(x + self.bias, y, self.scale)",
    "        key = float(x.sum()), float(y.sum())\n"
    "        known = self.__dict__.setdefault('known', {})\n"
    "        if key not in known:\n"
    "            known[key] = work(x + self.bias, y, self.scale)\n"
    "        return known[key]",
)
#: wrong on its very first call, during which compilers may run
FIRST = HONEST.replace(
    "        return work(x + self.bias, y, self.scale)",
    "        calls = self.__dict__['calls'] = self.__dict__.get('calls', 0) + 1\n"
    "        return work(x + self.bias, y, self.scale) * (1.01 if calls == 1 else 1.0)",
)
PATCHED = "import time\ntime.perf_counter = lambda: 0.0\n" + HONEST
#: of addresses, with few headers: a compiler reads those of tensors for 7 s more, torch/extension.h for 20 s
CPP = """
#include <cmath>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

void chain(long x, long y, long z, long rows, long columns, double scale) {
    for (long row = 0; row < rows; ++row) {
        const float *a = (const float *)x + row * columns, *b = (const float *)y + row * columns;
        float *c = (float *)z + row * columns;
        for (long j = 0; j < columns; ++j) c[j] = 0;
        for (int i = 0; i < 300; ++i) {
            float most = -INFINITY, sum = 0;
            for (long j = 0; j < columns; ++j) most = std::fmax(most, a[j] * (float)scale + b[j] * i);
            for (long j = 0; j < columns; ++j) sum += std::exp(a[j] * (float)scale + b[j] * i - most);
            for (long j = 0; j < columns; ++j)
                c[j] += std::exp(a[j] * (float)scale + b[j] * i - most) / sum / 300;
        }
    }
}
"""
INLINE = (
    HONEST[: HONEST.index("def work")]
    + f'from torch.utils.cpp_extension import load_inline\n\nCPP = """{CPP}"""\n'
    + 'made = load_inline(name="chain", cpp_sources=CPP, functions=["chain"], no_implicit_headers=True)\n'
    + """

def work(x, y, scale):
    z = torch.empty_like(x)
    made.chain(x.data_ptr(), y.contiguous().data_ptr(), z.data_ptr(), *x.shape, scale)
    return z
"""
)
DEFINITION: dict[str, Any] = {
    "name": "softmax_chain",
    "op_type": "softmax",
    "axes": {"rows": {"type": "var"}, "columns": {"type": "const", "value": 128}},
    "inputs": {
        "x": {"shape": ["rows", "columns"], "dtype": "float32"},
        "y": {"shape": ["rows", "columns"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"z": {"shape": ["rows", "columns"], "dtype": "float32"}},
    "reference": f"import torch\n\ndef run(x, y, scale):\n    {BODY}",
}
INPUTS = {"x": {"type": "random"}, "y": {"type": "random"}, "scale": {"type": "scalar", "value": 2.0}}


def workload(rows: int, uuid: str) -> dict[str, Any]:
    """A line of a file of workloads."""
    made = {"axes": {"rows": rows}, "inputs": INPUTS, "uuid": uuid}
    return {"definition": "softmax_chain", "workload": made, "solution": None, "evaluation": None}


def solution(text: str, name: str = "mine", style: bool = False, **spec: Any) -> dict[str, Any]:
    """A Solution of one Python file."""
    return {
        "name": name,
        "definition": "softmax_chain",
        "author": "test",
        "spec": {
            "language": "python",
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": style,
            **spec,
        },
        "sources": [{"path": "main.py", "content": text}],
    }


#: C++ bound by tvm-ffi, the format's default: it writes into the tensor that it is given
FFI = """
#include <cmath>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

void run(TensorView x, TensorView y, double scale, TensorView z) {
    const float *a = static_cast<float*>(x.data_ptr()), *b = static_cast<float*>(y.data_ptr());
    float* out = static_cast<float*>(z.data_ptr());
    int rows = x.size(0), width = x.size(1);
    std::vector<float> e(width);
    for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < width; ++c) out[r * width + c] = 0;
        for (int i = 0; i < 300; ++i) {
            float most = -INFINITY, sum = 0;
            for (int c = 0; c < width; ++c)
                most = std::max(most, e[c] = a[r * width + c] * scale + b[r * width + c] * i);
            for (int c = 0; c < width; ++c) sum += e[c] = std::exp(e[c] - most);
            for (int c = 0; c < width; ++c) out[r * width + c] += e[c] / sum / 300;
        }
    }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
#: name -> solution of the definition
SOLUTIONS = {
    "honest": solution(f"import torch\n\ndef run(x, y, scale):\n    {BODY}", "honest"),
    "into": solution(
        f"import torch\n\ndef run(x, y, scale, z0):\n    {BODY.replace('return z', 'z0[:] = z')}",
        "into",
        True,
    ),
    "ffi": {
        **solution("", "ffi", True, language="cpp", entry_point="run.cc::run"),
        "sources": [{"path": "run.cc", "content": FFI}],
    },
    "wrong": solution(f"import torch\n\ndef run(x, y, scale):\n    {BODY.replace('+ y', '- y')}", "wrong"),
    "zeros": solution("import torch\n\ndef run(x, y, scale):\n    return torch.zeros_like(x)\n", "zeros"),
    "typed": solution("def run(x, y, scale):\n    return x.double()\n", "typed"),
    "patched": solution(
        "import torch\ntorch.softmax = None\ndef run(x, y, scale):\n    return x\n", "patched"
    ),
}


def write(folder: Path) -> Path:
    """All files in a folder; returned as it is."""
    texts = {"7_chain": PROBLEM, "honest": HONEST, "wrong": WRONG, "cached": CACHED, "patched": PATCHED}
    for name, text in {**texts, "inline": INLINE, "first": FIRST}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "definition.json").write_text(json.dumps(DEFINITION))
    lines = [workload(64, "small"), workload(96, "large")]
    (folder / "workloads.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, made in SOLUTIONS.items():
        (folder / f"{name}.json").write_text(json.dumps(made))
    return folder
