"""Record the Triton kernels that a program launches, as workloads that are data and never code.

Importing this is light: neither Triton, NumPy nor torch is touched before a program launches a kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .parts import merge
    from .recording import start, stop

_HOME = {"merge": "parts", "start": "recording", "stop": "recording"}

__all__ = ["merge", "start", "stop"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
