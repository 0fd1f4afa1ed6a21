"""The one place that touches Triton: a wrap of ``CompiledKernel._init_handles``, where a cubin is loaded.

Checked on Triton 3.6.0, 3.7.1, 3.8.0 and 3.9.0: the method returns immediately if ``self.module`` is set;
else it gives ``self.kernel`` (the cubin's bytes) to the driver's ``load_binary``. Only for that call
``self.kernel`` is replaced, because Inductor pickles a kernel's attributes into its own cache.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .check import LaunchFacts
from .settings import disabled

if TYPE_CHECKING:
    from .engine import Deployment, LookedUp

#: first and last minor version that the wrap was checked on
SUPPORTED = ((3, 6), (3, 9))
#: what the method must mention for the wrap to make sense
_NAMES = {"module", "kernel", "load_binary", "shared"}

Original = Callable[[Any], None]

_guard = threading.RLock()  # a signal handler, or a finaliser, may launch a kernel while this thread holds it
#: id of a kernel that is being loaded -> [lock, how many hold or want it]
_loads: dict[int, list[Any]] = {}
#: (kernel's id, thread) of loads that we are in: a second wrap of ours must let them through
_within: set[tuple[int, int]] = set()
#: our wrap and what it wraps, while it is in place
_wrap: tuple[Any, Any] | None = None


def attach(engine: Deployment, module: Any = None) -> tuple[str | None, str]:
    """Wrap the method, once. Returns (None or why not, Triton's version)."""
    global _wrap
    try:
        if module is None:
            module = import_module("triton.compiler.compiler")
        version = str(sys.modules["triton"].__version__)  # type: ignore[attr-defined]
        kernel_class = module.CompiledKernel
    except Exception as error:
        return f"Triton cannot be used: {type(error).__name__}: {error}", ""
    current = vars(kernel_class).get("_init_handles")
    if _wrap is not None and current is _wrap[0]:
        return None, version
    if (problem := unsupported(version, current)) is not None:
        return problem, version
    wrap = _make(engine, current)
    kernel_class._init_handles = wrap
    _wrap = (wrap, current)
    return None, version


def detach() -> None:
    """Put Triton's own method back; if another wrap lies around ours, ours stays and passes through."""
    global _wrap
    if _wrap is None:
        return
    from triton.compiler.compiler import CompiledKernel

    if vars(CompiledKernel).get("_init_handles") is _wrap[0]:
        CompiledKernel._init_handles = _wrap[1]
        _wrap = None


def unchecked(version: str) -> str | None:
    """Why this version of Triton must be left alone; None for one of `SUPPORTED`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and SUPPORTED[0] <= (int(found[1]), int(found[2])) <= SUPPORTED[1]:
        return None
    low, high = (".".join(map(str, bound)) for bound in SUPPORTED)
    return f"Triton {version} is not one that this was checked on ({low} to {high})"


def unsupported(version: str, method: Any) -> str | None:
    """Why this Triton must be left alone, or None."""
    if problem := unchecked(version):
        return problem
    code = getattr(inspect.unwrap(method) if callable(method) else None, "__code__", None)
    if code is None or code.co_argcount != 1 or not set(code.co_names) >= _NAMES:
        return f"Triton {version} loads kernels in another way than expected"
    return None


def note_earlier(engine: Deployment) -> None:
    """Say of kernels that were loaded before `install` that they keep the compiler's code."""
    import gc

    from triton.compiler.compiler import CompiledKernel

    from .engine import Decision

    for thing in gc.get_objects():
        if type(thing) is CompiledKernel and thing.module is not None and thing not in engine.known:
            with suppress(TypeError):  # a backend whose binary is no bytes
                digest = hashlib.sha256(thing.kernel).hexdigest()
                engine.note(thing.name, digest, digest, -1, Decision(None, "loaded before install()"), thing)


def launch_of(metadata: Any, device: int) -> LaunchFacts:
    """The launch facts in Triton's metadata, named as the store names them."""
    from triton.runtime import driver

    registers = driver.active.utils.get_device_properties(device).get("max_num_regs")
    return LaunchFacts(
        name=metadata.name,
        sm=int(metadata.target.arch),
        threads=32 * metadata.num_warps,
        shared_bytes=metadata.shared,
        ctas=getattr(metadata, "num_ctas", 1),
        scratch_bytes=getattr(metadata, "global_scratch_size", 0) or 0,
        **({"registers": int(registers)} if registers else {}),
    )


def _make(engine: Deployment, original: Original) -> Original:
    @functools.wraps(original)
    def _init_handles(self: Any) -> None:
        if self.module is not None:  # Triton's own first line: a loaded kernel has no further cost
            return None
        me = (id(self), threading.get_ident())
        if not engine.active or me in _within or self.metadata.target.backend != "cuda":
            return original(self)
        with alone(self):
            if self.module is None:
                _within.add(me)
                try:
                    _load(engine, self, original)
                finally:
                    _within.discard(me)
        return None

    return _init_handles


def _load(engine: Deployment, compiled: Any, original: Original) -> None:
    untouched = compiled.kernel

    def tuned(cubin: bytes) -> None:
        compiled.kernel = cubin
        try:
            original(compiled)
        except Exception:
            compiled.module = compiled.function = None  # as if nothing had happened
            raise
        finally:
            compiled.kernel = untouched

    engine.load(compiled.name, look_up(engine, compiled), tuned, lambda: original(compiled), compiled)


def exchange(engine: Deployment, compiled: Any, found: LookedUp) -> None:
    """Let the next launches of a loaded kernel run what was found.

    Loads the tuned cubin beside the present one, which stays loaded: launches under way and captured graphs
    hold its handle. Must not be called while the current stream is captured.

    Raises:
        Exception: as the driver does; the kernel is then as it was.
    """
    from triton.runtime import driver

    from .gpu import relaxed_capture

    digest, device, decision = found
    assert decision.tuned is not None
    if disabled() or engine.is_denied(compiled.name, engine.settings):  # since it was found
        return
    with alone(compiled), relaxed_capture():
        module, function, *_ = driver.active.utils.load_binary(
            compiled.name, decision.tuned, compiled.metadata.shared, device
        )
        compiled.module = module
        compiled.function = function  # all that a launch reads: it gets the old handle or the new one
    loaded = hashlib.sha256(decision.tuned).hexdigest()
    engine.note(compiled.name, digest, loaded, device, decision, compiled)


def look_up(engine: Deployment, compiled: Any, on: int | None = None) -> LookedUp:
    """What a kernel gets that is loaded now, on this device or the current one. Never raises."""
    from .engine import Decision, LookedUp

    digest, device = "", -1
    try:
        from triton.runtime import driver

        digest = hashlib.sha256(compiled.kernel).hexdigest()
        device = int(driver.active.get_current_device()) if on is None else on
        index = engine.index
        launch = LaunchFacts(name=compiled.name)
        if index is not None and (digest in index.gpus or compiled.name in index.names):
            launch = launch_of(compiled.metadata, device)
        fn = getattr(compiled.src, "fn", None)
        return LookedUp(digest, device, engine.decide(compiled.kernel, digest, launch, device, fn))
    except Exception as error:
        return LookedUp(digest, device, Decision.failed(error))


@contextmanager
def alone(compiled: Any) -> Iterator[None]:
    """One thread at a time for one kernel. Not one lock for all: a load may wait for the GPU, and so for a
    kernel that another thread has yet to load."""
    with _guard:
        entry = _loads.setdefault(id(compiled), [threading.RLock(), 0])
        entry[1] += 1
    try:
        with entry[0]:
            yield
    finally:
        with _guard:
            entry[1] -= 1
            if not entry[1]:
                _loads.pop(id(compiled), None)


def _after_fork() -> None:
    global _guard
    _guard = threading.RLock()
    _loads.clear()
    _within.clear()


os.register_at_fork(after_in_child=_after_fork)
