"""Launches of the kernels that `torch.compile`'s Inductor writes, which do not go through `JITFunction.run`.

Read in torch 2.11, 2.13 and 2.14: ``CompileResult._gen_launcher_code(scope, def_args, runner_args)``, to
which 2.14 adds an argument that may be left out, writes the function that launches a kernel, by the static
launcher or by Triton's; it calls ``scope["runner"](grid_0, grid_1, grid_2, stream, ..., *arguments)``, where
grid and arguments are known. ``CachingAutotuner.run`` makes the program's launches by that function,
``bench`` makes trial launches. After the first launch 2.13 exchanges a bound method as the runner for one in
C; ours is a function, so that every launch comes through it.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from sassafras.deploy.lazy import after_import

from .hook import Wraps

if TYPE_CHECKING:
    from .recorder import LaunchRecorder

_MODULE = "torch._inductor.runtime.triton_heuristics"
#: what runners get first
_GRID = ["grid_0", "grid_1", "grid_2", "stream"]

#: `running`: the recorder and the autotuner whose `run` launches for the program; None in a trial launch
_local = threading.local()
_wraps = Wraps()
_waiting: list[Callable[[], None]] = []


def attach(recorder: LaunchRecorder) -> None:
    """Wrap Inductor's methods where it is imported already, or when it will be. Once."""
    if not _waiting and not _wraps:
        _waiting.append(after_import(_MODULE, functools.partial(_wrap, recorder)))


def detach() -> None:
    """Put Inductor's own methods back."""
    while _waiting:
        _waiting.pop()()
    _wraps.remove()


def _wrap(recorder: LaunchRecorder, module: ModuleType) -> None:
    if problem := unsupported(module):
        recorder.note(problem)
        return
    tuner, result = module.CachingAutotuner, module.CompileResult
    _wraps.put(tuner, "run", _running(recorder, tuner.run))
    _wraps.put(tuner, "bench", _benching(tuner.bench))
    _wraps.put(result, "_gen_launcher_code", _generating(recorder, result._gen_launcher_code))


def unsupported(module: Any) -> str | None:
    """Why this torch's Inductor is left alone, or None."""
    for owner, name, needed in (
        ("CachingAutotuner", "run", ("stream", "benchmark_run")),
        ("CachingAutotuner", "bench", ("launcher",)),
        ("CompileResult", "_gen_launcher_code", ("self", "scope", "def_args", "runner_args")),
    ):
        method = vars(getattr(module, owner, object)).get(name)
        parameters = [*inspect.signature(method).parameters.values()] if inspect.isfunction(method) else []
        found = [p.name for p in parameters]
        more = parameters[len(needed) :]
        leads = found[: len(needed)] == [*needed] and all(p.default is not p.empty for p in more)
        if not set(needed) <= set(found) or (needed[0] == "self" and not leads):
            version = getattr(sys.modules.get("torch"), "__version__", "")
            return f"Inductor of torch {version} launches kernels in another way than expected"
    return None


