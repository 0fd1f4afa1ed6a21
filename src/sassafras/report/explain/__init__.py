"""`sassafras.explain`: which moves of a tuned schedule gave how much, and why."""

from .classes import MoveClass
from .explanation import Explained, Explanation, Part
from .work import explain

__all__ = ["Explained", "Explanation", "MoveClass", "Part", "explain"]
