"""One case on the CPU: the kernel in Triton's interpreter, its outputs beside the reference."""

from __future__ import annotations

import dataclasses
import importlib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import Buffer, Case, DeviceError, Tolerance, Workload
from sassafras.frontend.triton import TritonBuilder

from . import interpreter
from .finding import Finding
from .memory import Memory, Traffic

#: bytes of all buffers of a case that is looked at
MOST_BYTES = 1 << 30
#: types that Triton's interpreter rounds otherwise than GPUs: to BF16 it truncates, to FP8 it loses carries
_SMALL_FLOATS = ("bf16", "fp8e4nv", "fp8e5")
#: what the error of a reference says that needs a GPU
_GPU_WORDS = ("cuda", "nvidia driver", "gpu")


class Notes:
    """Collects findings about one case."""

    def __init__(self, case: Case) -> None:
        self.case, self.findings = case, list[Finding]()

    def add(self, level: Any, about: str, text: str) -> None:
        """One finding."""
        self.findings.append(Finding(level, about, text, self.case.name))


def examine(workload: Workload, case: Case, seconds: float, ordered: bool) -> dict[str, Any]:
    """Run a case's kernel where it is Triton's, and its reference; see `Checker`.

    Returns:
        ``findings`` as tables, ``programs`` (run, all) and ``complete``: whether every program ran.
    """
    notes, total = Notes(case), case.grid[0] * case.grid[1] * case.grid[2]
    size = sum(a.nbytes for a in case.args.values() if isinstance(a, Buffer))
    ran = 0
    if size > MOST_BYTES:
        text = f"the case has {size >> 20} MiB of buffers, {MOST_BYTES >> 20} at most"
        notes.add("unchecked", "bounds, values", text)
    elif why := _no_torch():
        notes.add("unchecked", "bounds, values", why)
    else:
        ran = _on_cpu(workload, case, notes, seconds, ordered)
    return {
        "findings": [dataclasses.asdict(one) for one in notes.findings],
        "programs": [ran, total],
        "complete": ran == total,
    }


def _no_torch() -> str:
    try:
        importlib.import_module("torch")
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    return ""


def _on_cpu(workload: Workload, case: Case, notes: Notes, seconds: float, ordered: bool) -> int:
    """Make the buffers, run the kernel where it is Triton's, and the reference; how many blocks ran."""
    build = workload.build if isinstance(workload.build, TritonBuilder) else None
    small = _small(case)
    wide = _wide(case) if build is not None and small else case
    try:
        memory = Memory(wide)
    except DeviceError as error:
        notes.add("wrong", str(error.where), error.what)
        return 0
    except Exception as error:
        notes.add("wrong", _filled(case, error), f"its fill raised {_words(error)}")
        return 0
    before = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    ran = 0 if build is None else _interpret(build, wide, memory, notes, seconds, ordered)
    complete = ran == case.grid[0] * case.grid[1] * case.grid[2]
    _values(workload, wide, memory, before, notes, ran, complete, small, ordered)
    return ran


def _small(case: Case) -> bool:
    return any(isinstance(a, Buffer) and a.dtype in _SMALL_FLOATS for a in case.args.values())


def _wide(case: Case) -> Case:
    """The case with FP32 for the types that the interpreter does not round to as GPUs do."""
    args = {
        name: dataclasses.replace(a, dtype="fp32")
        if isinstance(a, Buffer) and a.dtype in _SMALL_FLOATS
        else a
        for name, a in case.args.items()
    }
    return dataclasses.replace(case, args=args)


