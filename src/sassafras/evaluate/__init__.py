"""What a candidate is worth: the one path from candidate to outcome, and public measuring helpers."""

from __future__ import annotations

from .evaluator import Evaluator, Recorder, ValidatorLike

__all__ = ["Evaluator", "Recorder", "ValidatorLike"]
