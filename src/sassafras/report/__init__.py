"""Results as text and JSON."""

from .result import Result

__all__ = ["Result"]
