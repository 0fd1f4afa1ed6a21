"""A workload for the GPU tests: y = 2 x + 1 in CUDA C++, whose faulty siblings are in faults.cu."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sassafras.core import Buffer, Candidate, Case, Custom, Fill, Kernel, Normal, Tolerance, Workload
from sassafras.cuda.compile import compile_cuda

SOURCE = Path(__file__).with_name("faults.cu")
FAULTS = {
    "none": 0, "wrong": 1, "hangs": 2, "illegal_address": 3, "past_the_end": 4, "before_the_beginning": 5,
    "modifies_input": 6, "writes_nothing": 7, "last_element": 8, "wrong_later": 9, "slower": 10,
    "varies": 11,
}  # fmt: skip


def faulty(fault: str, arch: str) -> Kernel:
    """The kernel with one deliberate fault."""
    text = f"#define FAULT {FAULTS[fault]}\n{SOURCE.read_text()}"
    return Kernel(compile_cuda(text, arch, name="faults.cu"), "affine", arch, threads=256)


def candidate(fault: str, arch: str) -> Candidate:
    """The same as a candidate."""
    return Candidate(faulty(fault, arch), {"fault": fault})


def _reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": tensors["x"].double() * 2 + 1}


_NORMAL = Normal()


def _case(n: int, fill: Fill = _NORMAL) -> Case:
    args = {"y": Buffer("fp32", (n,), "out"), "x": Buffer("fp32", (n,), fill=fill), "n": n}
    return Case(str(n), (-(-n // 256), 1, 1), args)


def _build(fault: str) -> Any:
    def build(case: Case, arch: str, ptxas: str | None = None) -> Kernel:
        return faulty(fault, arch)

    return build


def _workload(fault: str) -> Workload:
    return Workload(
        f"affine_{fault}", (_case(1_000_000), _case(999_983), _case(1)), _build(fault), _reference,
        Tolerance(1e-5, 1e-5),
    )  # fmt: skip


workload = _workload("none")
#: differs from itself from run to run, within the tolerance
varying = _workload("varies")
#: its baseline does not match its reference
mistaken = _workload("wrong")
#: its baseline writes out of bounds
stray = _workload("past_the_end")


def _rising(shape: tuple[int, ...], dtype: Any, generator: Any, device: Any) -> Any:
    import torch

    return torch.linspace(0, 1, shape[0], dtype=dtype, device=device)


#: an input that sampling does not draw
rising = Workload(
    "affine_rising", (_case(1_000_000, Custom(_rising)),), _build("none"), _reference, Tolerance(1e-5, 1e-5)
)
