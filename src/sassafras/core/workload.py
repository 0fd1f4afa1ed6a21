"""A workload: a kernel plus grids, inputs, outputs, a reference and a tolerance, for some shapes.

Everything here is declarative, so that a laptop without torch or a GPU can compile a workload's
kernels; only `reference` and custom fills touch torch, and only where a device runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal

from .errors import WorkloadError
from .kernel import Kernel
from .tensor_map import TensorMap

#: element sizes in bytes of the data types that a buffer may have
DTYPE_BYTES: Mapping[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8e4nv": 1,
    "fp8e5": 1,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u8": 1,
    "i1": 1,
}

Role = Literal["in", "out", "inout"]


@dataclass(frozen=True, slots=True)
class Normal:
    """Fill with normal random values (never zeros: matrix products run faster on zeros).

    Attributes:
        mean, std: mean and standard deviation.
    """

    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, slots=True)
class Uniform:
    """Fill with uniform random values, real or integer by the buffer's type.

    Attributes:
        low, high: bounds; `high` itself is left out.
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise WorkloadError(f"Uniform({self.low}, {self.high}) needs finite bounds, the lower one first")


@dataclass(frozen=True, slots=True)
class Custom:
    """Fill by a function ``fn(shape, torch_dtype, generator, device) -> torch.Tensor``."""

    fn: Callable[..., Any]


Fill = Normal | Uniform | Custom


@dataclass(frozen=True, slots=True)
class Buffer:
    """A contiguous, row-major array argument, passed to the kernel as a pointer.

    Attributes:
        dtype: one of `DTYPE_BYTES`.
        shape: elements along each axis.
        role: ``in`` (must not change), ``out`` (poisoned before each launch), ``inout`` (restored
            before each launch).
        fill: how inputs are made; ignored for ``out``.
    """

    dtype: str
    shape: tuple[int, ...]
    role: Role = "in"
    fill: Fill = Normal()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise WorkloadError(f"unknown dtype {self.dtype!r}", hint=f"one of {', '.join(DTYPE_BYTES)}")
        if self.role not in ("in", "out", "inout"):
            raise WorkloadError(f"unknown role {self.role!r}", hint="in, out or inout")
        shape = self.shape if isinstance(self.shape, tuple | list) else (None,)
        if not all(isinstance(n, int) and n > 0 for n in shape):
            raise WorkloadError(f"shape {self.shape!r} is no tuple of positive whole numbers")

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


#: a run-time argument; a plain int is i32 unless it needs 64 bits, a float is fp32
Argument = Buffer | int | float


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of a workload.

    Attributes:
        name: short and unique within the workload, for example ``"512x4096"``.
        grid: blocks (clusters count as their blocks) along x, y, z; one or two numbers will do, or a function
            of the arguments, constants and options by name that returns them. A workload holds three numbers.
        args: run-time arguments by parameter name, in the kernel's parameter order.
        constants: compile-time constants (Triton constexpr) by name.
        options: compiler options for this case (Triton: num_warps, num_stages, ...).
        loop_trips: assumed trip count of the kernel's main loop, for the timing model only.
    """

    name: str
    grid: tuple[int, int, int]
    args: Mapping[str, Argument]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    loop_trips: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise WorkloadError("a case needs a name")
        for name, value in self.args.items():
            wide = isinstance(value, int) and value.bit_length() > 64
            if wide or not isinstance(value, Buffer | Real | TensorMap):
                raise WorkloadError(
                    f"argument {name!r} is {value!r:.40}, not a Buffer, a float or an int of at most 64 bits",
                    where=f"case {self.name}",
                    hint="None and compile-time values go into constants",
                )
        if not callable(self.grid):
            object.__setattr__(self, "grid", _grid(self.grid, self.name))

    def with_grid(self, values: Mapping[str, Any]) -> Case:
        """The case with three numbers for a grid that is a function; `values` are what it is given.

        Raises:
            WorkloadError: the function raised, or returned no grid.
        """
        if not callable(self.grid):
            return self
        try:
            found = self.grid(values)
        except Exception as error:
            what = f"the grid's function raised {type(error).__name__}: {error}"
            raise WorkloadError(what, where=f"case {self.name}") from error
        return replace(self, grid=_grid(found, self.name))


def _grid(given: Any, case: str) -> tuple[int, int, int]:
    numbers = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not 1 <= len(numbers) <= 3 or not all(isinstance(n, int) and n > 0 for n in numbers):
        raise WorkloadError(
            f"grid is one to three positive whole numbers or a function that returns them, got {given!r}",
            where=f"case {case}",
        )
    x, y, z = (*numbers, 1, 1)[:3]
    return int(x), int(y), int(z)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed difference from the reference: ``|out - ref| <= atol + rtol * |ref|`` elementwise."""

    rtol: float = 1e-3
    atol: float = 1e-3

    def close(self, out: Any, ref: Any) -> Any:
        """Elementwise, bool: within the tolerance of a finite reference, equal to it, or both NaN.

        Args:
            out, ref: arrays of NumPy or of torch, of one shape, wide enough for their difference.
        """
        near = abs(out - ref) <= self.atol + self.rtol * abs(ref)  # of an infinite one everything is that
        return (near & (abs(ref) != math.inf)) | (out == ref) | ((out != out) & (ref != ref))


