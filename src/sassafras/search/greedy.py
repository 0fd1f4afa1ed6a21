"""Greedy: take what is better, and leap from the best when nothing is (iterated local search)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sassafras.core import SearchError, Space

from .contract import Evaluate, Session


@dataclass(frozen=True, slots=True)
class Greedy:
    """Step only to cheaper states; after many refusals, leap a few random steps away from the best.

    Attributes:
        patience: steps in a row without an improvement that end a climb.
        leap: random moves made at once, unevaluated in between, to begin the next climb.
        margin: relative runtime by which a step must improve; set it to the noise of one evaluation.
    """

    patience: int = 200
    leap: int = 4
    margin: float = 0.0

    name: ClassVar[str] = "greedy"

    def __post_init__(self) -> None:
        if self.leap < 1 or self.patience < 0 or self.margin < 0:
            raise SearchError(
                f"greedy cannot run with {self}",
                hint="leap is at least 1, patience and margin are not negative",
            )

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`."""
        state, cost, refusals = session.best.state, session.best.cost, 0
        while session.more():
            leaping = refusals > self.patience
            if leaping:
                state, cost = session.best.state, session.best.cost
            neighbour = state
            for _ in range(self.leap if leaping else 1):
                move = space.sample(neighbour, session.rng)
                neighbour = neighbour if move is None else space.apply(neighbour, move)
            found = evaluate(neighbour).cost
            if found is not None and (leaping or found < cost - self.margin):
                state, cost, refusals = neighbour, found, 0
            else:
                refusals += 1
