"""Verdicts: the outcome of a candidate."""

from __future__ import annotations

from enum import StrEnum

#: version of the validator's rules, raised when they refuse what they approved earlier. A stored winner names
#: the version that approved it; one of another version is validated again before its first use. Version 2:
#: queue order is a table of pairs. 3: a writer over UIMAD.WIDE's result keeps its distance. 4: LDGSTS stays
#: behind shuffles that pad it. 5: a writer of its own guard stays behind its readers. 6: what follows a BAR
#: keeps its distance also in other blocks, and if it is a fence; so does a product's wait. 7: so does
#: LDGDEPBAR behind LDGSTS
VALIDATOR_RULES = 7


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
