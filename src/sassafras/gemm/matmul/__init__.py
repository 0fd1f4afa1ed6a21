"""What serves a call of `sassafras.matmul`. Its `api` loads torch, and is loaded by its first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "api":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(".api", __name__)
