"""What a candidate is worth: the one path from candidate to outcome, and public measuring helpers."""

from __future__ import annotations

from .evaluator import Evaluator, Recorder, ValidatorLike
from .sandbox import Confinement, NotSafe
from .source import Built, Source, SourceEvaluator

__all__ = [
    "Built", "Confinement", "Evaluator", "NotSafe", "Recorder", "Source", "SourceEvaluator", "ValidatorLike",
]  # fmt: skip
