"""The name of a GPU, as the store knows it: asked of the CUDA driver, without torch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from sassafras.core.errors import DeviceError


@lru_cache(maxsize=64)
def gpu_name(device: int) -> str:
    """What the driver calls the GPU with this CUDA ordinal, for example ``NVIDIA H200``.

    Raises:
        DeviceError: there is no driver, or no such GPU.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError("no CUDA driver on this machine (libcuda.so.1 is missing)") from error
    if code := cuda.cuInit(0):  # does nothing where CUDA runs already
        raise DeviceError(f"the CUDA driver cannot start (cuInit: {code})")
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuDeviceGet(ctypes.byref(handle), device) or cuda.cuDeviceGetName(name, len(name), handle):
        raise DeviceError(f"the CUDA driver knows no GPU {device}")
    return name.value.decode(errors="replace")


def bus_id(device: int) -> str:
    """The PCI address of the GPU with this CUDA ordinal, the same in every process; without a driver the
    ordinal."""
    text = ctypes.create_string_buffer(32)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        handle = ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(handle), device):
            return str(device)
        if cuda.cuDeviceGetPCIBusId(text, len(text), handle):
            return str(device)
    except (OSError, AttributeError):
        return str(device)
    return text.value.decode(errors="replace")


def claim_key(host: str) -> str:
    """The key under which processes of this machine claim GPU 0 (`store.claims`); `host`: an `Owner`'s."""
    return f"gpu {host.split()[0]} {bus_id(0)}"


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Calls of this thread neither fail nor spoil a CUDA graph that another thread captures meanwhile.

    Does nothing where there is no driver.
    """
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        yield
        return
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED; holds the mode before, afterwards
    changed = exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if changed:
            exchange(ctypes.byref(mode))
