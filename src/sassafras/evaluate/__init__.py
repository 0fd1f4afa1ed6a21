"""What a candidate is worth: the one path from candidate to outcome, and public measuring helpers."""

from __future__ import annotations

from .evaluator import FAILURES, ApprovedFailure, KernelEvaluator, ValidatorLike
from .sandbox import Confinement, NotSafe
from .source import Built, Source, SourceEvaluator

__all__ = [
    "FAILURES",
    "ApprovedFailure",
    "Built",
    "Confinement",
    "KernelEvaluator",
    "NotSafe",
    "Source",
    "SourceEvaluator",
    "ValidatorLike",
]
