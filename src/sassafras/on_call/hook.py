"""Where search on call touches Triton: wraps of `JITFunction.run` and `Autotuner._bench` (`capture.hook`).

A launch of a settled kernel costs one look into a dictionary.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sassafras.capture import hook

if TYPE_CHECKING:
    from .calls import Calls

_wraps = hook.Wraps()
_local = threading.local()


def attach(calls: Calls) -> str:
    """Wrap Triton's methods, once. Returns why not, or ``""``."""
    if _wraps:
        return ""
    try:
        triton = import_module("triton")
        launching = import_module("triton.runtime.jit").JITFunction
        tuning = import_module("triton.runtime.autotuner").Autotuner
    except Exception as error:
        return f"Triton cannot be used: {type(error).__name__}: {error}"
    run, bench = vars(launching).get("run"), vars(tuning).get("_bench")
    if problem := hook.unsupported(str(triton.__version__), run, bench):
        return problem
    _wraps.put(launching, "run", _launching(calls, run))
    _wraps.put(tuning, "_bench", hook.benching(calls, bench, _local))
    return ""


def detach() -> None:
    """Put Triton's own methods back."""
    _wraps.remove()


def _launching(calls: Calls, original: Callable[..., Any]) -> Callable[..., Any]:
    settled = calls.settled

    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: Any, **kwargs: Any) -> Any:
        if warmup or not calls.on:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        seen: Any = (grid,)
        if callable(grid):
            grid, seen = hook.noted(grid)
        compiled = original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if id(compiled) not in settled:
            calls.launched(self, args, kwargs, seen[0], compiled, getattr(_local, "bench", None))
        return compiled

    return run
