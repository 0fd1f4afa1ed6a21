"""Arguments of a launch as the driver takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sassafras.core import DeviceError
from sassafras.cuda.params import ParameterBlock, Value
from sassafras.cuda.tensor_maps import encode

from ..problem.launch import Launch


def packed(
    parameters: Sequence[tuple[str, str]],
    launch: Launch,
    addresses: Mapping[str, int],
    driver: Any = None,
    *,
    sizes: Sequence[int] | None = None,
    where: str = "kernel",
) -> ParameterBlock:
    """The driver's ``kernelParams`` of one launch.

    Args:
        parameters: (name, kind) in order, as an instance's `parameters`.
        launch: scalars and tensor maps.
        addresses: device addresses of ``a``, ``b``, ``c`` (as the kernel names them) and ``workspace``.
        driver: ``cuda.bindings.driver``; needed for tensor maps only.
        sizes: those that the cubin declares, None when unknown.
        where: the kernel's name, for messages.

    Raises:
        DeviceError: a parameter has no value or another size, or the driver refuses a tensor map.
    """

    def value(name: str, kind: str) -> Value:
        if kind == "tensormap":
            described = launch.tensor_maps[name]
            return encode(driver, described, addresses[described.operand])
        if kind == "f32":  # its scalar is the number's bit pattern
            return (launch.scalars[name] & 0xFFFFFFFF).to_bytes(4, "little")
        return addresses[name] if kind.startswith("*") else launch.scalars[name]

    try:
        return ParameterBlock([(n, value(n, kind), kind) for n, kind in parameters], sizes, where=where)
    except KeyError as error:
        raise DeviceError(f"the launch gives no value to {error.args[0]}", where=where) from error
