"""Targets that a user may name: files, the suite, captured kernels, our matrix products."""

from .load import load

__all__ = ["load"]
