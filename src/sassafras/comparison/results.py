"""What two functions returned: is it alike, and does it lie on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sassafras.core import Tolerance


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [t for key in sorted(value, key=str) for t in _tensors(value[key])]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    return [value] if hasattr(value, "shape") and hasattr(value, "dtype") else []


def on_gpu(value: Any) -> bool:
    """True when any tensor in there does."""
    return any(bool(getattr(tensor, "is_cuda", False)) for tensor in _tensors(value))


def alike(first: Any, second: Any) -> str:
    """``bitwise``, ``close`` (rtol, atol 1e-3), ``different``, or ``not compared`` without arrays."""
    one, other = _tensors(first), _tensors(second)
    if not one and not other:
        return "not compared"
    if [(tuple(t.shape), str(t.dtype)) for t in one] != [(tuple(t.shape), str(t.dtype)) for t in other]:
        return "different"
    found = "bitwise"
    for x, y in zip(map(_array, one), map(_array, other), strict=True):
        if x.tobytes() != y.tobytes():
            found = "close"
            with np.errstate(invalid="ignore", over="ignore"):
                near = Tolerance(rtol=1e-3, atol=1e-3).close(y, x)
            if not near.all():
                return "different"
    return found


def _array(tensor: Any) -> np.ndarray:
    if hasattr(tensor, "detach"):
        import torch

        wide = tensor.detach().to("cpu")
        return np.asarray(wide.to(torch.float64).numpy() if wide.is_floating_point() else wide.numpy())
    return np.asarray(tensor)
