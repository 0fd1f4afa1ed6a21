"""What it takes to launch a configuration: grid, shared memory, scalars, tensor maps, workspace.

Every family's configuration answers `launch(shape)` with a `Launch`; its instance names the kernel's
parameters in order (`Instance.parameters`), each of one of these kinds:

- ``*fp16``, ``*bf16``: address of operand ``a``, ``b`` or ``c``; a and b change places when `Config.swapped`.
- ``i32``, ``i64``: ``Launch.scalars[name]``; ``f32`` as well, whose scalar is the number's bit pattern.
- ``tensormap``: 128 bytes at a 64-byte boundary (``__grid_constant__``), encoded from
  ``Launch.tensor_maps[name]``.
- ``*f32``: address of ``Launch.workspace_bytes`` bytes, contents arbitrary, 16-byte aligned.
- ``*u32``: address of ``Launch.counters`` words, zero before the first launch; kernels leave them zero.

Workspace and counters belong to one launch at a time: launches that may overlap (two streams, two graphs)
need their own. Both pointers may be null when the sizes are 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sassafras.core import DeviceError

#: shared memory a CTA may use on sm_90
SHARED_LIMIT = 227 * 1024
#: extents of the second and third dimension of a grid
GRID_LIMIT = 65535
#: multiprocessors of an H200 or H100 SXM
MULTIPROCESSORS = 132


def ceil_div(value: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-value // by)


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Arguments of ``cuTensorMapEncodeTiled``: interleave none, element strides 1, zeros out of bounds.

    Attributes:
        operand: whose address it takes: ``a``, ``b`` or ``c`` as the kernel names its parameters.
        dtype: ``fp16`` or ``bf16``.
        dims: extents in elements, innermost first.
        strides: bytes from one index to the next, of every dimension but the innermost.
        box: extents of what one instruction copies, in elements.
        swizzle: bytes: 0, 32, 64 or 128.
    """

    operand: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128

    def reject(self) -> str | None:
        """Why the driver would refuse it, None when it would not (the address needs 16-byte alignment)."""
        if len(self.strides) != len(self.dims) - 1 or len(self.box) != len(self.dims):
            return "dims, strides and box do not go together"
        for stride in self.strides:
            if stride % 16 or not 0 < stride < 1 << 40:
                return f"a row of {self.operand} takes {stride} bytes: TMA wants a multiple of 16"
        if any(not 0 < extent <= 256 for extent in self.box):
            return f"box {self.box}: extents up to 256"
        if any(not 0 < extent <= 1 << 32 for extent in self.dims):
            return f"extents {self.dims}: up to 2^32"
        if (inner := 2 * self.box[0]) % 16 or (self.swizzle and inner > self.swizzle):
            return f"{inner} bytes a row of the box with a swizzle of {self.swizzle}"
        return None


@dataclass(frozen=True, slots=True)
class Launch:
    """How to launch a configuration for a shape.

    Attributes:
        grid: CTAs in x, y and z; x is a multiple of the cluster.
        threads: threads a CTA.
        shared_bytes: dynamic shared memory a CTA.
        cluster: cluster shape.
        scalars: values of the integer parameters, by name.
        tensor_maps: tensor maps, by parameter name.
        workspace_bytes: scratch that the launch needs, 0 for none.
        counters: zeroed words that the launch needs, 0 for none.
        overlap: it may start while the launch before is at work (programmatic stream serialization).
    """

    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: tuple[int, int, int]
    scalars: dict[str, int]
    tensor_maps: dict[str, TensorMap] = field(default_factory=dict)
    workspace_bytes: int = 0
    counters: int = 0
    overlap: bool = False


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


def encode(driver: Any, described: TensorMap, address: int) -> bytes:
    """The 128 bytes of a tensor map. Raises DeviceError when the driver refuses it."""
    from sassafras.device.cuda.driver import call

    if why := described.reject():
        raise DeviceError(why, where=f"tensor map of {described.operand}")
    kinds, rank = driver.CUtensorMapDataType, len(described.dims)
    dtype = getattr(
        kinds,
        f"CU_TENSOR_MAP_DATA_TYPE_{'BFLOAT16' if described.dtype == 'bf16' else 'FLOAT16'}",
    )
    name = f"{described.swizzle}B" if described.swizzle else "NONE"
    made = call(
        driver.cuTensorMapEncodeTiled,
        dtype, rank, address,
        [driver.cuuint64_t(extent) for extent in described.dims],
        [driver.cuuint64_t(stride) for stride in described.strides],
        [driver.cuuint32_t(extent) for extent in described.box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{name}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    return ctypes.string_at(int(made.getPtr()), 128)
