"""Packing a kernel's arguments for the driver: one value a parameter, in the cubin's own sizes."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence

from sassafras.core import Buffer, Case, DeviceError, Kernel
from sassafras.core.workload import Argument

#: a parameter's value is an address (of a buffer), a whole number, a real number, or bytes as they are passed
#: (a tensor map)
Value = int | float | bytes
#: name, value, type as `Kernel.parameters` writes it (``*`` and what follows: a pointer)
Parameter = tuple[str, Value, str]

#: bytes of a ``CUtensorMap``
TENSOR_MAP_BYTES = 128

_SIZES = {
    "i1": 1, "u1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8,
    "fp16": 2, "bf16": 2, "fp32": 4, "f32": 4, "fp64": 8, "f64": 8,
}  # fmt: skip


def typed_parameters(kernel: Kernel, case: Case) -> list[tuple[str, str]]:
    """(argument name, type) of the kernel's real parameters, in order.

    Raises:
        DeviceError: the kernel names a parameter that the case does not give.
    """
    if kernel.parameters is None:
        return [(name, default_type(argument)) for name, argument in case.args.items()]
    given = {*case.args, *kernel.meta.get("tensor_maps", {})}
    missing = [name for name, _ in kernel.parameters if name not in given]
    if missing:
        raise DeviceError(
            f"the kernel has parameters that the case does not give: {', '.join(missing)}",
            where=f"{kernel.name}, case {case.name}",
            hint="name every run-time argument of the kernel in the case's args",
        )
    return list(kernel.parameters)


def default_type(argument: Argument) -> str:
    """A parameter's type judged by its argument alone, as Triton would."""
    if isinstance(argument, Buffer):
        return "*"
    if isinstance(argument, bool):
        return "i1"
    if isinstance(argument, int):
        return "i32" if -(1 << 31) <= argument < 1 << 31 else "i64"
    return "fp32"


def size_of(kind: str, *, where: str = "parameter") -> int:
    """Bytes of a parameter type. Raises DeviceError for types that cannot be passed (tensor descriptors)."""
    if kind.startswith("*"):
        return 8
    if kind == "tensormap":
        return TENSOR_MAP_BYTES
    if kind not in _SIZES:
        raise DeviceError(
            f"a parameter of type {kind} cannot be passed",
            where=where,
            hint="tensor-map and struct parameters are not supported",
        )
    return _SIZES[kind]


def encode(value: Value, kind: str, size: int, *, where: str = "parameter") -> bytes:
    """A value as `size` little-endian bytes: integers two's complement, floats IEEE (bf16 rounded to even).

    Raises:
        DeviceError: value, type and size do not go together.
    """
    if isinstance(value, bytes):
        if len(value) != size:
            raise DeviceError(f"{len(value)} bytes were given for a parameter of {size}", where=where)
        return value
    if size not in (1, 2, 4, 8):
        raise DeviceError(
            f"a parameter of {size} bytes cannot be passed",
            where=where,
            hint="tensor-map and struct parameters are not supported",
        )
    if kind.startswith(("fp", "bf", "f")) or isinstance(value, float):
        if kind == "bf16" and size == 2:
            (bits,) = struct.unpack("<I", _real("<f", float(value)))
            return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF).to_bytes(2, "little")
        formats = {2: "<e", 4: "<f", 8: "<d"}
        if size not in formats or not kind.startswith(("fp", "f")):
            raise DeviceError(f"a real number cannot be passed as {kind} of {size} bytes", where=where)
        return _real(formats[size], float(value))
    width = 8 * size
    if not -(1 << (width - 1)) <= value < 1 << width:
        raise DeviceError(f"{value} does not fit in {size} bytes", where=where)
    return (value & ((1 << width) - 1)).to_bytes(size, "little")


def _real(form: str, value: float) -> bytes:
    """Packed; infinite where it is too large, as a conversion in C is."""
    try:
        return struct.pack(form, value)
    except OverflowError:
        return struct.pack(form, math.copysign(math.inf, value))


def values(
    kernel: Kernel,
    case: Case,
    addresses: Mapping[str, int],
    scratch: int,
    maps: Mapping[str, bytes] | None = None,
) -> list[Parameter]:
    """Every parameter with its value, the compiler's hidden pointers last.

    Args:
        maps: encoded tensor maps by parameter name.
        addresses: device address of every buffer argument.
        scratch: device address of the global scratch, 0 for none; goes to the first hidden pointer.
    """
    packed: list[Parameter] = []
    for name, kind in typed_parameters(kernel, case):
        if maps and name in maps:
            packed.append((name, maps[name], kind))
            continue
        argument = case.args[name]
        value: Value = addresses[name] if isinstance(argument, Buffer) else argument
        packed.append((name, int(value) if isinstance(value, bool) else value, kind))
    for index in range(kernel.hidden_args):
        packed.append((f"hidden {index}", scratch if index == 0 else 0, "*"))
    return packed


class ParameterBlock:
    """The driver's ``kernelParams``: an array of pointers to values, kept alive with them.

    Args:
        parameters: as `values` gives.
        sizes: the sizes that the cubin declares (``cuFuncGetParamInfo``), None when unknown.

    Raises:
        DeviceError: count or sizes disagree.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        sizes: Sequence[int] | None = None,
        *,
        where: str = "kernel",
    ) -> None:
        if sizes is not None and len(sizes) != len(parameters):
            raise DeviceError(
                f"the cubin declares {len(sizes)} parameters, the workload gives {len(parameters)}: "
                + ", ".join(name for name, _, _ in parameters),
                where=where,
                hint="args must name the kernel's run-time parameters in order; integers that Triton "
                "specialised to 1 are none; Kernel.hidden_args counts the compiler's own",
            )
        # a tensor map has to lie at a multiple of 64 bytes
        slots = [TENSOR_MAP_BYTES if isinstance(value, bytes) else 8 for _, value, _ in parameters]
        self._storage = (ctypes.c_uint8 * (sum(slots) + 64 * (1 + len(slots))))()
        self._pointers = (ctypes.c_void_p * max(1, len(parameters)))()
        self._places: list[int] = []
        at = ctypes.addressof(self._storage)
        for index, (name, value, kind) in enumerate(parameters):
            place = f"{where}, {name}"
            size = size_of(kind, where=place)
            if sizes is not None and sizes[index] != size:
                # Triton widens i1 to a byte or more, and a raw cubin's case need not name its types
                size = sizes[index]
            data = encode(value, kind, size, where=place)
            at = -(-at // 64) * 64
            ctypes.memmove(at, data, len(data))
            self._pointers[index] = at
            self._places.append(at)
            at += slots[index]
        self.parameters = len(parameters)
        #: what ``cuLaunchKernelEx`` takes
        self.address = ctypes.addressof(self._pointers)

    def raw(self, index: int) -> bytes:
        """The eight bytes stored for a parameter (little-endian, zero-padded)."""
        return ctypes.string_at(self._places[index], 8)
