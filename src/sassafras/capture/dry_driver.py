"""Triton's driver where nothing shall run: kernels are compiled, loaded nowhere and launched never.

Everything above it is Triton's own: the JIT with its specialisation, the autotuner, the compiler, the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

#: of an H100 and an H200; wrappers ask for them to choose configurations
_PROPERTIES = {"max_shared_mem": 232_448, "max_num_regs": 65_536, "multiprocessor_count": 132, "warpSize": 32}
_OF_TORCH = {"name": "NVIDIA H100 80GB HBM3", "gcnArchName": "", "multi_processor_count": 132}


def bench(call: Callable[[], Any], *args: Any, **options: Any) -> list[float]:
    """A millisecond for every configuration, which is compiled by the one call."""
    call()
    return [1.0, 1.0, 1.0]


def asked_of_torch(capability: int) -> dict[str, Any]:
    """What wrappers ask of `torch.cuda` around a launch, by name, answered for tensors on the CPU."""
    major, minor = divmod(capability, 10)
    properties = SimpleNamespace(**_OF_TORCH, major=major, minor=minor)
    return {
        "device": lambda device: nullcontext(),
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_properties": lambda device=None: properties,
    }


class DryDriver:
    """What Triton asks of a driver.

    Args:
        capability: compute capability to compile for, 90 for 9.0.
        device: the device's number; by default none that exists, so that Triton takes no kernel of it for
            a loaded one.

    Attributes:
        functions: the `@triton.jit` functions that were to be launched.
    """

    def __init__(self, capability: int = 90, device: int = -1) -> None:
        self.capability, self.device = capability, device
        self.functions: set[Any] = set()
        self.utils = SimpleNamespace(
            load_binary=self.load_binary,
            unload_module=lambda module: None,
            get_device_properties=lambda device: dict(_PROPERTIES),
        )

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills and threads of a kernel: none is loaded."""
        return 1, 1, 32, 0, 1024

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        """What launches a kernel: does nothing."""
        self.functions.add(src.fn)
        return lambda *arguments, **options: None

    def get_current_device(self) -> int:
        """The device's number."""
        return self.device

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def get_current_target(self) -> Any:
        """What to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_benchmarker(self) -> Callable[..., Any]:
        """What times a configuration."""
        return bench

    def get_active_torch_device(self) -> Any:
        """Where wrappers make tensors."""
        import torch

        return torch.device("cpu")
