"""Simulated annealing with SIP's own schedule (arXiv 2403.16863).

Temperatures, factor and end are those of SIP's public code (github.com/hgl71964/cuasmrl, ``jit.py`` and
``simulated_annealing.py`` at 5ffbc39): 0.4, times 0.997 a step, down to 0.05, which takes 693 steps. Its
energy is minus the kernel's TFLOP/s, so that a temperature means more for a slow kernel than for a fast one.
`Anneal` is relative to the runtime instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from sassafras.core import SearchError, Space

from .anneal import COLDEST
from .contract import Evaluate, Session


@dataclass(frozen=True, slots=True)
class Sip:
    """Accept a slower neighbour with probability exp(change of throughput / temperature).

    Attributes:
        start: first temperature, in the unit of throughput.
        factor: of the temperature, a step.
        least: temperature at which the search ends; 0: with its budget.
        throughput: of the baseline, in the unit of the temperatures. SIP's unit is TFLOP/s; by default a
            percent of the baseline's throughput.
        moves: of the schedule space: ``"memory"`` as in SIP, or ``"all"``.
    """

    start: float = 0.4
    factor: float = 0.997
    least: float = 0.05
    throughput: float = 100.0
    moves: str = "memory"

    name: ClassVar[str] = "sip"

    def __post_init__(self) -> None:
        if min(self.start, self.throughput) <= 0 or not 0 < self.factor <= 1 or self.least < 0:
            raise SearchError(
                f"sip cannot run with {self}",
                hint="start and throughput are above 0, factor is above 0 and at most 1, least not negative",
            )

    @property
    def space_options(self) -> dict[str, Any]:
        """What a schedule space should be made with for this strategy."""
        return {"moves": self.moves}

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`."""
        state, speed = session.best.state, self.throughput / session.best.cost
        temperature = self.start
        while temperature > self.least and session.more():
            move = space.sample(state, session.rng)
            now, temperature = temperature, max(temperature * self.factor, COLDEST)
            if move is None:
                state, speed = session.best.state, self.throughput / session.best.cost
                continue
            neighbour = space.apply(state, move)
            cost = evaluate(neighbour).cost
            if cost is None:
                continue
            change = self.throughput / cost - speed
            if change >= 0 or session.rng.random() < math.exp(change / now):
                state, speed = neighbour, self.throughput / cost
