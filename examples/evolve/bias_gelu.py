"""Bias, GELU and gate in CUDA C++ (`bias_gelu.cu`): one hole, the loop over all values."""

# mypy: allow-untyped-defs
from __future__ import annotations

from pathlib import Path

from sassafras.core import Buffer, Case, Tolerance, ToolMissing
from sassafras.frontend.cuda import workload as cuda_workload
from sassafras.sass.tools import find


def reference(tensors):
    """FP64, tanh form."""
    import torch

    v = tensors["x"].double() + tensors["bias"].double()
    return {"y": torch.nn.functional.gelu(v, approximate="tanh") * tensors["gate"].double()}


def _compiler():
    try:
        find("nvcc")
    except ToolMissing:
        return "nvrtc"
    return "nvcc"


def _case(rows: int, cols: int) -> Case:
    return Case(
        name=f"{rows}x{cols}",
        grid=(1056, 1, 1),
        args={
            "y": Buffer("fp32", (rows, cols), role="out"),
            "x": Buffer("fp32", (rows, cols)),
            "bias": Buffer("fp32", (cols,)),
            "gate": Buffer("fp32", (rows, cols)),
            "cols": cols,
            "count": rows * cols,
        },
        loop_trips=-(-rows * cols // (1056 * 256)),
    )


workload = cuda_workload(
    Path(__file__).with_name("bias_gelu.cu"),
    cases=[_case(512, 4096), _case(500, 4100)],
    threads=256,
    entry="bias_gelu",
    compiler=_compiler(),  # the one that proposals are built with
    reference=reference,
    tolerance=Tolerance(rtol=1e-4, atol=1e-5),  # 1 + tanh cancels for large negative values
    name="evolve_bias_gelu",
)
