"""`Problem`: trusted Python functions as a workload with fresh inputs, a reference and a baseline."""

from __future__ import annotations

import hashlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sassafras.core import Buffer, Case, Tolerance, Workload, WorkloadError
from sassafras.evaluate.gpu.guarded_buffers import TORCH_DTYPES
from sassafras.evaluate.host import HostSource

#: our names of torch's types
DTYPES = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}
#: inputs by name in the order of the call, tensors and numbers, all from one seed
Draw = Callable[[int], Mapping[str, Any]]


@dataclass(frozen=True)
class Problem:
    """What solutions are to compute, in the format of a public benchmark.

    Attributes:
        format: whose format.
        name: of the problem.
        workload: cases, reference and tolerance; its ``build`` raises, since there is no kernel.
        baseline: the problem's own program, which solutions are compared with.
        draws: inputs of each case from a seed.
        digest: sha256 of the problem's text.
        solution: ``solution(text, name)``: a candidate of this problem, not executed, its name in its
            recipe. Raises WorkloadError.
        given: the workloads as they were written, by case, to write them back.
    """

    format: Literal["kernelbench", "flashinfer-bench"]
    name: str
    workload: Workload
    baseline: HostSource
    draws: Mapping[str, Draw]
    digest: str
    solution: Callable[[str, str], HostSource] = field(repr=False)
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)


def workload_of(
    name: str,
    draws: Mapping[str, Draw],
    written: Callable[..., Any],
    wide: Callable[[], Callable[..., Any]],
    *,
    outputs: Sequence[str] | None,
    tolerance: Callable[[str], float],
    device: str,
    where: str,
    meta: Mapping[str, Any],
) -> Workload:
    """A workload from functions of tensors, which are called to learn what they return.

    The reference calculates in FP64 where `wide` runs on inputs in FP64 and agrees with `written`; elsewhere
    it is `written` itself. The absolute tolerance shrinks with outputs that are smaller than 1, so that zeros
    are never near enough.

    Args:
        name: of the workload.
        draws: inputs of each case; no case may give the same for every seed.
        written: the problem's own function.
        wide: makes a function that calculates in FP64.
        outputs: names of what is returned; None for ``out``, or ``out0``, ``out1``, ...
        tolerance: relative and absolute tolerance by dtype (`core.workload.DTYPE_BYTES`) of the first output.
        device: where the reference runs, ``cpu`` or ``cuda``.
        where: the problem, for errors.
        meta: provenance.

    Raises:
        WorkloadError: the function raised, returned no tensors, gives other results for equal inputs, or the
            same for other inputs, or an input has a type that is not judged.
    """

    def call(function: Callable[..., Any], given: Mapping[str, Any], as_double: bool = False) -> list[Any]:
        import torch

        def put(value: Any) -> Any:
            if not torch.is_tensor(value):
                return value
            value = value.to(device)
            return value.double() if as_double and value.is_floating_point() else value

        cudnn = torch.backends.cudnn
        with torch.no_grad(), cudnn.flags(enabled=cudnn.enabled, allow_tf32=False):
            got = function(*(put(value) for value in given.values()))
        if isinstance(got, Mapping):
            got = [got[output] for output in outputs or got]
        several = list(got) if isinstance(got, tuple | list) else [got]
        if any(each is None for each in several):
            raise WorkloadError("it returned None, not a tensor", where=where)
        return [torch.as_tensor(each).cpu() for each in several]

    def agrees(one: Sequence[Any], other: Sequence[Any]) -> bool:
        return all(
            a.shape == b.shape and bool(limit.close(a.double(), b.double()).all())
            for a, b in zip(one, other, strict=True)
        )

    cases: list[Case] = []
    names: Sequence[str] = ()
    doubled: Callable[..., Any] | None = wide()
    limit = Tolerance(0.0, 0.0)
    for case, draw in draws.items():
        with located(where):
            first, second = draw(1), draw(2)  # what is judged gets other seeds
        taken = Case(case, (1, 1, 1), _arguments(first, second, case, where))
        with located(where):
            got, again, other = (call(written, given) for given in (first, first, second))
        names = outputs or ([f"out{i}" for i in range(len(got))] if len(got) > 1 else ["out"])
        if len(names) != len(got):
            raise WorkloadError(f"the reference returns {len(got)} outputs, not {len(names)}", where=where)
        buffers = {n: _buffer(n, tensor, "out", where) for n, tensor in zip(names, got, strict=True)}
        if not cases:
            size = max(float(tensor.double().square().mean().sqrt()) for tensor in got)
            relative = tolerance(buffers[names[0]].dtype)
            limit = Tolerance(relative, relative * min(1.0, size))
        if not agrees(got, again):
            raise WorkloadError(
                "it gives other results each time for the same inputs, so that nothing can be compared",
                where=where,
                hint="dropout, or state kept from call to call",
            )
        if all(a.shape == b.shape for a, b in zip(got, other, strict=True)) and agrees(got, other):
            raise WorkloadError(
                "its outputs are the same for other inputs, so that a constant would be a solution",
                where=where,
            )
        if doubled is not None:
            try:
                right = agrees(call(doubled, first, True), got)
            except Exception:  # whatever a program raises that was written for FP32
                right = False
            doubled = doubled if right else None
        cases.append(replace(taken, args={**taken.args, **buffers}))

    def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {n: tensors[n] for n in cases[0].args if n not in names}
        used = call(written, inputs) if doubled is None else call(doubled, inputs, True)
        return dict(zip(names, used, strict=True))

    def build(case: Case, *_: Any, **__: Any) -> Any:
        raise WorkloadError("a problem of Python functions has no kernel to compile", where=where)

    facts = {**meta, "reference": "as written" if doubled is None else "fp64"}
    return Workload(name, tuple(cases), build, reference, limit, meta=facts)


