"""One case on the CPU: the kernel in Triton's interpreter, its outputs beside the reference.

Run as a process of its own, which `Checker` starts with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import Buffer, Case, DeviceError, Tolerance, Workload, WorkloadError
from sassafras.core.workload import reference_values
from sassafras.cuda.worker_loop import serve
from sassafras.frontend.triton import TritonBuilder
from sassafras.precheck import interpreter
from sassafras.precheck.finding import Finding, Level
from sassafras.precheck.memory import Memory, Traffic
from sassafras.targets import load

#: bytes of all buffers of a case that is looked at
MOST_BYTES = 1 << 30
#: types that Triton's interpreter rounds otherwise than GPUs: to BF16 it truncates, to FP8 it loses carries
_SMALL_FLOATS = ("bf16", "fp8e4nv", "fp8e5")
#: in the error of a reference that needs a GPU
_GPU_WORDS = ("cuda", "nvidia driver", "gpu")


def examine(workload: Workload, case: Case, seconds: float, ordered: bool) -> dict[str, Any]:
    """Run a case's kernel where it is Triton's, and its reference; see `Checker`.

    Returns:
        ``findings`` as tables, and ``programs``: how many ran, and all.
    """
    size = sum(a.nbytes for a in case.args.values() if isinstance(a, Buffer))
    looked = _Look(workload, case, seconds, ordered)
    try:
        importlib.import_module("torch")
    except ImportError as error:
        looked.add("unchecked", "bounds, values", f"torch cannot be imported: {error}")
    else:
        if size > MOST_BYTES:
            text = f"the case has {size >> 20} MiB of buffers, {MOST_BYTES >> 20} at most"
            looked.add("unchecked", "bounds, values", text)
        else:
            looked.run()
    return {"findings": [asdict(one) for one in looked.findings], "programs": [looked.ran, looked.total]}


class _Look:
    """One case, and what was found about it; see `examine` for the arguments."""

    def __init__(self, workload: Workload, case: Case, seconds: float, ordered: bool) -> None:
        self.workload, self.seconds, self.ordered = workload, seconds, ordered
        self.build = workload.build if isinstance(workload.build, TritonBuilder) else None
        smalls = {n for n, a in case.args.items() if isinstance(a, Buffer) and a.dtype in _SMALL_FLOATS}
        self.small = self.build is not None and bool(smalls)
        wide = {n: replace(a, dtype="fp32") for n, a in case.args.items() if n in smalls}  # type: ignore[type-var]
        self.case = replace(case, args={**case.args, **wide}) if self.small else case
        x, y, z = case.grid
        self.grid = (x // int(case.options.get("num_ctas", 1)), y, z)
        self.ran, self.total = 0, self.grid[0] * y * z
        self.findings: list[Finding] = []

    def add(self, level: Level, about: str, text: str) -> None:
        """One finding."""
        self.findings.append(Finding(level, about, text, self.case.name))

    def run(self) -> None:
        """Buffers, kernel, reference."""
        try:
            self.memory = Memory(self.case)
        except DeviceError as error:
            return self.add("wrong", str(error.where), error.what)
        except Exception as error:
            return self.add("wrong", _filled(self.case, error), f"its fill raised {_words(error)}")
        before = {name: tensor.clone() for name, tensor in self.memory.tensors.items()}
        if self.build is not None:
            self._interpret(self.build)
        return self._reference(before)

    @property
    def complete(self) -> bool:
        """Did every program run?"""
        return self.ran == self.total

    def _interpret(self, build: TritonBuilder) -> None:
        """Run the kernel and note what it did to memory."""
        memory = self.memory
        values: dict[str, Any] = {**self.case.args, **self.case.constants, **memory.tensors}
        try:
            for name, heuristic in build.heuristics.items():
                values[name] = heuristic({**values, **self.case.options})
            self.ran = interpreter.run(build.kernel, values, self.grid, memory, self.seconds, self.ordered)
        except AssertionError as error:
            self.add("doubtful", "kernel", f"an assertion fails in Triton's interpreter: {error}")
        except Exception as error:
            self.add("unchecked", "bounds", f"Triton's interpreter cannot run the kernel: {_words(error)}")
        for segment in memory.segments:
            self._traffic(segment.name, segment.buffer, memory.traffic[segment.name])
        if self.ran and not self.complete:
            text = f"{self.ran} of {self.total} programs ran in {self.seconds:g} s (the grid's corners first)"
            self.add("unchecked", "grid", f"{text}: not whether all of the outputs is written")
        if self.complete and memory.busy < self.ran:
            text = f"{self.ran - memory.busy} of {self.ran} programs touch no memory: is it too large?"
            self.add("doubtful", "grid", text)

    def _traffic(self, name: str, buffer: Buffer, traffic: Traffic) -> None:
        """Accesses outside of a buffer, and those that its role does not allow."""
        count, written = traffic.written.size, bool(traffic.written.any())
        for word, (lanes, element, program) in traffic.strays.items():
            where = f"{element - count} elements past its end" if element > count else "just past its end"
            where = f"{-element} before it" if element < 0 else where
            text = (
                f"{lanes} elements are {word} outside of its {count}, the first {where}, by program {program}"
            )
            self.add("wrong", name, f"{text}: its shape {buffer.shape}, the grid or a size is wrong")
        if buffer.role == "in" and written:
            role = "inout" if traffic.read else "out"
            self.add("wrong", name, f'declared as input, but the kernel writes it: role="{role}"')
        if traffic.early is not None:
            text = f'element {traffic.early} is read before it is written: role="inout", with a fill'
            self.add("wrong", name, text)
        if self.complete and buffer.role != "in" and not written:
            level: Level = "wrong" if buffer.role == "out" else "doubtful"
            self.add(level, name, f'declared as {buffer.role}, but never written: role="in"')
        if self.complete and buffer.role == "inout" and not traffic.read and traffic.written.all():
            self.add("doubtful", name, 'all of it is written and none of it read: role="out" would do')

    def _reference(self, before: Mapping[str, Any]) -> None:
        """What the reference says, beside what the kernel wrote."""
        outputs = {s.name: s.buffer for s in self.memory.segments if s.buffer.role != "in"}
        if self.workload.reference is None:
            self.add("unchecked", "reference", "there is none: only the unmodified kernel is compared with")
            return self._unwritten(outputs, "doubtful")
        given = {**self.case.constants, **self.case.args, **{n: t.clone() for n, t in before.items()}}
        try:
            wanted = reference_values(self.workload.reference, given)
        except WorkloadError as error:
            return self.add("wrong", "reference", str(error))
        except Exception as error:
            text = _words(error)
            if any(word in text.lower() for word in _GPU_WORDS):
                return self.add("unchecked", "reference", f"it needs a GPU: {text}")
            return self.add("wrong", "reference", f"it raised {text}")
        for name in sorted(set(wanted) - set(outputs)):
            what = "an input" if name in self.case.args else "no argument"
            self.add("wrong", "reference", f"it returns {name!r}, which is {what}: no out or inout buffer")
        for name in sorted(set(outputs) - set(wanted)):
            self.add("doubtful", name, "the reference says nothing of this output")
        self._unwritten(set(outputs) & set(wanted), "wrong")
        for name in outputs:
            if name in wanted:
                self._compare(name, outputs[name].role, wanted[name])
        return None

    def _unwritten(self, names: Iterable[str], level: Level) -> None:
        """Outputs of which a part is never written, though every program ran."""
        for segment in self.memory.segments if self.complete else ():
            written = self.memory.traffic[segment.name].written
            if segment.name in names and segment.buffer.role == "out" and written.any() and not written.all():
                first = tuple(map(int, np.unravel_index(int(np.argmin(written)), segment.buffer.shape)))
                text = f"{int((~written).sum())} of {written.size} elements are never written"
                self.add(
                    level,
                    segment.name,
                    f"{text}, the first at {first}: the grid is too small, or the buffer too large",
                )

    def _compare(self, name: str, role: str, want: Any) -> None:
        """One output beside the reference's."""
        import torch

        got, tolerance, traffic = (
            self.memory.tensors[name],
            self.workload.tolerance,
            self.memory.traffic[name],
        )
        shape = tuple(getattr(want, "shape", ()))
        if shape != tuple(got.shape):
            text = f"it gives shape {shape} for {name}, the buffer has {tuple(got.shape)}"
            return self.add("wrong", "reference", text)
        want = want.to(torch.float64).reshape(-1)
        self._loose(name, want, tolerance)
        if not self.ran or traffic.strays:
            return None  # said already
        if not self.complete and (traffic.atomic or traffic.read or self.ordered):
            text = "its values: programs add to each other's results, and not all ran"
            return self.add("unchecked", name, text)
        # what an inout buffer's programs leave alone must be as it was
        whole = role == "inout" and self.complete
        got, allowed = got.reshape(-1).to(torch.float64), tolerance.atol + tolerance.rtol * want.abs()
        close = ((got - want).abs() <= allowed) | (got == want) | (got.isnan() & want.isnan())
        bad = ~close if whole else ~close & torch.from_numpy(traffic.written)
        if not bool(bad.any()):
            return None
        worst = float((got - want).abs()[bad].nan_to_num(nan=float("inf")).max())
        text = (
            f"kernel and reference differ in {int(bad.sum())} of {bad.numel()} elements, by up to {worst:.3g}"
        )
        text += f" (rtol {tolerance.rtol:g}, atol {tolerance.atol:g}): is it the reference, the tolerance, "
        text += "or an input's role or size?"
        if self.small:
            text += "; Triton's interpreter rounds BF16 and FP8 in its own way, a GPU decides"
        return self.add("doubtful" if self.small else "wrong", name, text)

    def _loose(self, name: str, want: Any, tolerance: Tolerance) -> None:
        """Would a kernel pass that writes zeros?"""
        largest = float(want.abs().max()) if want.numel() else 0.0
        if largest > 0 and bool((want.abs() <= tolerance.atol + tolerance.rtol * want.abs()).all()):
            text = f"rtol {tolerance.rtol:g} and atol {tolerance.atol:g} accept zeros for {name}"
            self.add("wrong", "tolerance", f"{text}, whose largest value is {largest:.3g}")


def _filled(case: Case, error: Exception) -> str:
    """The buffer whose custom fill raised."""
    names = {line.name for line in traceback.extract_tb(error.__traceback__)}
    for name, argument in case.args.items():
        fn: Any = getattr(getattr(argument, "fill", None), "fn", None)
        if getattr(fn, "__name__", "") in names:
            return name
    return "fill"


def _words(error: BaseException) -> str:
    """An error and the user's line that it came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300] + place


_load = lru_cache(maxsize=1)(load)


def _answer(message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    workload = _load(message["target"])
    case = workload.case(message["case"])
    return examine(workload, case, message["seconds"], message["ordered"])


if __name__ == "__main__":
    sys.exit(serve({"examine": _answer}))
