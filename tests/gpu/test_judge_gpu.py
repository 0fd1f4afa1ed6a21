"""Solutions of KernelBench and flashinfer-bench on a GPU: Triton and inline CUDA are built in confinement."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sassafras import Judge
from sassafras.core import Verdict

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
PROBLEM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x, y):
        return torch.relu(x * y + self.bias)


def get_inputs():
    return [torch.rand(512, 1024), torch.randn(512, 1024)]


def get_init_inputs():
    return [1024]
"""
PARTS = PROBLEM[: PROBLEM.index("def get_inputs")].replace("class Model(", "class ModelNew(")
CALL = "torch.relu(x * y + self.bias)"
TRITON = (
    "import triton\nimport triton.language as tl\n"
    + PARTS.replace(CALL, "run(x, y, self.bias)")
    + """
@triton.jit
def kernel(out, x, y, bias, n, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x + at, mask) * tl.load(y + at, mask) + tl.load(bias + at % width, mask)
    tl.store(out + at, tl.maximum(value, 0.0), mask)


def run(x, y, bias):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](out, x, y, bias, x.numel(), bias.numel(), BLOCK=1024)
    return out
"""
)
INLINE = (
    "from torch.utils.cpp_extension import load_inline\n"
    + PARTS.replace(CALL, "built.run(x, y, self.bias)")
    + '''
CUDA = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void kernel(float* out, const float* x, const float* y, const float* bias, int n, int width) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) out[at] = fmaxf(x[at] * y[at] + bias[at % width], 0.0f);
}
torch::Tensor run(torch::Tensor x, torch::Tensor y, torch::Tensor bias) {
    auto out = torch::empty_like(x);
    int n = x.numel();
    kernel<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        out.data_ptr<float>(), x.data_ptr<float>(), y.data_ptr<float>(), bias.data_ptr<float>(), n,
        bias.numel());
    return out;
}
"""
CPP = "torch::Tensor run(torch::Tensor x, torch::Tensor y, torch::Tensor bias);"
built = load_inline(name="built", cpp_sources=CPP, cuda_sources=CUDA, functions=["run"])
'''
)
#: the result is late: it is written on a stream that the default stream does not wait for
STREAM = PARTS.replace(
    f"        return {CALL}",
    "        out = torch.empty_like(x)\n"
    "        with torch.cuda.stream(torch.cuda.Stream()):\n"
    "            torch.cuda._sleep(100_000_000)\n"
    f"            out.copy_({CALL})\n"
    "        return out",
)
#: uninitialised memory, which in a shared process holds the reference's result
REUSE = PARTS.replace(CALL, "torch.empty_like(x)")
ZEROES = PARTS.replace(
    f"return {CALL}", "x.zero_()\n        y.zero_()\n        return x + torch.relu(self.bias)"
)
SOLUTIONS = {
    "eager": (PARTS, {Verdict.CORRECT}),
    "triton": (TRITON, {Verdict.CORRECT}),
    "inline": (INLINE, {Verdict.CORRECT}),
    "stream": (STREAM, {Verdict.WRONG_RESULT, Verdict.CHEATED}),
    "reuse": (REUSE, {Verdict.WRONG_RESULT, Verdict.CHEATED}),
    "zeroes": (ZEROES, {Verdict.WRONG_RESULT}),
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    path = tmp_path_factory.mktemp("judge") / "problem.py"
    path.write_text(PROBLEM)
    with Judge(path, device="cuda", call_s=60.0, store=False) as made:
        yield made


@pytest.mark.parametrize("name", SOLUTIONS)
def test_modules_on_a_gpu(judge: Judge, tmp_path: Path, name: str) -> None:
    if name == "inline" and not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    text, verdicts = SOLUTIONS[name]
    (tmp_path / f"{name}.py").write_text(text)
    found = judge(tmp_path / f"{name}.py")
    print(found.summary())
    assert found.verdict in verdicts, found.summary()
    outcome = found.outcomes["inputs"]
    if found.verdict.ok:
        assert outcome.null_interval is not None and outcome.facts["device"] == "cuda"
        assert found.theirs()[0]["metadata"]["hardware"].startswith("NVIDIA")


def test_a_module_beside_itself_is_no_gain(judge: Judge, tmp_path: Path) -> None:
    """The eager module against itself: the A/A control's interval and the candidate's overlap."""
    (tmp_path / "same.py").write_text(PARTS)
    outcome = judge(tmp_path / "same.py").outcomes["inputs"]
    assert outcome.interval is not None and outcome.null_interval is not None
    assert not outcome.interval.outside(outcome.null_interval), outcome


def test_a_solution_of_flashinfer_bench_on_a_gpu(tmp_path: Path) -> None:
    tensor = {"shape": ["rows", "columns"], "dtype": "bfloat16"}
    definition = {
        "name": "relu", "op_type": "relu",
        "axes": {"rows": {"type": "const", "value": 256}, "columns": {"type": "const", "value": 512}},
        "inputs": {"x": tensor}, "outputs": {"z": tensor},
        "reference": "import torch\n\ndef run(x):\n    return torch.relu(x.float() * 3).to(torch.bfloat16)\n",
    }  # fmt: skip
    kernel = """import triton
import triton.language as tl

@triton.jit
def kernel(x, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n).to(tl.float32) * 3
    tl.store(z + at, tl.maximum(value, 0.0).to(tl.bfloat16), at < n)

def run(x, z):
    kernel[(triton.cdiv(x.numel(), 512),)](x, z, x.numel(), BLOCK=512)
"""
    solution = {
        "name": "triton", "definition": "relu", "author": "test",
        "spec": {"language": "triton", "target_hardware": ["cuda"], "entry_point": "main.py::run"},
        "sources": [{"path": "main.py", "content": kernel}],
    }  # fmt: skip
    (tmp_path / "d.json").write_text(json.dumps(definition))
    (tmp_path / "s.json").write_text(json.dumps(solution))
    with Judge(tmp_path / "d.json", device="cuda", call_s=60.0, store=False) as made:
        found = made(tmp_path / "s.json")
    assert found.verdict is Verdict.CORRECT, found.summary()
    assert found.theirs()[0]["evaluation"]["status"] == "PASSED"
