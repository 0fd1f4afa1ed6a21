"""The one place of a capture that touches Triton: wraps of `JITFunction.run` and `Autotuner._bench`.

Read on Triton 3.6.0, 3.7.1, 3.8.0 and 3.9.0: every launch of a `@triton.jit` function, autotuned or not,
goes through ``JITFunction.run(*args, grid, warmup, **kwargs)``, which returns the compiled kernel; the
autotuner tries a configuration in ``_bench(*args, config, **meta)``, which returns quantiles in milliseconds,
the median first.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sassafras.deploy.triton_load import unchecked

if TYPE_CHECKING:
    from .recorder import LaunchRecorder


class Wraps:
    """Methods of Triton's that are wrapped."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._made)

    def put(self, owner: Any, name: str, wrap: Any) -> None:
        """Replace ``owner.name``."""
        self._made.append((owner, name, wrap, vars(owner)[name]))
        setattr(owner, name, wrap)

    def remove(self) -> None:
        """Put Triton's own methods back, unless another wrap lies around ours, which then passes through."""
        while self._made:
            owner, name, wrap, original = self._made.pop()
            if vars(owner).get(name) is wrap:
                setattr(owner, name, original)


_local = threading.local()
_wraps = Wraps()


def attach(recorder: LaunchRecorder) -> str:
    """Wrap Triton's methods, once. Returns why not, or ``""``."""
    if _wraps:
        return "already recording"
    try:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        version = str(sys.modules["triton"].__version__)  # type: ignore[attr-defined]
    except Exception as error:
        return f"Triton cannot be used: {type(error).__name__}: {error}"
    run, bench = vars(JITFunction).get("run"), vars(Autotuner).get("_bench")
    if (problem := unsupported(version, run, bench)) is not None:
        return problem
    _wraps.put(JITFunction, "run", _launching(recorder, run))
    _wraps.put(Autotuner, "_bench", benching(recorder, bench, _local))
    return ""


def detach() -> None:
    """Put Triton's own methods back."""
    _wraps.remove()


def unsupported(version: str, run: Any, bench: Any) -> str | None:
    """Why this Triton is left alone, or None."""
    if problem := unchecked(version):
        return problem
    for method, needed in ((run, {"grid", "warmup"}), (bench, {"config"})):
        if not callable(method) or not needed <= set(inspect.signature(method).parameters):
            return f"Triton {version} launches kernels in another way than expected"
    return None


def noted(grid: Any) -> tuple[Any, list[Any]]:
    """A grid to pass on, and a list that then holds what it was; a user's function is asked once."""
    seen = [grid]

    def asked(meta: Any) -> Any:
        seen[0] = grid(meta)
        return seen[0]

    return (asked if callable(grid) else grid), seen


def _launching(recorder: LaunchRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: Any, **kwargs: Any) -> Any:
        if warmup or not recorder.on:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        asked, seen = noted(grid)
        bench = getattr(_local, "bench", None)
        launch = recorder.before(self, args, kwargs, bench)
        compiled = original(self, *args, grid=asked, warmup=warmup, **kwargs)
        recorder.after(launch, compiled, seen[0])
        return compiled

    return run


def benching(recorder: Any, original: Callable[..., Any], local: threading.local) -> Callable[..., Any]:
    """A wrap of `Autotuner._bench`.

    Args:
        recorder: its `bench(config)` begins a configuration, its `benched(bench, timings)` ends it.
        original: what is wrapped.
        local: holds the configuration that this thread tries, as ``bench``.
    """

    @functools.wraps(original)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        outer = getattr(local, "bench", None)
        local.bench = bench = recorder.bench(config)
        try:
            timings = original(self, *args, config=config, **meta)
        finally:
            local.bench = outer
        recorder.benched(bench, timings)
        return timings

    return _bench
