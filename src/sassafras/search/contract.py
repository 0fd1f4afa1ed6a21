"""What a strategy is given and what it must do. Searching knows no SASS, no GEMM and no CUDA.

A strategy is any object with a `name` and one method::

    def search(self, space, evaluate, session):
        state = space.start()
        while session.more():
            move = space.sample(state, session.rng)
            if move is not None:
                neighbour = space.apply(state, move)
                cost = evaluate(neighbour).cost      # runtime relative to the baseline, None when unusable
                if cost is not None and cost < session.best.cost:
                    state = neighbour

The session keeps the best, the budget, the record and the clock; the strategy only decides where to look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from sassafras.core import Candidate, Outcome, Space

State = TypeVar("State")

#: ``evaluate(state) -> Outcome``. States seen before in this search cost nothing.
Evaluate = Callable[[State], Outcome]


@dataclass(frozen=True, slots=True)
class Found(Generic[State]):
    """A usable state and what it is worth.

    Attributes:
        state: the space's state.
        candidate: its recipe.
        outcome: what the evaluator said.
        cost: runtime relative to the baseline's, lower is better.
    """

    state: State
    candidate: Candidate
    outcome: Outcome
    cost: float


class Session(Protocol[State]):
    """A strategy's view of the search that it is part of."""

    @property
    def rng(self) -> np.random.Generator:
        """The search's only source of chance, made from the seed."""
        ...

    @property
    def best(self) -> Found[State]:
        """The best so far; at first the baseline, with cost close to 1."""
        ...

    @property
    def progress(self) -> float:
        """How much of the budget is spent, 0 to 1. Changes only when something new is evaluated, so that a
        resumed search sees the very same numbers."""
        ...

    @property
    def idle(self) -> int:
        """Turns since something new was evaluated: large when a strategy walks in circles.

        Each call of `more` is one, and each of `evaluate`: a step that asks first and evaluates then is two.
        """
        ...

    def more(self) -> bool:
        """False once the budget is spent, the space exhausted, or the user has had enough.

        A strategy that goes on regardless is stopped by its next `evaluate`.
        """
        ...


@runtime_checkable
class Strategy(Protocol):
    """How to look. Its public attributes other than `name` (or its dataclass fields) are its settings."""

    @property
    def name(self) -> str:
        """A short name, part of what makes two searches the same."""
        ...

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """Look for a state of low cost until `session.more()` is false."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """An outcome as the record keeps it.

    Attributes:
        outcome: what the evaluator said.
        took: seconds of the budget that it cost.
    """

    outcome: Outcome
    took: float


class Recorder(Protocol):
    """Where outcomes are written as they happen, and from where a killed search is taken up again."""

    def known(self, digest: str) -> Recorded | None:
        """What is recorded of the candidate with this digest."""
        ...

    def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
        """Write an outcome down for good; returns what the record then holds."""
        ...
