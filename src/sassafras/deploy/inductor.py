"""Inductor's static launcher, which loads cubin files without going through Triton's `CompiledKernel`.

``torch._inductor.runtime`` gives the path of a file in Triton's cache to the driver. For that call alone the
path is replaced by that of a private copy of the tuned cubin; no file of Triton's or Inductor's is touched.
Read in torch 2.13 (``static_triton_launcher``); the module's name before that was ``static_cuda_launcher``.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .check import LaunchFacts
from .triton_load import alone

if TYPE_CHECKING:
    from types import ModuleType

    from .engine import Deployment, LookedUp

_MODULES = (
    "torch._inductor.runtime.static_triton_launcher",
    "torch._inductor.runtime.static_cuda_launcher",
)
#: classes that hold `load_kernel`; the second is also the one whose kernels are CUDA's
_CLASSES = ("StaticallyLaunchedTritonKernel", "StaticallyLaunchedCudaKernel")

_waiting: list[Callable[[], None]] = []
#: (class, our wrap, what it wraps)
_wraps: list[tuple[Any, Any, Any]] = []


def attach(engine: Deployment) -> None:
    """Wrap the launcher's loading where torch is imported already, or when it will be. Once."""
    from .lazy import after_import

    if _waiting or _wraps:
        return
    for name in _MODULES:
        _waiting.append(after_import(name, functools.partial(_wrap, engine)))


def detach() -> None:
    """Put the launcher's own method back."""
    while _waiting:
        _waiting.pop()()
    while _wraps:
        owner, wrap, original = _wraps.pop()
        if vars(owner).get("load_kernel") is wrap:
            owner.load_kernel = original


def _wrap(engine: Deployment, module: ModuleType) -> None:
    for name in _CLASSES:
        owner = getattr(module, name, None)
        original = vars(owner).get("load_kernel") if owner is not None else None
        if original is None or original.__code__.co_varnames[:2] != ("self", "device"):
            continue
        wrap = _make(engine, original)
        owner.load_kernel = wrap  # type: ignore[union-attr]
        _wraps.append((owner, wrap, original))


def _make(engine: Deployment, original: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    @functools.wraps(original)
    def load_kernel(self: Any, device: int) -> None:
        if self.function is not None:
            return None
        if not engine.active or type(self).__name__ != _CLASSES[1]:
            return original(self, device)
        with alone(self):
            if self.function is None:
                _load(engine, self, device, original)
        return None

    return load_kernel


def _load(engine: Deployment, kernel: Any, device: int, original: Callable[[Any, int], None]) -> None:
    path = kernel.cubin_path

    def tuned(cubin: bytes) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="sassafras-") as folder:
                copy = Path(folder) / f"{hashlib.sha256(cubin).hexdigest()}.cubin"
                copy.write_bytes(cubin)
                kernel.cubin_path = str(copy)
                original(kernel, device)
        except Exception:
            if kernel.function is None:  # else it is loaded all the same
                kernel.cubin_path = path
                raise

    engine.load(kernel.name, _decide(engine, kernel, device), tuned, lambda: original(kernel, device))


def _decide(engine: Deployment, kernel: Any, device: int) -> LookedUp:
    from .engine import Decision, LookedUp

    digest = ""
    try:
        cubin = Path(kernel.cubin_path).read_bytes()
        digest = hashlib.sha256(cubin).hexdigest()
        launch = LaunchFacts(
            name=kernel.name,
            threads=32 * kernel.num_warps,
            shared_bytes=kernel.shared,
            ctas=1,
            scratch_bytes=0,
        )
        return LookedUp(digest, device, engine.decide(cubin, digest, launch, device))
    except Exception as error:
        return LookedUp(digest, device, Decision.failed(error))
