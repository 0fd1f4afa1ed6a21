"""Random walk: take every usable step. The yardstick that any cleverer strategy has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sassafras.core import SearchError, Space

from .contract import Evaluate, Session


@dataclass(frozen=True, slots=True)
class RandomWalk:
    """Walk at random, and start again from the baseline now and then.

    Attributes:
        length: steps until the walk starts again from the baseline.
    """

    length: int = 100

    name: ClassVar[str] = "random_walk"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise SearchError(
                f"a random walk of length {self.length} goes nowhere", hint="length is at least 1"
            )

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`."""
        state, steps = space.start(), 0
        while session.more():
            move = space.sample(state, session.rng)
            steps += 1
            if move is None or steps > self.length:
                state, steps = space.start(), 0
                continue
            neighbour = space.apply(state, move)
            if evaluate(neighbour).cost is not None:
                state = neighbour
