"""The command line: one small file a command, no logic."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``sassafras`` program."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, `>&-`
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115
    from .app import app

    try:
        app()
    finally:
        gc.freeze()  # else the interpreter's end collects PyTorch's and numba's objects for a second
