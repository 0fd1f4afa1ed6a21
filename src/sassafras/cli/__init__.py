"""The command line: one small file a command, no logic."""

from __future__ import annotations

import gc

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``sassafras`` program."""
    from .app import app

    try:
        app()
    finally:
        gc.freeze()  # else the interpreter's end collects PyTorch's and numba's objects for a second
