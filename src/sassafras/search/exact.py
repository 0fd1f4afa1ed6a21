"""An exact solver, part by part: small parts whole, stretches of large ones.

The solver minimises what the space expects of a part; the evaluator says what that is worth.
It needs OR-tools (the extra ``exact``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sassafras.core import Space

from .contract import Evaluate, Session
from .list_schedule import builder_of, by_rules

#: for a warp alone, and for one that shares its pipes
RULES = ("path", "crowded")


@dataclass(frozen=True, slots=True)
class Exact:
    """Begin with the list scheduler's rules; then solve parts, and stretches of parts, to the optimum.

    Attributes:
        whole: parts of so many instructions are solved whole.
        stretch: instructions of a stretch of a larger part.
        seconds: the solver's limit for a part (its deterministic time, which is of the order of seconds); a
            stretch gets a third.
        patience: turns (`Session.idle`: two a stretch, one where the solver finds none) in a row that lead to
            nothing new before the search ends by itself.
    """

    whole: int = 250
    stretch: int = 40
    seconds: float = 1.0
    patience: int = 20

    name: ClassVar[str] = "exact"
    informed: ClassVar[bool] = True

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            SearchError: the space builds nothing from scratch.
            ToolMissing: OR-tools are not installed.
        """
        builder = builder_of(space, self.name)
        sizes = {part: builder.size(part) for part in builder.parts}
        by_rules(builder, evaluate, session)
        for part, size in sizes.items():
            for rule in RULES:
                if size <= self.whole and session.more():
                    best = session.best.state
                    self._try(builder.perfect(best, part, self.seconds, None, rule, 0), evaluate)
        seed = 0
        while sizes:
            for part, size in sizes.items():
                if not session.more() or session.idle > self.patience:
                    return
                seed += 1
                begin = int(session.rng.integers(max(1, size - self.stretch)))
                window = (begin, min(size, begin + self.stretch) - 1)
                rule = RULES[int(session.rng.integers(len(RULES)))]
                best = session.best.state
                self._try(builder.perfect(best, part, self.seconds / 3, window, rule, seed), evaluate)

    @staticmethod
    def _try(state: Any, evaluate: Evaluate[Any]) -> None:
        if state is not None:
            evaluate(state)
