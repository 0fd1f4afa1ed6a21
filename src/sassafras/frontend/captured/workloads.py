"""Captured kernels as workloads: the compiler's own cubin with the arguments that the program passed."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sassafras.core import Buffer, Case, Custom, Kernel, Normal, Uniform, Workload, WorkloadError
from sassafras.core.errors import reason
from sassafras.core.workload import DTYPE_BYTES, Argument, Fill
from sassafras.frontend import _image
from sassafras.frontend.triton import ARCHES, bundled_ptxas
from sassafras.sass import Cubin

from .files import Captured, CapturedShape, CapturedVariant, contents
from .values import contents_digest

#: data types by Triton's name where ours differs; sizes and bit patterns are the same
_SAME = {"u16": "i16", "u32": "i32", "u64": "i64", "u1": "i1"}
#: the largest float that an int64 holds: a bound of random whole numbers
_LARGE = 2.0**63 - 1024


@dataclass(frozen=True)
class Contents:
    """Fills a buffer with what the program passed: called by the device, in a worker process.

    Attributes:
        path: of the recorded tensor; its name is the sha256.
        strides: in elements, where the tensor was a view and the buffer is what it spans.
    """

    path: Path
    strides: tuple[int, ...] = ()

    def __call__(self, shape: tuple[int, ...], dtype: Any, generator: Any, device: str) -> Any:
        """A torch tensor of this shape; a shorter recording is repeated, a longer one cut."""
        import numpy as np
        import torch

        try:
            # of any size: the user says up to which tensors are kept
            with np.load(io.BytesIO(contents(self.path, math.inf)), allow_pickle=False) as found:
                data = np.ascontiguousarray(found["data"])
            if contents_digest(data) != self.path.stem:
                raise ValueError("they are damaged")
        except Exception as error:  # of the file, the archive in it, or the array in that
            raise WorkloadError(
                f"captured contents cannot be read: {reason(error)}", where=str(self.path)
            ) from error
        if data.dtype.kind == "u" and data.dtype.itemsize > 1:
            data = data.view(data.dtype.str.replace("u", "i"))  # torch has no large unsigned integers
        flat = np.resize(data, math.prod(shape))
        if self.strides:
            if len(self.strides) != data.ndim or _span(data.shape, self.strides) != len(flat):
                raise WorkloadError("captured contents have another shape", where=str(self.path))
            steps = [step * data.itemsize for step in self.strides]
            np.lib.stride_tricks.as_strided(flat, data.shape, steps)[...] = data
        return torch.from_numpy(flat).to(dtype=dtype, device=device).reshape(shape)


@dataclass(frozen=True)
class CapturedBuilder:
    """Hands out the captured cubin; there is nothing to compile."""

    captured: Captured
    variant: CapturedVariant

    def __call__(self, case: Case, arch: str, ptxas: str | None = None) -> Kernel:
        """The kernel as the program launched it.

        Raises:
            WorkloadError: it is for another architecture, or its files are damaged.
            CubinError: its cubin is.
        """
        where = f"{self.variant.label}, case {case.name}"
        if ptxas is not None:
            raise WorkloadError("a captured cubin cannot be assembled again with another ptxas", where=where)
        data, facts = self.captured.cubin(self.variant), self.variant.facts
        cubin = Cubin.parse(data)
        entry = _image.find_entry(cubin, self.variant.name, where)
        signature = {k: str(v) for k, v in facts["signature"].items() if v != "constexpr"}
        parameters = tuple(signature.items())
        hidden = len(_image.parameter_sizes(entry)) - len(parameters)
        if hidden < 0:
            raise WorkloadError("the cubin takes fewer parameters than were captured", where=where)
        return Kernel(
            cubin=data,
            name=entry.name,
            arch=_image.arch_of(cubin, arch, where),
            threads=int(facts["threads"]),
            shared_bytes=int(facts["shared_bytes"]),
            cluster=(int(facts["ctas"]), 1, 1),
            hidden_args=hidden,
            scratch_bytes=int(facts["scratch_bytes"]),
            parameters=parameters,
            meta={
                "compiler": "triton",
                "triton": self.captured.triton,
                "source_hash": str(facts["source_hash"]),
                "constants": facts["constants"],
                "captured": self.captured.program,
                "config": self.variant.config,
                "signature": signature,
            },
        )

    def ptx(self, case: Case, arch: str) -> str:
        """The PTX that its cubin was made of. Raises WorkloadError: the capture holds none."""
        return self.captured.ptx(self.variant)

    def ptxas_flags(self, case: Case, arch: str) -> tuple[str, ...]:
        """The flags of the program's own ptxas that change code."""
        return tuple(map(str, self.variant.facts.get("ptxas_flags", ())))

    def own_ptxas(self, arch: str) -> str:
        """The program that the Triton here assembles with, which may be the one that made its cubin."""
        try:
            return bundled_ptxas(ARCHES[arch])
        except (ImportError, RuntimeError, KeyError):  # no Triton, or it finds none
            return ""


