"""Descriptions in TOML of a raw cubin's or a CUDA source's launch.

name = "saxpy"                    # optional
source = "saxpy.cu"               # or: cubin = "saxpy.cubin"; relative to this file
entry = "saxpy"                   # optional where there is one kernel
threads = 256
shared_bytes = 0                  # dynamic; optional
flags = ["-O3"]                   # source only; optional
compiler = "nvcc"                 # or "nvrtc"; source only; optional

[[case]]
name = "1M"
grid = [4096, 1, 1]
loop_trips = 8                    # optional; for the timing model only
[case.args]                       # in the kernel's parameter order
y = { dtype = "fp32", shape = [1048576], role = "inout" }
x = { dtype = "fp32", shape = [1048576], fill = { normal = { mean = 0.0, std = 1.0 } } }
a = 2.0
n = 1048576
[case.constants]                  # macros; source only; optional
[case.options]                    # threads, shared_bytes, flags; optional
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sassafras.core import Buffer, Case, Normal, SassafrasError, Uniform, Workload, WorkloadError
from sassafras.core.workload import Argument, Fill

from . import cubin, cuda

_KEYS = {"name", "source", "cubin", "entry", "threads", "shared_bytes", "flags", "compiler", "case"}
_CASE_KEYS = {"name", "grid", "args", "constants", "options", "loop_trips"}


def read(path: Path) -> Workload:
    """Read a description.

    Raises:
        WorkloadError: not TOML, unknown or missing keys, values of the wrong kind.
    """
    where = str(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(f"not TOML: {error}", where=where) from error
    _only(data, _KEYS, where)
    if ("source" in data) == ("cubin" in data):
        raise WorkloadError("exactly one of source and cubin is needed", where=where)
    threads = typed(data, "threads", int, where)
    given = data.get("case")
    if not isinstance(given, list) or not given:
        raise WorkloadError("at least one [[case]] is needed", where=where)
    cases = [_case(entry, number, where) for number, entry in enumerate(given, 1)]
    common: dict[str, Any] = {
        "threads": threads,
        "entry": typed(data, "entry", str, where, None),
        "shared_bytes": typed(data, "shared_bytes", int, where, 0),
        "name": typed(data, "name", str, where, path.stem),
    }
    if "cubin" in data:
        return cubin.workload(path.parent / typed(data, "cubin", str, where), cases, **common)
    return cuda.workload(
        path.parent / typed(data, "source", str, where),
        cases,
        flags=tuple(str(f) for f in typed(data, "flags", list, where, [])),
        compiler=typed(data, "compiler", str, where, "nvcc"),
        **common,
    )


def describe(case: Case) -> dict[str, Any]:
    """A case as the table that `case_of` reads; fills by functions become ``"normal"``."""
    args: dict[str, Any] = {}
    for name, value in case.args.items():
        if isinstance(value, Buffer):
            args[name] = {"dtype": value.dtype, "shape": list(value.shape), "role": value.role}
            if isinstance(value.fill, Uniform):
                args[name]["fill"] = {"uniform": {"low": value.fill.low, "high": value.fill.high}}
            elif isinstance(value.fill, Normal):
                args[name]["fill"] = {"normal": {"mean": value.fill.mean, "std": value.fill.std}}
        else:
            args[name] = value
    table: dict[str, Any] = {"name": case.name, "grid": list(case.grid), "args": args}
    if case.loop_trips is not None:
        table["loop_trips"] = case.loop_trips
    return table


def case_of(entry: Any, where: str) -> Case:
    """A case from its table.

    Raises:
        WorkloadError: unknown or missing keys, values of the wrong kind.
    """
    return _case(entry, 1, where)


def _case(entry: Any, number: int, path: str) -> Case:
    where = f"{path}, case {number}"
    if not isinstance(entry, dict):
        raise WorkloadError("a case is a table", where=where, hint="write [[case]]")
    _only(entry, _CASE_KEYS, where)
    grid = typed(entry, "grid", list, where)
    if not 1 <= len(grid) <= 3 or not all(isinstance(n, int) and n > 0 for n in grid):
        raise WorkloadError(f"grid must be one to three positive whole numbers, got {grid}", where=where)
    x, y, z = (*grid, 1, 1)[:3]
    args = typed(entry, "args", dict, where)
    return Case(
        name=typed(entry, "name", str, where, f"case{number}"),
        grid=(x, y, z),
        args={name: _argument(value, f"{where}, argument {name}") for name, value in args.items()},
        constants=typed(entry, "constants", dict, where, {}),
        options=typed(entry, "options", dict, where, {}),
        loop_trips=typed(entry, "loop_trips", int, where, None),
    )


def _argument(value: Any, where: str) -> Argument:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise WorkloadError(
            f"cannot read {value!r}", where=where, hint="a number, or { dtype, shape, role, fill }"
        )
    _only(value, {"dtype", "shape", "role", "fill"}, where)
    shape = typed(value, "shape", list, where)
    try:
        return Buffer(
            typed(value, "dtype", str, where),
            tuple(shape),
            typed(value, "role", str, where, "in"),
            _fill(value.get("fill", "normal"), where),
        )
    except SassafrasError as error:
        raise WorkloadError(error.what, where=where, hint=error.hint) from error


def _fill(value: Any, where: str) -> Fill:
    kinds: Mapping[str, type[Normal] | type[Uniform]] = {"normal": Normal, "uniform": Uniform}
    if isinstance(value, str) and value in kinds:
        return kinds[value]()
    if isinstance(value, dict) and len(value) == 1:
        ((kind, settings),) = value.items()
        if kind in kinds and isinstance(settings, dict):
            _only(settings, {"mean", "std"} if kind == "normal" else {"low", "high"}, where)
            return kinds[kind](**{k: float(v) for k, v in settings.items()})
    raise WorkloadError(
        f"cannot read the fill {value!r}",
        where=where,
        hint='"normal", "uniform", { normal = { mean, std } } or { uniform = { low, high } }',
    )


_MISSING = object()


def typed(
    table: Mapping[str, Any], key: str, kind: type | tuple[type, ...], where: str, default: Any = _MISSING
) -> Any:
    """The value of a key, or `default`. Raises WorkloadError where it is missing or of another type."""
    value = table.get(key, default)
    if value is _MISSING:
        raise WorkloadError(f"{key!r} is missing", where=where)
    if value is default:
        return value
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        named = " or ".join(each.__name__ for each in kinds)
        raise WorkloadError(f"{key!r} must be of type {named}, got {value!r:.60}", where=where)
    return value


def _only(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    if unknown := sorted(set(table) - allowed):
        raise WorkloadError(
            f"unknown key {unknown[0]!r}", where=where, hint="known keys: " + ", ".join(sorted(allowed))
        )
