"""The launches of one call, recorded as a capture; without a GPU they are compiled and not launched."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sassafras.core import ToolMissing, WorkloadError
from sassafras.frontend.captured.files import Captured

from . import recording
from .dry_driver import DryDriver, bench
from .parts import merge


def record(call: Callable[[], Any], folder: str | Path, *, capability: int | None = None) -> Captured:
    """Make a call once and keep what it launches. Every configuration of an autotuned kernel is kept.

    Args:
        call: without arguments.
        folder: an empty folder for the capture.
        capability: compute capability to compile for where nothing shall be launched (CPU tensors, no GPU);
            None: launch on the GPU.

    Raises:
        WorkloadError: the call raised, or launched no Triton kernel.
        ToolMissing: Triton is missing, or is a version whose launches cannot be recorded.
    """
    if os.environ.get("TRITON_INTERPRET", "") == "1":
        raise WorkloadError(
            "TRITON_INTERPRET=1 is set: nothing is compiled, so nothing can be recorded", hint="unset it"
        )
    if problem := recording.start(Path(folder)):
        raise ToolMissing(f"the call cannot be recorded: {problem}")
    failure: Exception | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(_fresh_autotuners(dry=capability is not None))
            if capability is not None:
                stack.enter_context(_driver(DryDriver(capability)))
            call()
    except Exception as error:
        failure = error
    finally:
        recording.stop()
    try:
        captured = merge(folder)
    except WorkloadError as error:
        if failure is not None:
            raise _located(failure, capability) from failure
        raise WorkloadError(
            "the call launches no Triton kernel",
            hint="call kernel[grid](...) in it; results that are cached launch nothing",
        ) from error
    if failure is not None:
        warnings.warn(
            f"the call launched kernels, then raised {_words(failure)}", RuntimeWarning, stacklevel=3
        )
    return captured


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _located(error: Exception, capability: int | None) -> WorkloadError:
    lines = [
        f for f in traceback.extract_tb(error.__traceback__) if "sassafras" not in Path(f.filename).parts
    ]
    where = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else None
    hint = None
    if capability is not None:
        hint = (
            "nothing is launched here: where the wrapper needs a GPU, name the launch itself, "
            "sassafras.optimize(kernel[grid], ...), with CPU tensors"
        )
    return WorkloadError(f"the call raised {_words(error)}", where=where, hint=hint)


@contextmanager
def _driver(driver: DryDriver) -> Iterator[None]:
    """Triton's driver replaced, and its benchmarks, which would ask torch for a GPU."""
    import triton.testing
    from triton.runtime import driver as config

    before = config._active
    functions = {name: getattr(triton.testing, name) for name in ("do_bench", "do_bench_cudagraph")}
    config.set_active(driver)
    for name in functions:
        setattr(triton.testing, name, bench)
    try:
        yield
    finally:
        config._active = before
        for name, function in functions.items():
            setattr(triton.testing, name, function)


@contextmanager
def _fresh_autotuners(*, dry: bool) -> Iterator[None]:
    """Autotuners try all their configurations; made-up times of a dry run are forgotten again."""
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        known, keeps = self.cache, self.cache_results
        self.cache, self.cache_results = {}, False
        prune = self.prune_configs
        if dry:
            self.prune_configs = lambda given: _pruned(prune, given, self.configs)
        try:
            return original(self, *args, **kwargs)
        finally:
            self.cache = known if dry else {**known, **self.cache}
            self.cache_results = keeps
            if dry:
                del self.prune_configs

    Autotuner.run = run
    try:
        yield
    finally:
        Autotuner.run = original


def _pruned(prune: Callable[[Any], Any], given: Any, configs: Any) -> Any:
    """The configurations that the user's function leaves; all of them where it needs a GPU."""
    try:
        return prune(given)
    except Exception:
        return configs
