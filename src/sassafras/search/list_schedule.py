"""List scheduling with searched priorities: what a compiler does, and then chance.

First every rule of the space's builder (the critical path among them) is tried on every part. Then the
search goes on in the priorities: a few of them change at random, the scheduler builds the part again, and the
evaluator says whether it was worth it. Neighbours in priorities are far apart in moves: one step can carry
many instructions, and still nothing illegal can come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sassafras.core import Builder, Constructive, SearchError, Space

from .contract import Evaluate, Session

#: turns in a row that may lead to nothing new before chance takes larger steps
_IDLE = 50


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Rules first, then perturbed priorities.

    Attributes:
        changed: instructions whose priority changes in one step, on average.
        sigma: standard deviation of a change, in standard deviations of a part's priorities.
    """

    changed: float = 3.0
    sigma: float = 0.3

    name: ClassVar[str] = "list"
    #: the space should be told what instructions cost
    informed: ClassVar[bool] = True

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            SearchError: the space builds nothing from scratch.
        """
        if not isinstance(space, Constructive):
            raise SearchError(
                f"the strategy {self.name!r} builds schedules from scratch, which this space cannot",
                hint="use it on a kernel's schedules, or take anneal",
            )
        builder = space.constructor
        kept = by_rules(builder, evaluate, session)
        parts = list(builder.parts)
        if not parts:
            return
        chances = 1.0 / (1.0 + np.arange(len(parts)))
        chances /= chances.sum()
        cost = session.best.cost
        while session.more():
            part = parts[int(session.rng.choice(len(parts), p=chances))]
            priority, haste, rule = kept[part]
            step = self.sigma * max(float(priority.std()), 1e-9) * 2.0 ** (session.idle / _IDLE)
            share = min(1.0, self.changed / len(priority))
            moved = session.rng.random(len(priority)) < share
            moved[session.rng.integers(len(priority))] = True
            changed = priority + moved * session.rng.normal(0.0, step, len(priority))
            state = builder.construct(session.best.state, part, changed, haste, rule)
            if state is None:
                continue
            found = evaluate(state).cost
            if found is not None and found <= cost:
                kept[part] = (changed, haste, rule)
                cost = found


def by_rules(
    builder: Builder[Any], evaluate: Evaluate[Any], session: Session[Any]
) -> dict[int, tuple[np.ndarray, float, str]]:
    """Try every rule on all parts at once, then on each part of the best so far; the priorities that each
    part of the best has: (priority, haste, rule)."""
    start = session.best.state
    kept = {part: (builder.priorities(start, part, "order"), 0.0, "order") for part in builder.parts}
    for rule, haste in builder.rules.items():
        state = start
        for part in builder.parts:
            made = builder.construct(state, part, builder.priorities(start, part, rule), haste, rule)
            state = state if made is None else made
        before = session.best.cost
        cost = evaluate(state).cost
        if cost is not None and cost < before:
            kept = {part: (builder.priorities(start, part, rule), haste, rule) for part in builder.parts}
    for part in builder.parts:
        for rule, haste in builder.rules.items():
            priority = builder.priorities(session.best.state, part, rule)
            before = session.best.cost
            made = builder.construct(session.best.state, part, priority, haste, rule)
            cost = None if made is None else evaluate(made).cost
            if cost is not None and cost < before:
                kept[part] = (priority, haste, rule)
    return kept
