"""flashinfer-bench: Definition, Workload and Solution in; traces out.

Facts: flashinfer-ai/flashinfer-bench 0.1.2, its folders data and bench. Arguments are passed by position in
the order of the Definition. The outputs follow where ``destination_passing_style`` of the Solution says so or
is left out. Elements may differ by 1e-2, absolutely and relatively.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from sassafras.core import Buffer, Evaluation, ToolMissing, Verdict, WorkloadError
from sassafras.core.errors import reason
from sassafras.evaluate.host import HostSource
from sassafras.evaluate.host.child import NATIVE
from sassafras.frontend.description import typed

from .problem import DTYPES, Draw, Problem, digest_of, execute, workload_of

#: languages that the confined process runs
_LANGUAGES = ("python", "triton", "tilelang", "cpp", "cuda")
_TOLERANCE = 1e-2
_STATUS = {
    Verdict.CORRECT: "PASSED",
    Verdict.COMPILE_ERROR: "COMPILE_ERROR",
    Verdict.UNSUPPORTED: "COMPILE_ERROR",
    Verdict.TIMED_OUT: "TIMEOUT",
}
#: what a wrong result failed at (`facts["failed"]`) -> their status
_WRONG = {"shape": "INCORRECT_SHAPE", "dtype": "INCORRECT_DTYPE"}
_Object = Mapping[str, Any]
#: axes (none for a scalar) and dtype of a tensor
_Spec = tuple[Sequence[str], str]


def problem(
    text: str,
    path: Path,
    workloads: tuple[str, str] | None,
    *,
    case: str | None,
    device: str,
    tolerance: float | None,
) -> Problem:
    """A problem from the text of a Definition, whose reference is executed.

    Args:
        text: of the Definition.
        path: its file; safetensors files of workloads lie in a folder above it.
        workloads: text and name of the file of workloads, one a line; None where all axes are constant.
        case: only the workload with this uuid.
        device: where the reference runs.
        tolerance: instead of flashinfer-bench's own.

    Raises:
        WorkloadError: something is missing, of another type, or cannot be judged.
    """
    where = str(path)
    definition = _object(text, where)
    name, axes = typed(definition, "name", str, where), typed(definition, "axes", dict, where)
    inputs, outputs = (_tensors(definition, kind, axes, where) for kind in ("inputs", "outputs"))
    if not inputs or not outputs or set(inputs) & set(outputs):
        raise WorkloadError("it needs inputs and outputs, of different names", where=where)
    reference = typed(definition, "reference", str, where)
    function = execute(reference, f"{where}: reference").get("run")
    if not callable(function):
        raise WorkloadError("its reference defines no function 'run'", where=where)
    given = _workloads(workloads, name) if workloads else {"constant": {"axes": {}}}
    if case is not None and case not in given:
        raise WorkloadError(f"no workload {case!r}", where=where, hint=f"one of {', '.join(given)}")
    given = given if case is None else {case: given[case]}
    sizes = {uuid: _sizes(axes, workload, f"{where}: {uuid}") for uuid, workload in given.items()}
    draws = {
        uuid: _drawer(inputs, workload, sizes[uuid], path, f"{where}: {uuid}")
        for uuid, workload in given.items()
    }
    made = workload_of(
        name,
        draws,
        function,
        lambda: function,
        outputs=list(outputs),
        tolerance=lambda dtype: _TOLERANCE if tolerance is None else tolerance,
        device=device,
        where=where,
        meta={"format": "flashinfer-bench", "op_type": typed(definition, "op_type", str, where)},
    )
    for one in made.cases:
        for output, (shape, dtype) in outputs.items():
            due = Buffer(DTYPES[dtype], tuple(sizes[one.name][axis] for axis in shape), "out")
            if one.args[output] != due:
                what = f"the reference returns {output} as {one.args[output]}, not as {due}"
                raise WorkloadError(what, where=where)
    return Problem(
        "flashinfer-bench",
        name,
        made,
        HostSource(reference, "run", "position", builds=True),
        draws,
        digest_of(text, json.dumps(given, sort_keys=True)),
        lambda solution, called: _solution(solution, called, name),
        given,
    )


def _solution(text: str, where: str, definition: str) -> HostSource:
    fields = _object(text, where)
    name, of = typed(fields, "name", str, where), typed(fields, "definition", str, where)
    if of != definition:
        raise WorkloadError(f"it solves {of!r}, not {definition!r}", where=where)
    spec = typed(fields, "spec", dict, where)
    language = typed(spec, "language", str, where)
    if language not in _LANGUAGES:
        hint = f"one of {', '.join(_LANGUAGES)}"
        raise WorkloadError(f"unknown language {language!r}", where=where, hint=hint)
    files: dict[str, str] = {}
    for source in typed(fields, "sources", list, where):
        place = PurePosixPath(typed(typed({"source": source}, "source", dict, where), "path", str, where))
        if place.is_absolute() or ".." in place.parts or str(place) in files or not place.suffix:
            raise WorkloadError(f"a source's path is {str(place)!r}", where=where, hint="relative, once each")
        files[str(place)] = typed(source, "content", str, where)
    entry, colons, function = typed(spec, "entry_point", str, where).partition("::")
    if not colons or entry not in files:
        raise WorkloadError(
            f"its entry_point {spec['entry_point']!r} names none of its sources",
            where=where,
            hint="FILE::FUNCTION",
        )
    binding: Any = typed(spec, "binding", str, where, "tvm-ffi")
    native = language in ("cpp", "cuda")
    if binding not in ("torch", "tvm-ffi") or not entry.endswith(NATIVE if native else ".py"):
        raise WorkloadError(f"{entry!r} with the binding {binding!r} is no source in {language}", where=where)
    into = typed(spec, "destination_passing_style", bool, where, True)
    return HostSource(
        files.pop(entry),
        function,
        "destination" if into else "position",
        path=entry,
        binding=binding,
        files=files,
        builds=True,
        recipe={"origin": "given", "name": name},
    )


def traces(
    problem: Problem,
    solution: str,
    outcomes: Mapping[str, Evaluation],
    facts: Mapping[str, _Object],
    environment: _Object,
) -> list[dict[str, Any]]:
    """Traces, one a workload. Ours are in ``log`` and, where there is one, in ``correctness.extra``.

    Args:
        problem: what was judged.
        solution: the solution's name.
        outcomes: by case.
        facts: what we say of each, by case.
        environment: hardware and libraries.
    """
    rows = []
    for case, outcome in outcomes.items():
        status = _STATUS.get(outcome.verdict, "RUNTIME_ERROR")
        if outcome.verdict is Verdict.WRONG_RESULT:
            status = _WRONG.get(str(outcome.facts.get("failed")), "INCORRECT_NUMERICAL")
        said: dict[str, Any] = {
            "status": status,
            "environment": environment,
            "timestamp": datetime.now(UTC).isoformat(),
            "log": f"sassafras: {outcome.verdict}{': ' if outcome.detail else ''}{outcome.detail}",
        }
        if status in ("PASSED", "INCORRECT_NUMERICAL"):
            absolute, relative = (number(value) for value in outcome.facts.get("error", (0.0, 0.0)))
            said["correctness"] = {
                "max_relative_error": relative,
                "max_absolute_error": absolute,
                "extra": {"sassafras": facts[case]},
            }
        if status == "PASSED":
            said["performance"] = {
                "latency_ms": (outcome.time_us or 0.0) / 1000,
                "reference_latency_ms": (outcome.baseline_us or 0.0) / 1000,
                "speedup_factor": outcome.speedup or 0.0,
            }
        workload = {"uuid": case, "inputs": {}, **problem.given[case]}
        rows.append(
            {"definition": problem.name, "workload": workload, "solution": solution, "evaluation": said}
        )
    return rows


def number(value: float) -> float | str:
    """As their JSON has it: infinities and NaN as strings."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity"