def _running(recorder: LaunchRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        trial = kwargs.get("benchmark_run") or not recorder.on or _compiling()
        with _launches_of(None if trial else (recorder, self)):
            return original(self, *args, **kwargs)

    return run


def _benching(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _launches_of(None):
            return original(self, *args, **kwargs)

    return bench


@contextmanager
def _launches_of(running: tuple[LaunchRecorder, Any] | None) -> Iterator[None]:
    outer = getattr(_local, "running", None)
    _local.running = running
    try:
        yield
    finally:
        _local.running = outer


def _compiling() -> bool:
    """True while Inductor compiles in this thread: what is launched then chooses templates and fusions."""
    virtual = sys.modules.get("torch._inductor.virtualized")
    try:
        return virtual is not None and not isinstance(virtual.V.graph, virtual.NullHandler)
    except Exception:  # a compile worker, which launches nothing
        return False


def _generating(recorder: LaunchRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _gen_launcher_code(
        self: Any, scope: dict[str, Any], def_args: Any, runner_args: Any, *more: Any, **named: Any
    ) -> Any:
        try:
            if self.compile_meta.get("device_type", "cuda") == "cuda":
                scope["runner"] = _recorded(self, scope["runner"], list(runner_args))
        except Exception as error:
            recorder.note(f"{type(error).__name__}: {error}")
        return original(self, scope, def_args, runner_args, *more, **named)

    return _gen_launcher_code


def _recorded(result: Any, runner: Callable[..., Any], runner_args: list[str]) -> Callable[..., Any]:
    """The runner of one compiled kernel; it records the program's launches and makes all of them."""
    if runner_args[: len(_GRID)] != _GRID:
        raise ValueError("Inductor's launcher does not pass the grid first")
    kernel, constants = result.kernel, dict(result.compile_meta["constants"])
    if "metadata" in runner_args:  # Triton's launcher, which is passed constants too, not by their names
        compiled, names = kernel, list(kernel.src.fn.arg_names)
        name = str(kernel.metadata.name)
    else:
        names, name = runner_args[len(_GRID) :], str(kernel.name)
        compiled = StaticKernel(_cubin_path(result), names, result.compile_meta["signature"])
    first = len(runner_args) - len(names)
    fn: Any = None

    def launch(*given: Any) -> Any:
        nonlocal fn
        running = getattr(_local, "running", None)
        if running is None:
            return runner(*given)
        recorder, tuner = running
        if fn is None:
            fn = _function(tuner, name, names)
        launched = recorder.before(fn, given[first:], constants, None)
        returned = runner(*given)
        recorder.after(launched, compiled, given[:3])
        return returned

    return launch


def _function(tuner: Any, name: str, names: list[str]) -> Any:
    """What stands for the `@triton.jit` function, which a compile worker may have kept.

    The file that Inductor wrote it to is named after the hash of its text.
    """
    home = Path(getattr(tuner, "filename", None) or "inductor").stem
    return SimpleNamespace(arg_names=names, cache_key=home, __module__=home, __qualname__=name)


def _cubin_path(result: Any) -> Path:
    """Where a static launcher's cubin lies in Triton's cache; the kernel forgets it once it is loaded."""
    kernel, kept = result.kernel, result.kernel.cubin_path
    if not kept:
        result.reload_cubin_path()
    found, kernel.cubin_path = Path(kernel.cubin_path), kept
    return found


class StaticKernel:
    """A static launcher's kernel, shown as Triton's `CompiledKernel` from the files beside its cubin.

    Args:
        cubin: its file in Triton's cache.
        names: the parameters that the launcher passes, in order.
        kinds: Triton's types by parameter.
    """

    def __init__(self, cubin: Path, names: list[str], kinds: dict[str, Any]) -> None:
        passed = {name: kinds[name] for name in names}
        self.asm = CacheFiles(cubin)
        self.src = SimpleNamespace(signature=passed | {k: "constexpr" for k in kinds if k not in passed})

    @property
    def metadata(self) -> Any:
        """Triton's. Raises OSError or ValueError: its file is missing or damaged."""
        facts = json.loads(self.asm.path("json").read_text(encoding="utf-8"))
        return SimpleNamespace(**facts | {"target": SimpleNamespace(**facts["target"])})


class CacheFiles:
    """Triton's outputs by kind, read when they are asked for: a program has many kernels."""

    def __init__(self, cubin: Path) -> None:
        self._cubin = cubin

    def path(self, kind: str) -> Path:
        """The file of this kind."""
        return self._cubin.with_suffix(f".{kind}")

    def __getitem__(self, kind: str) -> bytes:
        return self.path(kind).read_bytes()

    def get(self, kind: str) -> str | None:
        """The text of this kind, or None."""
        try:
            return self.path(kind).read_text(encoding="utf-8")
        except OSError:
            return None
