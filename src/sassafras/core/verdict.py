"""What came of a candidate."""

from __future__ import annotations

from enum import StrEnum

#: the validator's rules, by number: one more whenever they refuse what they approved. A stored winner names
#: those that approved it, and is proved again before its first use where they are others. 2: who vouches for
#: whom is pairs (2026-11-22)
VALIDATOR_RULES = 2


class Verdict(StrEnum):
    """The one outcome of a candidate on a device. Only `CORRECT` may carry a speed-up."""

    CORRECT = "correct"
    ILLEGAL_SCHEDULE = "illegal_schedule"
    COMPILE_ERROR = "compile_error"
    OUT_OF_RESOURCES = "out_of_resources"
    WRONG_RESULT = "wrong_result"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    CHEATED = "cheated"
    UNSTABLE_BASELINE = "unstable_baseline"
    UNSUPPORTED = "unsupported"

    @property
    def ok(self) -> bool:
        """True for `CORRECT` alone."""
        return self is Verdict.CORRECT
