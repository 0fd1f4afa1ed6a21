"""What a check finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

#: ``wrong``: no run can be trusted; ``doubtful``: works, but is odd; ``unchecked``: was not looked at
Level = Literal["wrong", "doubtful", "unchecked"]
LEVELS: tuple[Level, ...] = ("wrong", "doubtful", "unchecked")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, doubtful, or could not be checked.

    Attributes:
        level: which of the three.
        about: the buffer or the field concerned: ``y_ptr``, ``grid``, ``reference``, ``tolerance``, ...
        text: what is the matter, with what to do about it.
        case: the case; empty for the whole workload.
    """

    level: Level
    about: str
    text: str
    case: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {f'case {self.case}, ' if self.case else ''}{self.about}: {self.text}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of one target came to.

    Attributes:
        target: what was checked.
        cases: names of the cases looked at.
        findings: the wrong ones first.
        programs: by case, Triton programs run in the interpreter, and all of its grid.
    """

    target: str
    cases: tuple[str, ...]
    findings: tuple[Finding, ...]
    programs: Mapping[str, tuple[int, int]]

    def of(self, level: Level) -> list[Finding]:
        """Findings of one level."""
        return [one for one in self.findings if one.level == level]

    def summary(self) -> str:
        """One line."""
        counts = ", ".join(f"{len(self.of(level))} {level}" for level in LEVELS)
        return f"{self.target}: {len(self.cases)} cases, {counts}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"summary": self.summary()}
