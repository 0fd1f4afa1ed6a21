"""RMS norm in CUDA C++ (`rmsnorm.cu`): three holes, the sum, its reduction and the write."""

# mypy: allow-untyped-defs
from __future__ import annotations

from pathlib import Path

from sassafras.core import Buffer, Case, Tolerance, ToolMissing
from sassafras.frontend.cuda import workload as cuda_workload
from sassafras.sass.tools import find


def reference(tensors):
    """FP64."""
    x, w = tensors["x"].double(), tensors["w"].double()
    return {"y": x * (x.square().mean(-1, keepdim=True) + tensors["eps"]).rsqrt() * w}


def _compiler():
    try:
        find("nvcc")
    except ToolMissing:
        return "nvrtc"
    return "nvcc"


def _case(rows: int, cols: int) -> Case:
    return Case(
        name=f"{rows}x{cols}",
        grid=(rows, 1, 1),
        args={
            "y": Buffer("fp32", (rows, cols), role="out"),
            "x": Buffer("fp32", (rows, cols)),
            "w": Buffer("fp32", (cols,)),
            "cols": cols,
            "eps": 1e-5,
        },
        loop_trips=-(-cols // 256),
    )


workload = cuda_workload(
    Path(__file__).with_name("rmsnorm.cu"),
    cases=[_case(1024, 4096), _case(1024, 4000), _case(64, 1024)],
    threads=256,
    entry="rmsnorm",
    compiler=_compiler(),  # the one that proposals are built with
    reference=reference,
    tolerance=Tolerance(rtol=2e-5, atol=1e-6),  # FP32 sums of positive terms, one rsqrt
    name="evolve_rmsnorm",
)