#: ``reference(tensors) -> {name: tensor}``: torch tensors by argument name (scalars too) in, the
#: expected value of each out/inout buffer out, computed in FP64 or FP32 on upcast inputs
Reference = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def reference_values(reference: Reference, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What a reference returns for these tensors. Raises WorkloadError: it is no table of tensors by name."""
    values, hint = reference(tensors), 'return {"NAME": tensor}: an entry for each out or inout buffer'
    if not isinstance(values, Mapping):
        raise WorkloadError(f"the reference returned {_kind(values)}", hint=hint)
    for name, value in values.items():
        if not hasattr(value, "to"):  # torch is not imported here
            raise WorkloadError(f"the reference returned {_kind(value)} for {name!r}", hint=hint)
    return dict(values)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


#: ``build(case, arch, compiler options) -> Kernel``: set by a frontend
Builder = Callable[..., Kernel]


@dataclass(frozen=True, slots=True)
class Workload:
    """What to optimise. Made by a frontend: `sassafras.frontend.triton.workload(...)` and friends.

    Attributes:
        name: short name, used in the store and in reports.
        cases: the shapes; the first is the headline.
        build: ``build(case, arch) -> Kernel``: compiles the variant that this case selects.
        reference: expected outputs in higher precision, or None (raw cubins: only the baseline is compared).
        tolerance: how far from the reference an output may be.
        source: ``path.py:attribute`` that loads this very workload again in a worker process; set by
            `sassafras.targets.load`.
        meta: provenance, JSON-able (source hash, author, notes).
        exact: fills by argument name whose results are exact in the outputs' types: on each of these sets a
            candidate must give the reference's values, without a tolerance.
        peer: what a trusted library gives at the workload's own precision, called as `reference` is. A
            candidate's error may not exceed its by more than `evaluate.gpu.case_on_gpu`'s factors.
    """

    name: str
    cases: tuple[Case, ...]
    build: Builder = field(repr=False)
    reference: Reference | None = field(default=None, repr=False)
    tolerance: Tolerance = Tolerance()
    source: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    exact: tuple[Mapping[str, Fill], ...] = field(default=(), repr=False)
    peer: Reference | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        flops = self.meta.get("flops", 0.0)
        for right, what in (
            (bool(self.cases), "a workload needs at least one case"),
            (isinstance(self.tolerance, Tolerance), f"{self.tolerance!r} is no Tolerance(rtol, atol)"),
            (self.reference is None or callable(self.reference), "the reference is no function"),
            (
                all(isinstance(n, Real) for n in (flops.values() if isinstance(flops, Mapping) else [flops])),
                f"meta['flops'] is {flops!r}, not a number or numbers by case",
            ),
        ):
            if not right:
                raise WorkloadError(what, where=self.name)
        whole = tuple(c.with_grid({**c.args, **c.constants, **c.options}) for c in self.cases)
        object.__setattr__(self, "cases", whole)
        names = [c.name for c in self.cases]
        if len(set(names)) != len(names):
            raise WorkloadError(f"case names must be unique, got {names}", where=self.name)

    def case(self, name: str | None = None) -> Case:
        """The case of this name; the headline (first) case for None.

        Raises:
            WorkloadError: no case has this name.
        """
        if name is None:
            return self.cases[0]
        for case in self.cases:
            if case.name == name:
                return case
        raise WorkloadError(
            f"no case {name!r}", where=self.name, hint="one of " + ", ".join(c.name for c in self.cases)
        )
