"""Ask a cheap judge first: of several proposals only the one that it likes best is evaluated.

Works with every strategy, because it is a space: drawing a change draws several and keeps the most promising.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sassafras.core import Candidate, SearchError, Space


class Preranked:
    """A space whose random changes are the best of several, by a score.

    Args:
        space: the space itself; whatever else it can do (list its moves, be played) stays as it is.
        score: an estimate of a candidate's relative runtime, lower is better, None for no idea (the timing
            model's, for example).
        pool: changes drawn for each that is proposed.

    Raises:
        SearchError: `pool` is below 1.

    Attributes:
        asked: candidates scored so far.
    """

    def __init__(self, space: Space[Any, Any], score: Callable[[Candidate], float | None], pool: int) -> None:
        if pool < 1:
            raise SearchError(f"prerank must be at least 1, got {pool}")
        self.space, self.score, self.pool = space, score, pool
        self.asked = 0

    @property
    def description(self) -> str:
        """What distinguishes this space, for a search's identity."""
        own = getattr(self.space, "description", None)
        return ", ".join(filter(None, [own, f"prerank={self.pool}"]))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "space":
            raise AttributeError(name)
        return getattr(self.space, name)

    def start(self) -> Any:
        """See `core.Space`."""
        return self.space.start()

    def sample(self, state: Any, rng: np.random.Generator) -> Any | None:
        """The most promising of `pool` legal changes; the first among equals. None where none was found."""
        best, lowest = None, math.inf
        for _ in range(self.pool):
            move = self.space.sample(state, rng)
            if move is None:
                continue
            if self.pool == 1:
                return move
            found = self.score(self.space.candidate(self.space.apply(state, move)))
            self.asked += 1
            cost = math.inf if found is None else found
            if best is None or cost < lowest:
                best, lowest = move, cost
        return best

    def apply(self, state: Any, move: Any) -> Any:
        """See `core.Space`."""
        return self.space.apply(state, move)

    def candidate(self, state: Any) -> Candidate:
        """See `core.Space`."""
        return self.space.candidate(state)
