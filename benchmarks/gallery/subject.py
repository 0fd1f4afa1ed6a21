"""The workload of the gallery's device code, in a file that a worker can load: ``subject.py:workload``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sassafras.core import Buffer, Case, Kernel, Tolerance, Workload

HERE = Path(__file__).resolve().parent
N = 1 << 20
#: the recurrence's constants as FP32 holds them
FACTOR, ADDEND = 0.9990000128746033, 0.0010000000474974513


def text(file: str, macro: str, number: int) -> str:
    """One exhibit's source: the file, with the number that chooses among its alternatives."""
    return f"#define {macro} {number}\n" + (HERE / file).read_text()


def _reference(tensors: Any) -> Any:
    v = tensors["x"].double()
    for _ in range(400):
        v = v * FACTOR + ADDEND
    return {"y": v}


def _build(case: Case, arch: str, ptxas: str | None = None) -> Kernel:
    from sassafras.cuda.compile import compile_cuda

    return Kernel(compile_cuda(text("cheats.cu", "CHEAT", 0), arch, name="cheats.cu"), "gallery", arch, 256)


CASE = Case("1M", (N // 256, 1, 1), {"y": Buffer("fp32", (N,), "out"), "x": Buffer("fp32", (N,)), "n": N})
workload = Workload(
    "gallery", (CASE,), _build, _reference, Tolerance(2e-4, 2e-4), meta={"accumulate": "fp32"}
)
