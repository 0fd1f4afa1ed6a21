"""Simulated annealing over legal moves, as SIP does (arXiv 2403.16863, section 4).

SIP accepts a slower schedule with a probability that depends on the kernel's TFLOP/s, so that its
temperatures mean something else for every kernel. Here they are relative to the baseline's runtime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from sassafras.core import SearchError, Space

from .contract import Evaluate, Session

#: most doublings of the temperature, and the least temperature: what is smaller may round to 0
WARMEST, COLDEST = 60.0, 1e-300


@dataclass(frozen=True, slots=True)
class Anneal:
    """Accept a slower neighbour with probability exp(-slowdown / temperature), and cool down.

    Attributes:
        start: first temperature, in baseline runtimes. Observed on an H200: 0.0007 found what there was to
            find; 0.01 wandered off and found nothing.
        end: last temperature, in baseline runtimes; cooling is geometric over the budget.
        cycles: how often the budget is divided into such coolings; each begins at the best so far.
        patience: turns (two a step, `Session.idle`) in which a walk that meets nothing new warms up to twice
            its temperature, so that it leaves a valley all of whose slopes are known.
    """

    start: float = 7e-4
    end: float = 1e-5
    cycles: int = 3
    patience: int = 50

    name: ClassVar[str] = "anneal"

    def __post_init__(self) -> None:
        if min(self.start, self.end) <= 0 or min(self.cycles, self.patience) < 1:
            raise SearchError(
                f"anneal cannot run with {self}",
                hint="start and end are above 0, cycles and patience at least 1",
            )

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`."""
        state, cost, cycle = session.best.state, session.best.cost, 0
        while session.more():
            position = session.progress * self.cycles
            if int(position) > cycle:
                cycle, state, cost = int(position), session.best.state, session.best.cost
            temperature = self.start * (self.end / self.start) ** (position - int(position))
            temperature = max(temperature * 2.0 ** min(session.idle / self.patience, WARMEST), COLDEST)
            move = space.sample(state, session.rng)
            if move is None:
                state, cost = session.best.state, session.best.cost
                continue
            neighbour = space.apply(state, move)
            found = evaluate(neighbour).cost
            if found is None:
                continue
            if found <= cost or session.rng.random() < math.exp((cost - found) / temperature):
                state, cost = neighbour, found
