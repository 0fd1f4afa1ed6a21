"""The strategy ``guided``: annealing that knows where to look, from its own experience.

Annealing draws its proposals blindly. Here most are drawn by how often such actions have paid in this very
search, and no such proposal is made twice in a state. Whether to go there is decided as in annealing, but
colder: a walk that is refused again and again warms up by itself, whether it sits in a valley or on a lucky
measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sassafras.core import Outcome, Playable, SearchError, Space, Tracked

from .anneal import COLDEST, WARMEST
from .contract import Evaluate, Session
from .experience import Experience


@dataclass(frozen=True, slots=True)
class Guided:
    """Anneal, with proposals drawn by what has paid so far.

    Attributes:
        uniform: share of proposals that the space draws, as it does for annealing.
        learn: exponent of the rate at which such moves have paid in this search; 0 learns nothing.
        keep: what past experience is multiplied by with each new proposal.
        start, end: first and last temperature, in baseline runtimes; cooling is geometric over the budget.
        cycles: how often the budget is divided into such coolings; each begins at the best so far.
        patience: refusals in a row that double the temperature until a move is accepted.

    Raises:
        SearchError: a setting is out of bounds.
    """

    uniform: float = 0.2
    learn: float = 1.0
    keep: float = 0.995
    start: float = 2e-4
    end: float = 1e-5
    cycles: int = 3
    patience: int = 20

    name: ClassVar[str] = "guided"

    def __post_init__(self) -> None:
        if (
            min(self.start, self.end) <= 0
            or min(self.cycles, self.patience) < 1
            or not (0 <= self.uniform <= 1 and 0 <= self.keep <= 1 and self.learn >= 0)
        ):
            raise SearchError(
                f"guided cannot run with {self}",
                hint="start and end are above 0, cycles and patience at least 1, "
                "uniform and keep from 0 to 1, learn not negative",
            )

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            SearchError: the space cannot be played.
        """
        rng, proposals = session.rng, Proposals(space, self.learn, self.keep)
        state, cost, cycle, refused = session.best.state, session.best.cost, 0, 0
        proposals.enter(state)
        while session.more():
            position = session.progress * self.cycles
            if int(position) > cycle:
                cycle, refused = int(position), 0
                state, cost = session.best.state, session.best.cost
                proposals.enter(state)
            action = -1 if rng.random() < self.uniform else proposals.draw(rng)
            if action >= 0:
                found = proposals.space.act(state, *divmod(action, proposals.actions))
                if found is None:  # no stall counts make it legal; it is not drawn again
                    continue
                move = found[0]
            else:
                move = space.sample(state, rng)
                if move is None:
                    state, cost = session.best.state, session.best.cost
                    proposals.enter(state)
                    continue
            neighbour = space.apply(state, move)
            outcome = evaluate(neighbour)
            price = outcome.cost
            if action >= 0:
                proposals.learn(action, price is not None and cost - price > noise(outcome, cost))
            temperature = self.start * (self.end / self.start) ** (position - int(position))
            warmer = 2.0 ** min((session.idle + refused) / self.patience, WARMEST)
            temperature = max(temperature * warmer, COLDEST)
            if price is not None and (price <= cost or rng.random() < math.exp((cost - price) / temperature)):
                state, cost, refused = neighbour, price, 0
                proposals.enter(state)
            else:
                refused += 1


class Proposals:
    """Draws the legal actions of a state, each once, by how often such actions have paid.

    Args:
        space: a `core.Playable` space; where it says what stands in each row (`core.Tracked`), experience
            goes with that thing, else with the row.
        exponent: of the rates; 0 draws every legal action as often.
        keep: see `Experience`.

    Raises:
        SearchError: the space cannot be played.
    """

    def __init__(self, space: Any, exponent: float, keep: float) -> None:
        self.space: Any = space
        if not isinstance(space, Playable):
            raise SearchError(
                f"{type(space).__name__} cannot be played, and guided has nothing to choose from",
                hint="it needs actions, features, links, legal and act; see core.Playable",
            )
        self.exponent = exponent
        rows, self.actions = self.space.legal(self.space.start()).shape
        self.experience = Experience(rows, self.actions, keep)
        self.enter(self.space.start())

    def enter(self, state: Any) -> None:
        """Draw from this state's actions from now on, all of them."""
        self.state = state
        self.left: np.ndarray | None = None  # listed when the first one is drawn

    def draw(self, rng: np.random.Generator) -> int:
        """A choice, row * number of actions + action; -1 where none is left."""
        if self.left is None:
            legal = self.space.legal(self.state)
            self.left = legal.reshape(-1).astype(np.float64)
            tracked = isinstance(self.space, Tracked)
            self.things = self.space.things(self.state) if tracked else np.arange(len(legal))
        weights = self.left
        if self.exponent:
            weights = weights * (self.experience.rates()[self.things] ** self.exponent).reshape(-1)
        total = np.cumsum(weights)
        if not total[-1] > 0.0:
            return -1
        action = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
        action = min(action, int(np.flatnonzero(weights)[-1]))  # (rounding at the very end)
        self.left[action] = 0.0
        return action

    def learn(self, action: int, won: bool) -> None:
        """Whether a drawn action has made the kernel faster."""
        row, kind = divmod(action, self.actions)
        self.experience.learn(int(self.things[row]), kind, won)


def noise(outcome: Outcome, cost: float) -> float:
    """Half the width of a measurement's own interval, as a relative runtime; 0 for the timing model's."""
    interval = getattr(outcome, "interval", None)
    return 0.0 if interval is None else (interval.high - interval.low) / 2 * cost**2
