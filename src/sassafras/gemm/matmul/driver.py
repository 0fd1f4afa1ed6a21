"""The CUDA driver through ctypes, as far as dispatch needs it: load cubins, launch, hand out addresses.

No package beside ctypes is needed, and the addresses go straight to the compiled launcher. (The benchmark
uses `cuda.driver`, which needs cuda-bindings.) Signatures: CUDA driver API, cuda.h of CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError
from sassafras.cuda.tensor_maps import L2_PROMOTION_128

from ..select.gpus import GpuFacts

_STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, percent
# CU_DEVICE_ATTRIBUTE_*: CLOCK_RATE, MULTIPROCESSOR_COUNT, MEMORY_CLOCK_RATE (kHz), GLOBAL_MEMORY_BUS_WIDTH
_CLOCK, _MULTIPROCESSORS, _MEMORY_CLOCK, _BUS = 13, 16, 36, 37
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuModuleLoadData": (POINTER(c_void_p), c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int,
    ),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
}  # fmt: skip

#: names under which the compiled launcher asks for a function
_PLAIN = {"cuCtxPushCurrent_v2": "cuCtxPushCurrent", "cuCtxPopCurrent_v2": "cuCtxPopCurrent"}


class DriverError(DeviceError):
    """A driver function returned an error (`code`)."""

    def __init__(self, name: str, code: int) -> None:
        self.code = code
        super().__init__(f"{name}: CUDA error {code}")


class _Dimensions(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class _Value(ctypes.Union):
    _fields_ = [("bytes", ctypes.c_char * 64), ("cluster", _Dimensions), ("number", c_int)]


class _Attribute(ctypes.Structure):
    _fields_ = [("id", c_int), ("pad", ctypes.c_char * 4), ("value", _Value)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    ]


def launch_config(
    grid: tuple[int, ...], threads: int, shared: int, cluster: tuple[int, ...], overlap: bool = False
) -> LaunchConfig:
    """A CUlaunchConfig whose stream is still to be set.

    Args:
        overlap: the kernel waits for the launch before it by itself, and may start while that one is at work.
    """
    config = LaunchConfig((c_uint * 3)(*grid), (c_uint * 3)(threads, 1, 1), shared, None, None, 0)
    attributes = (_Attribute * 2)()
    if cluster != (1, 1, 1):
        attributes[config.count].id = _CLUSTER
        attributes[config.count].value.cluster = _Dimensions(*cluster)
        config.count += 1
    if overlap:
        attributes[config.count].id = _OVERLAP
        attributes[config.count].value.number = 1
        config.count += 1
    if config.count:
        config.attributes = ctypes.cast(attributes, POINTER(_Attribute))
    return config


class Driver:
    """The loaded driver library. Raises DeviceError when it is not there or too old. Any thread may call it.

    Args:
        library: path or name, for tests; the system's by default.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DeviceError("no CUDA driver on this machine", where=library) from error
        self._functions: dict[str, Any] = {}
        for name, types in _SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise DeviceError(f"the CUDA driver has no {name}", hint="update the driver") from error
            function.argtypes, function.restype = types, c_int
            self._functions[name] = function
        self.call("cuInit", 0)
        self._lock = threading.Lock()
        self._contexts: dict[int, int] = {}

    def call(self, name: str, *args: Any) -> None:
        """Raises DriverError."""
        if code := self._functions[name](*args):
            raise DriverError(name, code)

    def function(self, name: str) -> Any:
        """The ctypes function, unchecked: it returns the error code."""
        return self._functions[name]

    def addresses(self) -> dict[str, int]:
        """Function name (without version suffix) -> address."""
        return {
            _PLAIN.get(name, name): int(ctypes.cast(function, c_void_p).value or 0)
            for name, function in self._functions.items()
        }

    def facts(self, ordinal: int) -> tuple[str, tuple[int, int]]:
        """Name and compute capability of a device."""
        device, text, major, minor = c_int(), ctypes.create_string_buffer(256), c_int(), c_int()
        self.call("cuDeviceGet", byref(device), ordinal)
        self.call("cuDeviceGetName", text, 256, device)
        self.call("cuDeviceGetAttribute", byref(major), _MAJOR, device)
        self.call("cuDeviceGetAttribute", byref(minor), _MINOR, device)
        return text.value.decode(), (major.value, minor.value)

    def hardware(self, ordinal: int) -> GpuFacts | None:
        """What the device's tables are found by; None where the driver does not say."""
        device, found = c_int(), []
        self.call("cuDeviceGet", byref(device), ordinal)
        for which in (_MULTIPROCESSORS, _MEMORY_CLOCK, _BUS, _CLOCK):
            value = c_int()
            if self._functions["cuDeviceGetAttribute"](byref(value), which, device) or value.value <= 0:
                return None
            found.append(value.value)
        multiprocessors, memory_khz, bits, clock_khz = found
        # two transfers a cycle
        return GpuFacts(self.facts(ordinal)[0], multiprocessors, memory_khz * bits / 4e6, clock_khz / 1e3)

    @staticmethod
    def version() -> str:
        """Of the kernel's driver (``580.159.04``); empty where the system does not say."""
        try:
            text = Path("/proc/driver/nvidia/version").read_text()
        except OSError:
            return ""
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
        return found[0] if found else ""

    def context(self, ordinal: int) -> int:
        """The device's primary context, the one that torch uses."""
        with self._lock:
            if ordinal not in self._contexts:
                device, context = c_int(), c_void_p()
                self.call("cuDeviceGet", byref(device), ordinal)
                self.call("cuDevicePrimaryCtxRetain", byref(context), device)
                self._contexts[ordinal] = int(context.value or 0)
            return self._contexts[ordinal]

    @contextmanager
    def current(self, context: int) -> Iterator[None]:
        """With this context current, and free to load code while some stream is being captured."""
        mode, popped = c_int(_RELAXED), c_void_p()
        self.call("cuCtxPushCurrent_v2", context)
        try:
            self.call("cuThreadExchangeStreamCaptureMode", byref(mode))
            try:
                yield
            finally:
                self.call("cuThreadExchangeStreamCaptureMode", byref(mode))
        finally:
            self.call("cuCtxPopCurrent_v2", byref(popped))

    def load(self, ordinal: int, cubin: bytes, name: str, shared_limit: int, all_shared: bool = False) -> int:
        """Handle of an entry, allowed `shared_limit` bytes of shared memory in all. Raises DriverError.

        Args:
            all_shared: a multiprocessor that runs it has no memory but shared memory (and the smallest L1).
        """
        module, function, static = c_void_p(), c_void_p(), c_int()
        with self.current(self.context(ordinal)):
            self.call("cuModuleLoadData", byref(module), cubin)
            self.call("cuModuleGetFunction", byref(function), module, name.encode())
            if shared_limit > 48 * 1024:
                self.call("cuFuncGetAttribute", byref(static), _STATIC_SHARED, function)
                limit = shared_limit - static.value
                self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, limit)
            if all_shared:
                self.call("cuFuncSetAttribute", function, _CARVEOUT, 100)
        return int(function.value or 0)

    def encode(self, target: int, address: int, described: tuple[Any, ...]) -> int:
        """cuTensorMapEncodeTiled into `target` (128 bytes, 64-byte aligned); the error code.

        `described`: as in `plan.LaunchPlan`, ("map", operand, type, dims, strides, box, swizzle).
        """
        _, _, kind, dims, strides, box, swizzle = described
        rank = len(dims)
        extents = (c_ulonglong * rank)(*dims), (c_ulonglong * rank)(*strides, 0)
        boxes = (c_uint * rank)(*box), (c_uint * rank)(*[1] * rank)
        return int(
            self._functions["cuTensorMapEncodeTiled"](
                target, kind, rank, address, *extents, *boxes, 0, swizzle, L2_PROMOTION_128, 0
            )
        )


__all__ = ["Driver", "DriverError", "LaunchConfig", "launch_config"]