def _object(text: str, where: str) -> dict[str, Any]:
    """An object of JSON; a field that is null is as good as missing."""
    try:
        found = json.loads(
            text, object_hook=lambda fields: {k: v for k, v in fields.items() if v is not None}
        )
        json.dumps(found, ensure_ascii=False).encode()  # an escaped half of a surrogate pair is no text
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise WorkloadError(f"it holds {half!r}, which is no character", where=where) from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(reason(error), where=where, hint="is it truncated?") from error
    return typed({"file": found}, "file", dict, where)  # type: ignore[no-any-return]


def _tensors(definition: _Object, kind: str, axes: _Object, where: str) -> dict[str, _Spec]:
    found = {}
    described = typed(definition, kind, dict, where)
    for name in described:
        spec = typed(described, name, dict, f"{where}: {kind}")
        at = f"{where}: {kind}.{name}"
        dtype, shape = typed(spec, "dtype", str, at), typed(spec, "shape", list, at, ())
        if dtype not in DTYPES:
            hint = f"one of {', '.join(DTYPES)}"
            raise WorkloadError(f"dtype {dtype!r} is not judged", where=at, hint=hint)
        if unknown := [axis for axis in shape if not isinstance(axis, str) or axis not in axes]:
            raise WorkloadError(f"axis {unknown[0]!r} is not defined", where=at)
        found[name] = (shape, dtype)
    return found


