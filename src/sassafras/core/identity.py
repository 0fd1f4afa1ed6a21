"""Identity of a workload: a digest of everything that affects the outcome of a search."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .workload import Workload


def workload_digest(workload: Workload) -> str:
    """A digest (sha256) of a workload's cases, tolerance and reference, the same in every process.

    Grids, arguments, shapes, fills, constants and options of all cases count, as all of them are checked; of
    functions (the reference, custom fills) their source text counts, and what they call in their own module.
    """
    checks = (workload.exact, workload.peer) if workload.exact or workload.peer else ()
    return fingerprint((workload.cases, workload.tolerance, workload.reference, *checks))


def fingerprint(value: Any) -> str:
    """A digest (sha256) of a value that is the same in every process.

    Plain values, containers, files, arrays, dataclasses and functions count with their contents; of anything
    else only its type does.
    """
    digest = hashlib.sha256()
    _feed(digest, value, set())
    return digest.hexdigest()


def _feed(digest: Any, value: Any, seen: set[int]) -> None:
    def put(*parts: object) -> None:
        digest.update(repr(parts).encode())

    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        put(type(value).__name__, value)
    elif id(value) in seen:
        put("again")
    elif isinstance(value, Mapping):
        put("mapping", len(value))
        for key in sorted(value, key=repr):
            _feed(digest, key, seen)
            _feed(digest, value[key], seen)
    elif isinstance(value, tuple | list):
        put("sequence", len(value))
        for part in value:
            _feed(digest, part, seen)
    elif isinstance(value, set | frozenset):
        put("set", sorted(fingerprint(part) for part in value))
    elif isinstance(value, Path):
        put("file", value.name)
        if value.is_file():
            with value.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    elif isinstance(value, functools.partial):
        put("partial")
        _feed(digest, (value.func, value.args, value.keywords), seen | {id(value)})
    elif isinstance(value, types.MethodType):
        _feed(digest, (value.__self__, value.__func__), seen | {id(value)})
    elif isinstance(value, types.FunctionType):
        _function(digest, value, seen | {id(value)})
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        put(type(value).__qualname__)
        for field in dataclasses.fields(value):
            put(field.name)
            _feed(digest, getattr(value, field.name), seen | {id(value)})
    elif callable(getattr(value, "__wrapped__", None)):  # a cached function
        _feed(digest, value.__wrapped__, seen | {id(value)})
    elif callable(getattr(value, "tobytes", None)):  # arrays
        put(type(value).__qualname__, str(getattr(value, "dtype", "")), getattr(value, "shape", None))
        digest.update(value.tobytes())
    else:
        put(type(value).__module__, getattr(value, "__qualname__", type(value).__qualname__))


def _function(digest: Any, function: types.FunctionType, seen: set[int]) -> None:
    """Its source (its code where there is none), defaults, closure, and its module's own names."""
    try:
        digest.update(inspect.getsource(function).encode())
    except (OSError, TypeError):
        _code(digest, function.__code__)
    _feed(digest, (function.__defaults__, function.__kwdefaults__), seen)
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not filled yet
            cells.append(None)
    _feed(digest, cells, seen)
    for name in sorted(_names(function.__code__)):
        used = function.__globals__.get(name)
        own = isinstance(used, types.FunctionType) and used.__module__ == function.__module__
        if own or isinstance(used, bool | int | float | str | bytes | tuple):
            digest.update(name.encode())
            _feed(digest, used, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*inner)


def _code(digest: Any, code: types.CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _code(digest, constant)
        else:
            digest.update(repr(constant).encode())
