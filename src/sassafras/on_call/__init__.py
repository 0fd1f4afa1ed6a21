"""Search on call: a kernel's first launch begins a search in the background, whose winner takes over.

Importing this is light: neither Triton, NumPy nor the store is touched before a search is asked for.
"""

from __future__ import annotations

from .entry import autotune, install

__all__ = ["autotune", "install"]
