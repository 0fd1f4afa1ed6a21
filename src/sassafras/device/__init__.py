"""Devices: where candidates run (`CudaDevice`) or are modelled (`ModelDevice`). Loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"CudaDevice": ".cuda", "available": ".cuda", "ModelDevice": ".model"}

__all__ = ["CudaDevice", "ModelDevice", "available"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
