"""The launches of one call, recorded as a capture; without a GPU they are compiled and not launched."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sassafras.core import ToolMissing, WorkloadError
from sassafras.frontend.captured.files import Captured

from . import recording
from .dry_driver import DryDriver, asked_of_torch, bench
from .parts import merge


def record(
    call: Callable[[], Any], folder: str | Path, *, capability: int | None = None, every: bool = False
) -> Captured:
    """Make a call once and keep what it launches.

    Args:
        call: without arguments.
        folder: an empty folder for the capture.
        capability: compute capability to compile for where nothing shall be launched (CPU tensors, no GPU);
            None: launch on the GPU.
        every: try every configuration of an autotuned kernel; else the GPU's choice, without a GPU the first.

    Raises:
        WorkloadError: the call raised, or launched no Triton kernel.
        ToolMissing: Triton is missing, or is a version whose launches cannot be recorded.
    """
    if os.environ.get("TRITON_INTERPRET", "") == "1":
        raise WorkloadError("TRITON_INTERPRET=1 is set: no kernel is compiled", hint="unset it")
    if problem := recording.start(Path(folder)):
        raise ToolMissing(f"the call cannot be recorded: {problem}")
    failure: Exception | None = None
    try:
        with _configurations(dry=capability is not None, every=every), _driver(capability):
            call()
    except Exception as error:
        failure = error
    finally:
        recording.stop()
    try:
        captured = merge(folder)
    except WorkloadError as error:
        if failure is not None:
            raise _located(failure, capability is not None) from failure
        hint = "call kernel[grid](...) in it; results that are cached launch nothing"
        raise WorkloadError("the call launches no Triton kernel", hint=hint) from error
    if failure is not None:
        warnings.warn(
            f"the call launched kernels, then raised {_words(failure)}", RuntimeWarning, stacklevel=3
        )
    return captured


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()).replace("dynamic_func()", "the kernel")  # Triton's name for it
    return f"{type(error).__name__}: {text}"[:300]


def _located(error: Exception, dry: bool) -> WorkloadError:
    """The user's line, and where it asks for a GPU that is not there, the way around."""
    frames = [(f.f_globals.get("__name__", ""), f, n) for f, n in traceback.walk_tb(error.__traceback__)]
    lines = [(f, n) for name, f, n in frames if name.split(".")[0] not in ("sassafras", "triton", "torch")]
    where = f"{lines[-1][0].f_code.co_filename}:{lines[-1][1]}" if lines else None
    text, hint = _words(error), None
    if dry and any(word in text.lower() for word in ("cuda", "nvidia", "gpu", "driver")):
        hint = "without a GPU name the launch itself, sassafras.optimize(kernel[grid], ...), with CPU tensors"
    return WorkloadError(f"the call raised {text}", where=where, hint=hint)


@contextmanager
def _driver(capability: int | None) -> Iterator[None]:
    """Without a GPU: Triton's driver replaced, and its benchmarks, which would ask torch for one."""
    if capability is None:
        yield
        return
    import triton.testing
    from triton.runtime import driver

    dry = DryDriver(capability)
    cuda = getattr(sys.modules.get("torch"), "cuda", SimpleNamespace())
    with (
        patch.multiple(cuda, create=True, **asked_of_torch(capability)),
        patch.object(driver, "_active", dry),
        patch.object(triton.testing, "do_bench", bench),
        patch.object(triton.testing, "do_bench_cudagraph", bench),
    ):
        try:
            yield
        finally:  # what was never loaded must not be found as if it were
            for fn in dry.functions:
                fn.device_caches.pop(dry.device, None)


@contextmanager
def _configurations(*, dry: bool, every: bool) -> Iterator[None]:
    """Autotuners try the configurations asked for; made-up times of a dry run are forgotten again."""
    if not (dry or every):
        yield
        return
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        prune, known = self.prune_configs, self.cache

        def pruned(given: Any) -> Any:
            try:
                found = prune(given)
            except Exception:  # the user's function may ask for a GPU
                found = self.configs
            return found if every else found[:1]

        with (
            patch.object(self, "cache", {}),
            patch.object(self, "cache_results", False),
            patch.object(self, "prune_configs", pruned if dry else prune),
        ):
            found = original(self, *args, **kwargs)
            measured = {} if dry else self.cache
        known.update(measured)
        return found

    with patch.object(Autotuner, "run", run):
        yield
