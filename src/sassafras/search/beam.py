"""Beam search: parts are built instruction by instruction, and the partial orders that can still end soonest
are kept; what comes out is evaluated, best first.

Parts are gone through from the most expensive one; then again from the best so far, with other priorities
to break ties and wider beams, until the budget is spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sassafras.core import Space

from .contract import Evaluate, Session
from .list_schedule import builder_of


@dataclass(frozen=True, slots=True)
class Beam:
    """Beam search over each part, the evaluator choosing among its best.

    Attributes:
        width: partial orders kept in the first round; each round doubles it, up to `widest`.
        widest: see `width`.
        branch: successors tried of each.
        keep: complete orders evaluated of each beam.
        noise: standard deviation of what is added to priorities from the second round on, in standard
            deviations of the priorities.
    """

    width: int = 8
    widest: int = 64
    branch: int = 4
    keep: int = 4
    noise: float = 0.2

    name: ClassVar[str] = "beam"
    informed: ClassVar[bool] = True

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            SearchError: the space builds nothing from scratch.
        """
        builder = builder_of(space, self.name)
        width, first = self.width, True
        while builder.parts and session.more():
            for part in builder.parts:
                for rule in builder.rules:
                    if not session.more():
                        return
                    best = session.best.state
                    priority = builder.priorities(best, part, rule)
                    if not first:
                        spread = self.noise * max(float(priority.std()), 1e-9)
                        priority = priority + session.rng.normal(0.0, spread, len(priority))
                    for state in builder.beams(best, part, width, self.branch, priority, rule, self.keep):
                        evaluate(state)
            width, first = min(2 * width, self.widest), False
