"""Triton's driver, replaced where it meets CUDA: it keeps what it is given to load and to launch.

Everything above it is real: the JIT, the compiler, the cache, `CompiledKernel`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from sassafras.capture.dry_driver import DryDriver

H200 = "NVIDIA H200"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Tensor:
    """An argument that is only passed on."""

    def __init__(self, dtype: str = "float32", address: int = 4096) -> None:
        import triton.language as tl

        self.dtype, self.address = getattr(tl, dtype), address

    def data_ptr(self) -> int:
        return self.address


class Driver(DryDriver):
    """Loads and launches nothing, and remembers all of it."""

    def __init__(self) -> None:
        super().__init__(device=0)
        self.loads: list[tuple[str, str]] = []  # entry, sha256 of the bytes that CUDA would get
        self.launches: list[int] = []  # function handles
        self.refuse: Callable[[bytes], None] = lambda cubin: None

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        self.refuse(cubin)
        self.loads.append((name, sha(cubin)))
        return len(self.loads), 1000 + len(self.loads), 32, 0, 1024

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            self.launches.append(function)

        return launch

    def get_active_torch_device(self) -> str:
        return "cuda"
