"""What a GPU search needs first, begun ahead: the driver's answer, and a process that imports PyTorch."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sassafras.core import DeviceError

from .environment import begin_probe
from .fork_server import ForkServer

#: the module that a GPU's worker process runs
GPU_WORKER = "sassafras.evaluate.gpu.worker"
#: any of these is there where a driver is (the last one under WSL)
_SIGNS = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")
_waiting: dict[str, ForkServer] = {}


def begin(device: object) -> None:
    """Start, without waiting, what opening this device will wait for; nothing where there is no driver."""
    if device in ("auto", "cuda") and any(Path(sign).exists() for sign in _SIGNS):
        begin_probe()
        start_server(GPU_WORKER)


def start_server(module: str) -> None:
    """Start a fork server that `server` gives out."""
    if module not in _waiting:
        with contextlib.suppress(DeviceError):  # the later start tries again and raises
            _waiting[module] = ForkServer(module)


def server(module: str) -> ForkServer:
    """A fork server of this module, the caller's to close: one that was started ahead, or a new one.

    Raises:
        DeviceError: it cannot be started.
    """
    found = _waiting.pop(module, None)
    return found if found is not None and found.alive else ForkServer(module)


def drop() -> None:
    """End servers that no device took."""
    while _waiting:
        _waiting.popitem()[1].close()
