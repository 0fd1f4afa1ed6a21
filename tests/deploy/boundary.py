"""Triton's driver, replaced where it meets CUDA: it keeps what it is given to load and to launch.

Everything above it is real: the JIT, the compiler, the cache, `CompiledKernel`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget

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


class Driver:
    """Loads and launches nothing, and remembers all of it."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str]] = []  # entry, sha256 of the bytes that CUDA would get
        self.launches: list[int] = []  # function handles
        self.refuse: Callable[[bytes], None] = lambda cubin: None
        self.device = 0
        self.utils = SimpleNamespace(
            load_binary=self._load,
            unload_module=lambda module: None,
            get_device_properties=lambda device: {
                "max_shared_mem": 232_448, "max_num_regs": 65_536,
                "multiprocessor_count": 132, "warpSize": 32,
            },
        )  # fmt: skip

    def _load(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.refuse(cubin)
        self.loads.append((name, sha(cubin)))
        return len(self.loads), 1000 + len(self.loads), 32, 0, 1024

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            self.launches.append(function)

        return launch

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_benchmarker(self) -> Callable[..., Any]:
        def bench(call: Callable[[], None], quantiles: Any = None, **_: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return bench

    def get_active_torch_device(self) -> str:
        return "cuda"

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind
