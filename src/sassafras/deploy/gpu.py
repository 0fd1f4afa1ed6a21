"""The name of a GPU, as the store knows it: asked of the CUDA driver, without torch."""

from __future__ import annotations

import ctypes
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
