"""Is a candidate the same program, with legal timing? The scheduler's code has no part in the answer."""

from .report import Report, Violation
from .validator import Validator, validate

__all__ = ["Report", "Validator", "Violation", "validate"]
