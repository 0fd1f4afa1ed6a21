"""The budget of a search: seconds, evaluations or both."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import SearchError

_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit in seconds, in evaluations, or both (whichever is reached first).

    Attributes:
        seconds: wall time, None for no limit.
        evaluations: outcomes asked of the evaluator, None for no limit.
    """

    seconds: float | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.evaluations is None:
            raise SearchError("a budget needs seconds, evaluations or both")
        if (self.seconds is not None and self.seconds <= 0) or (
            self.evaluations is not None and self.evaluations <= 0
        ):
            raise SearchError(f"a budget must be positive, got {self}")

    @classmethod
    def of(cls, given: str | Budget) -> Budget:
        """A budget as it is, or from text. Raises SearchError; for a number too, which has no unit."""
        return given if isinstance(given, Budget) else cls.parse(str(given))

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``60s``, ``5m``, ``1h``, ``3000e`` (evaluations), or ``60s,3000e``.

        Raises:
            SearchError: the text is none of these, or a number without a unit.
        """
        seconds: float | None = None
        evaluations: int | None = None
        for part in text.split(","):
            if re.fullmatch(r"\d+(\.\d+)?", part.strip()):
                number = part.strip()
                raise SearchError(
                    f"the budget {number} has no unit",
                    hint=f"{number}s is seconds, {number.split('.')[0]}e evaluations",
                )
            if found := re.fullmatch(r"(\d+)(?:e|evals?)", part.strip()):
                evaluations = int(found[1])
            elif found := re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h)", part.strip()):
                seconds = float(found[1]) * _UNIT_SECONDS[found[2]]
            else:
                raise SearchError(
                    f"cannot read the budget {text!r}", hint="for example 60s, 5m, 3000e or 60s,3000e"
                )
        return cls(seconds, evaluations)

    def share(self, seconds: float, evaluations: int) -> float:
        """What of it these seconds and evaluations are, 0 to 1."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append(seconds / self.seconds)
        if self.evaluations is not None:
            shares.append(evaluations / self.evaluations)
        return min(max(shares), 1.0)

    def __str__(self) -> str:
        parts = []
        if self.seconds is not None:
            parts.append(f"{self.seconds:g}s")
        if self.evaluations is not None:
            parts.append(f"{self.evaluations}e")
        return ",".join(parts)
