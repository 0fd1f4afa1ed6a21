"""The 128 bytes of a tensor map (TMA descriptor)."""

from __future__ import annotations

import ctypes
from typing import Any

from sassafras.core import DeviceError
from sassafras.core.tensor_map import TensorMap

from .driver import call

#: bytes that a copy which misses the L2 brings into it at least, as the driver numbers them. With 256 an H200
#: streams weights at 4.0 TB/s, with 128, 64 and none at 4.3
L2_PROMOTION_128 = 2


def encode(driver: Any, described: TensorMap, address: int) -> bytes:
    """The 128 bytes of a tensor map. Raises DeviceError when the driver refuses it."""
    if why := described.why_illegal():
        raise DeviceError(why, where=f"tensor map of {described.operand}")
    kinds, rank = driver.CUtensorMapDataType, len(described.dims)
    dtype = getattr(
        kinds,
        f"CU_TENSOR_MAP_DATA_TYPE_{'BFLOAT16' if described.dtype == 'bf16' else 'FLOAT16'}",
    )
    name = f"{described.swizzle}B" if described.swizzle else "NONE"
    made = call(
        driver.cuTensorMapEncodeTiled,
        dtype,
        rank,
        address,
        [driver.cuuint64_t(extent) for extent in described.dims],
        [driver.cuuint64_t(stride) for stride in described.strides],
        [driver.cuuint32_t(extent) for extent in described.box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{name}"),
        driver.CUtensorMapL2promotion(L2_PROMOTION_128),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(int(made.getPtr()), 128)