def workload(captured: Captured, variant: CapturedVariant) -> Workload:
    """The workload of one captured kernel: a case a shape, the most launched first.

    There is no reference in higher precision: candidates are compared with the compiler's code, bit by bit.

    Args:
        captured: the capture.
        variant: one of its `variants`; `Captured.find` finds one by name.

    Raises:
        WorkloadError: the kernel cannot be launched by a device of ours, with the reason.
    """
    if variant.problem:
        raise WorkloadError(variant.problem, where=variant.label)
    if not variant.shapes:
        raise WorkloadError("no shape of it was recorded", where=variant.label)
    return Workload(
        variant.label,
        tuple(_case(captured, variant, shape) for shape in variant.shapes),
        CapturedBuilder(captured, variant),
        source=f"{(captured.folder / captured.index).resolve()}:{variant.digest}",
        meta={"frontend": "capture", "function": variant.function},
    )


def _case(captured: Captured, variant: CapturedVariant, shape: CapturedShape) -> Case:
    where = f"{variant.label}, case {shape.id}"
    args: dict[str, Argument] = {}
    for name, kind in variant.facts["signature"].items():
        if kind == "constexpr":
            continue
        if name not in shape.args:
            raise WorkloadError(f"argument {name!r} was not recorded", where=where)
        value = shape.args[name]
        args[name] = _buffer(captured, variant, name, value, where) if isinstance(value, dict) else value
    x, y, z = shape.grid
    return Case(shape.id, (x * int(variant.facts["ctas"]), y, z), args)


def _buffer(
    captured: Captured, variant: CapturedVariant, name: str, facts: Mapping[str, Any], where: str
) -> Buffer:
    kind = str(facts.get("dtype", facts.get("unsupported")))
    dtype = _SAME.get(kind, kind)
    if dtype not in DTYPE_BYTES:
        raise WorkloadError(f"argument {name!r} has data type {dtype!r}", where=where)
    shape = tuple(max(1, int(n)) for n in facts["shape"]) or (1,)
    strides = tuple(facts.get("strides") or ())
    view = bool(strides) and list(strides) != _row_major(shape)
    if any(step < 0 for step in strides):
        raise WorkloadError(f"argument {name!r} has negative strides", where=where)
    fill: Fill = Normal()
    if facts.get("data"):
        fill = Custom(Contents(captured.folder / f"{facts['data']}.npz", strides if view else ()))
    elif "low" in facts:
        fill = Uniform(*(max(-_LARGE, min(float(n), _LARGE)) for n in (facts["low"], facts["high"] + 1)))
    elif dtype.startswith("i") or dtype == "u8":
        fill = Uniform(0, 2)
    if view:  # what it spans, flat, as the kernel finds its way by the strides that it is passed
        shape = (_span(shape, strides),)
    role = variant.roles.get(name, "inout")
    if role not in ("in", "out", "inout"):
        raise WorkloadError(f"argument {name!r} has role {role!r}", where=where)
    return Buffer(dtype, shape, role, fill)  # type: ignore[arg-type]


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from a view's first to its last."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


def _row_major(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