def _interpret(
    build: TritonBuilder, case: Case, memory: Memory, notes: Notes, seconds: float, ordered: bool
) -> int:
    """Run the kernel and note what it did to memory; how many programs ran."""
    ctas = int(case.options.get("num_ctas", 1))
    grid = (case.grid[0] // ctas, case.grid[1], case.grid[2])
    values: dict[str, Any] = {**case.args, **case.constants, **memory.tensors()}
    ran = 0
    try:
        for name, heuristic in build.heuristics.items():
            values[name] = heuristic({**values, **case.options})
        ran = interpreter.run(build.kernel, values, grid, memory, seconds=seconds, ordered=ordered)
    except AssertionError as error:
        notes.add("doubtful", "kernel", f"an assertion fails in Triton's interpreter: {error}")
    except Exception as error:
        notes.add("unchecked", "bounds", f"Triton's interpreter cannot run the kernel: {_words(error)}")
    complete = ran == grid[0] * grid[1] * grid[2]
    for segment in memory.segments:
        _traffic(segment.name, segment.buffer, memory.traffic[segment.name], notes, complete)
    if ran and not complete:
        notes.add(
            "unchecked",
            "grid",
            f"{ran} of {grid[0] * grid[1] * grid[2]} programs ran in {seconds:g} s (the grid's corners among "
            "them): whether all of the outputs is written, and what the other programs do",
        )
    if complete and memory.busy < ran:
        notes.add(
            "doubtful", "grid", f"{ran - memory.busy} of {ran} programs touch no memory: is it too large?"
        )
    return ran * ctas


def _traffic(name: str, buffer: Buffer, traffic: Traffic, notes: Notes, complete: bool) -> None:
    """Accesses outside of a buffer, and those that its role does not allow."""
    count = traffic.written.size
    for word, (lanes, element, program) in traffic.strays.items():
        where = f"{element - count} elements past its end" if element >= count else f"{-element} before it"
        if element == count:
            where = "just past its end"
        notes.add(
            "wrong",
            name,
            f"{lanes} elements are {'read' if word == 'load' else 'written'} outside of its {count}, the "
            f"first {where}, by program {program}: its shape {buffer.shape}, the grid or a size is wrong",
        )
    written = bool(traffic.written.any())
    if buffer.role == "in" and written:
        role = "inout" if traffic.read else "out"
        notes.add("wrong", name, f'declared as input, but the kernel writes it: role="{role}"')
    if buffer.role == "out" and traffic.early is not None:
        notes.add(
            "wrong",
            name,
            f'element {traffic.early} is read before it is written: role="inout", with a fill',
        )
    if not complete:
        return
    if buffer.role != "in" and not written:
        level = "wrong" if buffer.role == "out" else "doubtful"
        notes.add(level, name, f'declared as {buffer.role}, but never written: role="in"')
    if buffer.role == "inout" and not traffic.read and traffic.written.all():
        notes.add("doubtful", name, 'all of it is written and none of it read: role="out" would do')


def _values(
    workload: Workload,
    case: Case,
    memory: Memory,
    before: Mapping[str, Any],
    notes: Notes,
    ran: int,
    complete: bool,
    small: bool,
    ordered: bool,
) -> None:
    """The outputs beside the reference's."""
    import torch

    outputs = {s.name: s.buffer for s in memory.segments if s.buffer.role != "in"}
    if workload.reference is None:
        notes.add("unchecked", "reference", "there is none: only the unmodified kernel is compared with")
        if complete:
            _unwritten(memory, outputs, notes, "doubtful")
        return
    given: dict[str, Any] = {name: tensor.clone() for name, tensor in before.items()}
    given |= {name: value for name, value in case.args.items() if not isinstance(value, Buffer)}
    given |= {name: value for name, value in case.constants.items() if name not in given}
    try:
        with torch.no_grad():
            wanted = dict(workload.reference(given))
    except Exception as error:
        text = _words(error)
        if any(word in text.lower() for word in _GPU_WORDS):
            notes.add("unchecked", "reference", f"it needs a GPU: {text}")
        else:
            notes.add("wrong", "reference", f"it raised {text}")
        return
    if unknown := sorted(set(wanted) - set(outputs)):
        what = "is an input" if unknown[0] in case.args else "is no argument"
        notes.add("wrong", "reference", f"it returns {unknown[0]!r}, which {what}: no out or inout buffer")
    for name in sorted(set(outputs) - set(wanted)):
        notes.add("doubtful", name, "the reference says nothing of this output")
    if complete:
        _unwritten(memory, [n for n in outputs if n in wanted], notes, "wrong")
    for name in outputs:
        if name not in wanted:
            continue
        want, got = wanted[name], memory.tensors()[name]
        shape = tuple(getattr(want, "shape", ()))
        if shape != tuple(got.shape):
            text = f"it gives shape {shape} for {name}, the buffer has {tuple(got.shape)}"
            notes.add("wrong", "reference", text)
            continue
        want = want.to(torch.float64).reshape(-1)
        if not workload.tolerance.atol + workload.tolerance.rtol >= 0:
            notes.add("wrong", "tolerance", "rtol and atol must be numbers from 0 up")
            return
        _loose(name, want, before[name].reshape(-1).to(torch.float64), workload.tolerance, notes)
        traffic = memory.traffic[name]
        if not ran or traffic.strays:
            continue  # said already
        if not complete and (traffic.atomic or traffic.read or ordered):
            notes.add("unchecked", name, "its values: programs add to each other's results, and not all ran")
            continue
        # what an inout buffer's programs leave alone must be as it was
        seen = None if outputs[name].role == "inout" and complete else torch.from_numpy(traffic.written)
        _close(name, got.reshape(-1).to(torch.float64), want, seen, workload.tolerance, small, notes)


def _unwritten(memory: Memory, names: Any, notes: Notes, level: str) -> None:
    """Outputs of which a part is never written, though every program ran."""
    for segment in memory.segments:
        written = memory.traffic[segment.name].written
        if segment.name in names and segment.buffer.role == "out" and written.any() and not written.all():
            first = tuple(map(int, np.unravel_index(int(np.argmin(written)), segment.buffer.shape)))
            notes.add(
                level,
                segment.name,
                f"{int((~written).sum())} of {written.size} elements are never written, the first at "
                f"{first}: the grid is too small, or the buffer too large",
            )


def _loose(name: str, want: Any, before: Any, tolerance: Tolerance, notes: Notes) -> None:
    """Would a kernel pass that writes zeros, or that leaves the buffer as it was?"""
    allowed = tolerance.atol + tolerance.rtol * want.abs()
    largest = float(want.abs().max()) if want.numel() else 0.0
    if largest > 0 and bool((want.abs() <= allowed).all()):
        notes.add(
            "wrong",
            "tolerance",
            f"rtol {tolerance.rtol:g} and atol {tolerance.atol:g} accept zeros for {name}, whose largest "
            f"value is {largest:.3g}",
        )


def _close(
    name: str, got: Any, want: Any, seen: Any, tolerance: Tolerance, small: bool, notes: Notes
) -> None:
    """Is every element that was written within the tolerance?"""
    allowed = tolerance.atol + tolerance.rtol * want.abs()
    away = (got - want).abs()
    close = (away <= allowed) | (got == want) | (got.isnan() & want.isnan())
    if seen is not None:
        close |= ~seen
    if bool(close.all()):
        return
    bad = ~close
    worst = float(away[bad].nan_to_num(nan=float("inf")).max())
    text = (
        f"the kernel and the reference differ in {int(bad.sum())} of {bad.numel()} elements, by up to "
        f"{worst:.3g}; rtol {tolerance.rtol:g}, atol {tolerance.atol:g}"
    )
    if small:
        text += " (in Triton's interpreter, which rounds BF16 and FP8 in its own way: a GPU decides)"
    notes.add(
        "doubtful" if small else "wrong", name, f"{text}: reference, tolerance, or an input's role or size"
    )


def _filled(case: Case, error: Exception) -> str:
    """The buffer whose custom fill raised."""
    lines = traceback.extract_tb(error.__traceback__)
    for name, argument in case.args.items():
        fn: Callable[..., Any] | None = getattr(getattr(argument, "fill", None), "fn", None)
        code = getattr(fn, "__code__", None)
        if code is not None and any(line.name == code.co_name for line in lines):
            return name
    return "fill"


def _words(error: BaseException) -> str:
    """An error and the user's line that it came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] + place
