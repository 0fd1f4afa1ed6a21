"""`sassafras.explain`: which moves of a tuned schedule gave how much, and why."""

from .classes import MoveClass
from .explanation import Explained, ExplainedPart, Explanation
from .work import explain

__all__ = ["Explained", "ExplainedPart", "Explanation", "MoveClass", "explain"]