def _arguments(first: Mapping[str, Any], second: Mapping[str, Any], case: str, where: str) -> dict[str, Any]:
    """Buffers and numbers of a case, from two draws of its inputs."""
    import torch

    tensors = {name: value for name, value in first.items() if torch.is_tensor(value)}
    if all(torch.equal(value, second[name]) for name, value in tensors.items()):
        raise WorkloadError(
            f"the inputs of {case} are the same for every seed: a remembered result would look calculated",
            where=where,
            hint="draw at least one input at random",
        )
    return {
        name: _buffer(name, value, "in", where) if name in tensors else value for name, value in first.items()
    }


def _buffer(name: str, tensor: Any, role: Literal["in", "out"], where: str) -> Buffer:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in DTYPES:
        raise WorkloadError(
            f"{name} is {kind}, which is not judged", where=where, hint=f"one of {', '.join(DTYPES)}"
        )
    return Buffer(DTYPES[kind], tuple(tensor.shape), role)


def execute(text: str, where: str) -> dict[str, Any]:
    """The names that a trusted program defines.

    Raises:
        WorkloadError: it cannot be compiled, or raised.
    """
    module = types.ModuleType(f"sassafras_problem_{digest_of(text)[:16]}")
    module.__file__ = where
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
    with located(where):
        exec(compile(text, where, "exec"), vars(module))
    return vars(module)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Errors of a trusted program say at which of its lines they arose. Raises WorkloadError."""
    try:
        yield
    except WorkloadError:
        raise
    except SyntaxError as error:
        raise WorkloadError(f"syntax error: {error.msg}", where=f"{where}:{error.lineno}") from error
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == where]
        place = f"{where}:{lines[-1]}" if lines else where
        what = str(error).partition("\n")[0]
        raise WorkloadError(f"it raised {type(error).__name__}: {what}", where=place) from error


def digest_of(*texts: str) -> str:
    """sha256 of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
