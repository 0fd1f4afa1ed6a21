"""The strategy ``descent``: a coarse space first, then the finer spaces of its best few kernels.

The finer spaces share the rest of the budget by successive halving (arXiv 1502.07943): every rung has an
equal part of it, and the better half of a rung's spaces goes on with twice as much each.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sassafras.core import At, Layered, Outcome, SearchError, Space

from .anneal import Anneal
from .contract import Evaluate, Found, Session, Strategy
from .greedy import Greedy
from .guided import Guided
from .random_walk import RandomWalk

#: strategies of the finer spaces
FINER: dict[str, type[Strategy]] = {each.name: each for each in (Guided, Anneal, Greedy, RandomWalk)}
#: states of the coarse space that are made at a time: at first, at most; and the shares of the budget that a
#: batch takes where the next is twice as large, or half
_FIRST, BATCH = 4, 16
_QUICK, _SLOW = 0.02, 0.05
#: share of its budget that the last stage spends on making spaces, about
_MAKING = 0.25
#: turns without anything new after which a space is left
_PATIENCE = 1_000
#: leaders that a stage keeps, and settings that are combined in pairs
_LEADERS, _COMBINED = 8, 4


@dataclass(slots=True)
class Stage:
    """A part of the search.

    Attributes:
        name: ``settings``, ``ptx`` or ``schedule``.
        leaders: the best that it was the first to find, best first.
        verdicts: its outcomes by verdict, ``modelled`` for an accepted modelled one.
        until: share of the whole budget that was spent at its last new outcome.
    """

    name: str
    leaders: list[Found[Any]] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    until: float = 0.0


@dataclass
class Descent:
    """Settings of the compiler, then changes to its input, then schedules of its best few outputs.

    Attributes:
        settings: share of the budget for the coarse space's settings, at most.
        ptx: the same for its other states.
        kernels: how many of the best kernels are the start of finer spaces.
        schedule: strategy of the finer spaces: guided, anneal, greedy or random_walk.
        found: what each stage of the last search found.
    """

    settings: float = 0.2
    ptx: float = 0.3
    kernels: int = 4
    schedule: str = Guided.name

    name: ClassVar[str] = "descent"

    def __post_init__(self) -> None:
        if self.settings + self.ptx >= 1 or min(self.settings, self.ptx) <= 0 or self.kernels < 1:
            raise SearchError(
                f"descent cannot run with {self}",
                hint="settings and ptx are above 0 and together below 1, kernels is at least 1",
            )
        if self.schedule not in FINER:
            raise SearchError(
                f"descent has no schedule strategy {self.schedule!r}", hint="one of " + ", ".join(FINER)
            )
        self.found: list[Stage] = []

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            SearchError: the space has no layers.
        """
        if not isinstance(space, Layered):
            raise SearchError(f"{type(space).__name__} has no layers", hint="descent is for --space compiler")
        self.found = []
        seen: set[str] = set()

        def part(stage: Stage, of: Space[Any, Any], state: Any) -> _Part:
            made = _Part(session, evaluate, space, of, stage, seen)
            made.evaluate(state)
            return made

        settings = part(self._stage("settings"), space.coarse, space.coarse.start())
        settings.until = self.settings
        settings.all(space, space.sweep())
        ranked = [one.state.state for one in settings.stage.leaders if one.cost < 1.0]
        settings.all(space, space.combined(ranked[:_COMBINED]))
        left = 1.0 - session.progress
        rewrites = part(self._stage("ptx"), space.coarse, settings.best.state)
        rewrites.until = session.progress + left * self.ptx / (1.0 - self.settings)
        _climb(rewrites, space)
        stage, parts = self._stage("schedule"), list[_Part]()
        leaders = sorted((one for each in self.found for one in each.leaders), key=lambda one: one.cost)
        begin, opened = session.progress, 0
        for parent in leaders:
            if opened == self.kernels or session.progress - begin > _MAKING * (1.0 - begin):
                break
            spaces = space.finer(parent.candidate)
            opened += bool(spaces)
            for finer in spaces:
                parts.append(one := part(stage, finer, finer.start()))
                # what it took to make the space is spent with its first schedule, before shares are dealt
                if (move := finer.sample(finer.start(), session.rng)) is not None:
                    one.evaluate(finer.apply(finer.start(), move))
        self._halve(parts, session)

    def _stage(self, name: str) -> Stage:
        self.found.append(Stage(name))
        return self.found[-1]

    def _halve(self, parts: Sequence[_Part], session: Session[Any]) -> None:
        """Successive halving: the strategy goes on in each space from the best that it has found there."""
        rungs = math.ceil(math.log2(len(parts))) + 1 if parts else 0
        for rung in range(rungs):
            begin = session.progress
            share = (1.0 - begin) / (rungs - rung) / len(parts)
            for number, one in enumerate(parts, 1):
                # what a space leaves goes to the next; the last one ends with the budget itself
                one.until = begin + number * share if rung < rungs - 1 else math.inf
                one.begin()
                FINER[self.schedule]().search(one.space, one.evaluate, one)
            parts = sorted(parts, key=lambda one: one.best.cost)[: -(-len(parts) // 2)]


class _Part:
    """A `Session` over one space and a share of the budget: a strategy's view of its part of a search."""

    def __init__(
        self,
        session: Session[Any],
        evaluate: Evaluate[Any],
        whole: Space[Any, Any],
        space: Space[Any, Any],
        stage: Stage,
        seen: set[str],
    ) -> None:
        self._session, self._evaluate, self._whole = session, evaluate, whole
        self.space, self.stage, self._seen = space, stage, seen
        self._best: Found[Any] | None = None
        self.until, self._batch = math.inf, _FIRST
        self.begin()

    def begin(self) -> None:
        """What is spent from now on is its own."""
        self._from, self._idle = self._session.progress, self._session.idle

    @property
    def rng(self) -> np.random.Generator:
        """See `Session`."""
        return self._session.rng

    @property
    def best(self) -> Found[Any]:
        """See `Session`; of this space."""
        assert self._best is not None
        return self._best

    @property
    def progress(self) -> float:
        """See `Session`; of this share."""
        whole = min(self.until, 1.0) - self._from
        return min((self._session.progress - self._from) / whole, 1.0) if whole > 0 else 1.0

    @property
    def idle(self) -> int:
        """See `Session`."""
        now = self._session.idle
        if now < self._idle:  # something was new
            self._idle = 0
        return now - self._idle

    def more(self) -> bool:
        """See `Session`."""
        return self._session.more() and self._session.progress < self.until and self.idle < _PATIENCE

    def evaluate(self, state: Any) -> Outcome:
        """The outcome of a state of this space."""
        outcome = self._evaluate(place := At(self.space, state))
        new = outcome.digest not in self._seen
        if new:
            self._seen.add(outcome.digest)
            verdict = "modelled" if outcome.verdict is None else outcome.verdict.value
            self.stage.verdicts[verdict] += 1
            self.stage.until = self._session.progress
        cost, leaders = outcome.cost, self.stage.leaders
        if cost is None:
            return outcome
        ranks = new and (len(leaders) < _LEADERS or cost < leaders[-1].cost)
        if ranks or self._best is None or cost < self._best.cost:
            candidate = self._whole.candidate(place)
            if self._best is None or cost < self._best.cost:
                self._best = Found(state, candidate, outcome, cost)
            if ranks:
                insort(leaders, Found(place, candidate, outcome, cost), key=lambda one: one.cost)
                del leaders[_LEADERS:]
        return outcome

    def all(self, space: Layered, states: Iterable[Any]) -> dict[Any, float | None]:
        """Costs of states of the coarse space, in order, as far as the share goes."""
        left, costs = list(dict.fromkeys(states)), dict[Any, float | None]()
        while left and self.more():
            some, left, before = left[: self._batch], left[self._batch :], self._session.progress
            space.ahead(some)
            for state in some:
                if not self.more():
                    return costs
                costs[state] = self.evaluate(state).cost
            spent = self._session.progress - before
            if spent < _QUICK or spent > _SLOW:
                self._batch = min(2 * self._batch, BATCH) if spent < _QUICK else max(self._batch // 2, 1)
        return costs


def _climb(part: _Part, space: Layered) -> None:
    """Batches of neighbours of the best; those that are better are put together, the best first."""
    coarse = space.coarse
    while part.more():
        base = part.best
        drawn = [coarse.sample(base.state, part.rng) for _ in range(BATCH)]
        moves = {coarse.apply(base.state, move): move for move in drawn if move is not None}
        if not moves:
            return
        costs = part.all(space, moves)
        better = sorted((cost, n) for n, cost in enumerate(costs.values()) if cost and cost < base.cost)
        for _, n in better[1:]:
            if not part.more():
                return
            part.evaluate(coarse.apply(part.best.state, list(moves.values())[n]))
