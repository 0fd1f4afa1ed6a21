"""Arguments of a launch as the driver takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from sassafras.core import DeviceError
from sassafras.cuda.tensor_maps import encode

from ..problem.launch import Launch


class Arguments:
    """The driver's ``kernelParams`` of one launch, kept alive with what they point to.

    Args:
        parameters: (name, kind) in order, as an instance's `parameters`.
        launch: scalars and tensor maps.
        addresses: device addresses of ``a``, ``b``, ``c`` (as the kernel names them), ``workspace`` and
            ``counters``.
        driver: ``cuda.bindings.driver``; needed for tensor maps only.

    Raises:
        DeviceError: a parameter has no value, or the driver refuses a tensor map.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, str]],
        launch: Launch,
        addresses: Mapping[str, int],
        driver: Any = None,
    ) -> None:
        slot = 128
        self._storage = ctypes.create_string_buffer(slot * (len(parameters) + 1))
        base = -(-ctypes.addressof(self._storage) // slot) * slot
        self._pointers = (ctypes.c_void_p * max(1, len(parameters)))()
        self.sizes: list[int] = []
        for index, (name, kind) in enumerate(parameters):
            try:
                data = _encoded(name, kind, launch, addresses, driver)
            except KeyError as error:
                raise DeviceError(f"the launch gives no value to {name}", where=kind) from error
            ctypes.memmove(base + slot * index, data, len(data))
            self._pointers[index] = base + slot * index
            self.sizes.append(len(data))
        #: what ``cuLaunchKernelEx`` takes
        self.address = ctypes.addressof(self._pointers)


def _encoded(name: str, kind: str, launch: Launch, addresses: Mapping[str, int], driver: Any) -> bytes:
    if kind == "tensormap":
        described = launch.tensor_maps[name]
        return encode(driver, described, addresses[described.operand])
    if kind.startswith("*"):
        return int(addresses[name]).to_bytes(8, "little")
    return int(launch.scalars[name]).to_bytes(8 if kind == "i64" else 4, "little", signed=True)
