"""Arguments of a launch, described without reading any memory: tensors are known by their attributes."""

from __future__ import annotations

import hashlib
from typing import Any


def is_tensor(value: Any) -> bool:
    """True for what Triton takes as a pointer."""
    return hasattr(value, "data_ptr")


def key_of(value: Any) -> Any:
    """What distinguishes an argument from another, cheaply and hashable; floats all look alike."""
    if is_tensor(value):
        shape = getattr(value, "shape", None)
        aligned = int(value.data_ptr()) % 16
        return str(value.dtype), None if shape is None else tuple(shape), strides(value), aligned
    if isinstance(value, bool):
        return bool, value  # to Python it equals 0 or 1, to Triton it is of another type
    return float if isinstance(value, float) else plain(value)


def strides(value: Any) -> tuple[int, ...] | None:
    """A tensor's strides in elements; None where it has none."""
    stride = getattr(value, "stride", None)
    return tuple(int(n) for n in stride()) if callable(stride) else None


def tensor_facts(value: Any, kind: str) -> dict[str, Any]:
    """A tensor as it is kept: dtype (from Triton's type `kind`), shape, strides, 16-byte alignment."""
    shape, steps = getattr(value, "shape", None), strides(value)
    return {
        "dtype": kind.lstrip("*k") if kind.startswith("*") else kind,
        "shape": [1] if shape is None else [int(n) for n in shape],
        "strides": None if steps is None else list(steps),
        "aligned": int(value.data_ptr()) % 16 == 0,
    }


def default(fn: Any, name: str) -> Any:
    """The default of a parameter of a Triton function."""
    return fn.signature.parameters[name].default


def plain(value: Any) -> Any:
    """A scalar as it is, anything else as text."""
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def contents_digest(array: Any) -> str:
    """The sha256 that names the contents of an integer tensor, a contiguous NumPy array."""
    return hashlib.sha256(array.tobytes() + str((array.dtype.str, array.shape)).encode()).hexdigest()
