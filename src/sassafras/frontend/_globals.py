"""Globals that a Triton function was compiled with, against those of now."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def changed(fn: Any, seen: set[int] | None = None) -> str:
    """Which global of a jitted function, or of one that it calls, is not as it was compiled; "" for none.

    Triton compiles a function once: later changes leave its hash, and so its code, as they were. It looks at
    globals before each launch, but not at those of a called function that had not been hashed before.

    Args:
        seen: ids of functions that were looked at.
    """
    seen = set() if seen is None else seen
    for (name, _), (then, scope) in getattr(fn, "used_global_vals", {}).items():
        if (now := scope.get(name)) != then:
            return f"the global {name!r} has changed from {then} to {now} since the kernel was compiled"
    code = getattr(getattr(fn, "fn", None), "__code__", None)
    if code is None or id(fn) in seen:
        return ""
    seen.add(id(fn))
    scope, names = fn.get_capture_scope(), (*code.co_names, *code.co_freevars)
    used = [scope.get(name) for name in names]
    used += [getattr(one, name, None) for one in used if isinstance(one, ModuleType) for name in names]
    called = (one for one in used if hasattr(one, "used_global_vals"))
    return next(filter(None, (changed(one, seen) for one in called)), "")