def _workloads(lines: tuple[str, str], name: str) -> dict[str, _Object]:
    """The workloads of a Definition by uuid."""
    text, file = lines
    found: dict[str, _Object] = {}
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{file}:{number}"
        row = _object(line, where) if line.strip() else {"definition": ""}
        if row.get("definition", name) == name and "solution" not in row:
            row = typed(row, "workload", dict, where, row)
            uuid = typed(row, "uuid", str, where)
            if found.setdefault(uuid, row) != row:
                raise WorkloadError(f"another workload has the uuid {uuid!r}, too", where=where)
    if not found:
        raise WorkloadError(f"it holds no workload of {name!r}", where=file)
    return found


def _sizes(axes: _Object, workload: _Object, where: str) -> dict[str, int]:
    """Every axis' length in a workload."""
    given = typed(workload, "axes", dict, where)
    sizes = {}
    for name in axes:
        axis = typed(axes, name, dict, where)
        constant = axis.get("type") == "const"
        if not constant and name not in given:
            hint = "give a file of workloads (.jsonl) with its value"
            raise WorkloadError(f"axis {name!r} has no value", where=where, hint=hint)
        sizes[name] = typed(axis, "value", int, where) if constant else typed(given, name, int, where)
        if sizes[name] < 1:
            raise WorkloadError(f"axis {name!r} is {sizes[name]}", where=where, hint="lengths are positive")
    return sizes


def _drawer(
    inputs: Mapping[str, _Spec], workload: _Object, sizes: Mapping[str, int], path: Path, where: str
) -> Draw:
    """Draws the inputs that are random; numbers, and tensors from files, are the same in every draw."""
    kept: dict[str, Any] = {}
    described = typed(workload, "inputs", dict, where, {})
    shapes = {name: tuple(sizes[axis] for axis in shape) for name, (shape, _) in inputs.items()}
    for name, (shape, dtype) in inputs.items():
        how = typed(described, name, dict, where, {"type": "random"})
        kind = how.get("type")
        if kind == "scalar":
            kept[name] = typed(how, "value", (int, float, bool), where)
        elif kind == "safetensors":
            kept[name] = _from_file(how, path, where)
            has, due = f"{kept[name].dtype} {tuple(kept[name].shape)}", f"torch.{dtype} {shapes[name]}"
            if has != due:
                raise WorkloadError(f"the tensor of {name} is {has}, not {due}", where=where)
        elif kind != "random" or not shape:
            hint = "random, scalar or safetensors; a scalar has a value"
            raise WorkloadError(f"input {name!r} is of type {kind!r}", where=where, hint=hint)

    def draw(seed: int) -> dict[str, Any]:
        import torch

        generator = torch.Generator().manual_seed(seed)
        return {
            name: kept[name] if name in kept else _random(shapes[name], dtype, generator)
            for name, (_, dtype) in inputs.items()
        }

    return draw


def _from_file(how: _Object, path: Path, where: str) -> Any:
    """A tensor of a safetensors file in a folder above the Definition: the root of its set."""
    try:
        from safetensors import safe_open  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ToolMissing(
            "this workload needs safetensors", where=where, hint="pip install safetensors"
        ) from error
    relative, key = typed(how, "path", str, where), typed(how, "tensor_key", str, where)
    found = [folder / relative for folder in path.resolve().parents if (folder / relative).is_file()]
    if not found:
        raise WorkloadError(f"no file {relative!r} in a folder above the definition", where=where)
    try:
        with safe_open(found[0], "pt") as file:
            return file.get_tensor(key)
    except Exception as error:  # its own class, with no base that says more
        raise WorkloadError(f"cannot read {key!r}: {reason(error)}", where=str(found[0])) from error


def _random(shape: tuple[int, ...], name: str, generator: Any) -> Any:
    """Normal values, integers below 1024 (of one byte below 128), booleans."""
    import torch

    dtype = getattr(torch, name)
    if dtype.is_floating_point:
        values = torch.randn(shape, generator=generator)
        return (values.clamp_(-2.0, 2.0) if dtype.itemsize == 1 else values).to(dtype)
    low, high = {"bool": (0, 2), "int8": (-128, 128), "uint8": (0, 256)}.get(name, (-1024, 1024))
    return torch.randint(low, high, shape, generator=generator).to(dtype)
