"""The strategy ``guided``: annealing that knows where to look, from its own experience and from training.

Annealing draws its proposals blindly. Here most are drawn by how often such actions have paid in this very
search; with a network, times what it expects of every legal action. The network is asked once a state at
most, and no such proposal is made twice in it. Whether to go there is decided as in annealing, but colder:
a walk that is refused again and again warms up by itself, whether it sits in a valley or on a lucky
measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sassafras.core import Outcome, SearchError, Space, ToolMissing

from .contract import Evaluate, Session
from .experience import Experience
from .ppo import checkpoint

#: log-odds of every action in a state of known cost, after a move that touched a row (-1: none)
Asked = Callable[[Any, float, int], np.ndarray]
#: most doublings of the temperature
_WARMEST = 60.0
#: rows of a space for which an answer of the network is good for one proposal more
_ROWS_A_PROPOSAL = 400


@dataclass(frozen=True, slots=True)
class Guided:
    """Anneal, with proposals of a network and of what has paid so far.

    Attributes:
        policy: ``none`` (experience only: on an H200 as good as with the network, and no torch is needed),
            ``pretrained`` (the kernel-independent network, trained on the timing model), ``untrained`` (the
            same untrained: a control), or the path of a checkpoint.
        uniform: share of proposals that the space draws, as it does for annealing.
        every: proposals for which an answer of the network is good at least: until then it goes with the
            instructions from state to state, which is cheaper than to ask in every state that is accepted.
            0: one for each 400 instructions begun, so that thinking about a proposal takes no longer in
            large kernels.
        heat: what the network's log-odds are divided by; above 1 it is believed less.
        learn: exponent of the rate at which such moves have paid in this search; 0 learns nothing.
        keep: what past experience is multiplied by with each new proposal.
        start, end: first and last temperature, in baseline runtimes; cooling is geometric over the budget.
        cycles: how often the budget is divided into such coolings; each begins at the best so far.
        patience: refusals in a row that double the temperature until a move is accepted.
        digest: of the policy's file; set by itself.

    Raises:
        SearchError: a setting is out of bounds, or there is no such policy.
    """

    policy: str = "none"
    uniform: float = 0.2
    every: int = 0
    heat: float = 1.0
    learn: float = 1.0
    keep: float = 0.995
    start: float = 2e-4
    end: float = 1e-5
    cycles: int = 3
    patience: int = 20
    digest: str = field(default="", repr=False)

    name: ClassVar[str] = "guided"

    def __post_init__(self) -> None:
        if (
            min(self.start, self.end, self.heat) <= 0
            or min(self.cycles, self.patience) < 1
            or self.every < 0
            or not (0 <= self.uniform <= 1 and 0 <= self.keep <= 1 and self.learn >= 0)
        ):
            raise SearchError(
                f"guided cannot run with {self}",
                hint="start, end and heat are above 0, cycles and patience at least 1, "
                "uniform and keep from 0 to 1, every and learn not negative",
            )
        if self.policy == "fresh":
            raise SearchError(
                "CuAsmRL's network knows nothing of a kernel before it has played",
                hint="guided takes pretrained, untrained, none or a checkpoint",
            )
        if (path := self._path) is not None:
            object.__setattr__(self, "digest", checkpoint.digest(path))

    @property
    def _path(self) -> Any:
        return None if self.policy == "none" else checkpoint.find(self.policy)

    @property
    def space_options(self) -> dict[str, Any]:
        """What a schedule space should be made with for this strategy: what policies are trained on."""
        return {"moves": "all", "view": "all"}

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            ToolMissing: torch, gymnasium or sb3-contrib is not installed, and a network is asked for.
            SearchError: the space cannot be played, or the policy does not fit it.
        """
        rng, odds = session.rng, Odds(space, self._asked(space, session), self)
        state, cost, cycle, refused = session.best.state, session.best.cost, 0, 0
        around = odds.around(state, cost, -1)
        while session.more():
            position = session.progress * self.cycles
            if int(position) > cycle:
                cycle, refused = int(position), 0
                state, cost = session.best.state, session.best.cost
                around = odds.around(state, cost, -1)
            action = -1 if rng.random() < self.uniform else around.draw(rng)
            row = -1
            if action >= 0:
                found = odds.space.act(state, *divmod(action, odds.verbs))
                if found is None:  # no stall counts make it legal; it is not drawn again
                    continue
                move, row = found
            else:
                move = space.sample(state, rng)
                if move is None:
                    state, cost = session.best.state, session.best.cost
                    around = odds.around(state, cost, -1)
                    continue
            neighbour = space.apply(state, move)
            outcome = evaluate(neighbour)
            price = outcome.cost
            if action >= 0:
                around.learn(action, price is not None and cost - price > noise(outcome, cost))
            temperature = self.start * (self.end / self.start) ** (position - int(position))
            temperature *= 2.0 ** min((session.idle + refused) / self.patience, _WARMEST)
            if price is not None and (price <= cost or rng.random() < math.exp((cost - price) / temperature)):
                state, cost, refused = neighbour, price, 0
                around = odds.around(state, cost, row)
            else:
                refused += 1

    def _asked(self, space: Any, session: Session[Any]) -> Asked | None:
        """The network, or None; what chance it needs is drawn in any case."""
        seed = int(session.rng.integers(1 << 31))
        if not (hasattr(space, "act") and hasattr(space, "legal")):
            raise SearchError(
                f"{type(space).__name__} cannot be played, and guided has nothing to choose from",
                hint="it needs verbs, features, links, legal and act; see core.Playable",
            )
        if self.policy == "none":
            return None
        try:
            from .ppo.prior import Prior
        except ImportError as error:
            raise ToolMissing(
                f"the strategy guided needs {error.name}",
                hint="pip install 'sassafras[rl]', or --policy none (experience only)",
            ) from error
        return Prior(space, self._path, seed).logits


class Odds:
    """How proposals are drawn in the states of one search.

    Args:
        space: a `core.Playable` space; where it says what stands in each row (`core.Tracked`), experience
            goes with that thing, else with the row.
        asked: a network's log-odds, or None.
        settings: see `Guided`.
    """

    def __init__(self, space: Any, asked: Asked | None, settings: Guided) -> None:
        self.space, self.asked, self.settings = space, asked, settings
        rows, self.verbs = space.legal(space.start()).shape
        self.things: Callable[[Any], np.ndarray] = getattr(space, "things", lambda _: np.arange(rows))
        self.experience = Experience(rows, self.verbs, settings.keep)
        self._answer = np.zeros((rows, self.verbs))
        self.every = settings.every or math.ceil(rows / _ROWS_A_PROPOSAL)
        self.good_for = 0

    def around(self, state: Any, cost: float, touched: int) -> Around:
        """The proposals of a state; the network is asked, if at all, when the first one is drawn."""
        return Around(self, state, cost, touched)

    def logits(self, state: Any, cost: float, touched: int, things: np.ndarray) -> np.ndarray:
        """float64 (rows, verbs): the network's log-odds, or those of its last answer by thing."""
        if self.asked is not None and self.good_for <= 0:
            self._answer[things] = self.asked(state, cost, touched) / self.settings.heat
            self.good_for = self.every
        answer: np.ndarray = self._answer[things]
        return answer


class Around:
    """What may be proposed in one state, each action once."""

    def __init__(self, odds: Odds, state: Any, cost: float, touched: int) -> None:
        self.odds, self.state, self.cost, self.touched = odds, state, cost, touched
        self.expected: np.ndarray | None = None
        self.things: np.ndarray = np.empty(0, dtype=np.int64)

    def draw(self, rng: np.random.Generator) -> int:
        """An action, row * verbs + verb; -1 where none is left."""
        if self.expected is None:
            self.expected = self._expect()
        self.odds.good_for -= 1
        weights = self.expected
        if self.odds.settings.learn:
            paid = self.odds.experience.rates()[self.things] ** self.odds.settings.learn
            weights = weights * paid.reshape(-1)
        total = np.cumsum(weights)
        if not total[-1] > 0.0:
            return -1
        action = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
        action = min(action, int(np.flatnonzero(weights)[-1]))  # (rounding at the very end)
        self.expected[action] = 0.0
        return action

    def learn(self, action: int, won: bool) -> None:
        """What became of a drawn action."""
        row, verb = divmod(action, self.odds.verbs)
        self.odds.experience.learn(int(self.things[row]), verb, won)

    def _expect(self) -> np.ndarray:
        legal = self.odds.space.legal(self.state)
        self.things = self.odds.things(self.state)
        if not legal.any():
            return np.zeros(legal.size)
        logits = self.odds.logits(self.state, self.cost, self.touched, self.things)
        logits = np.where(legal, logits, -np.inf)
        expected: np.ndarray = np.exp(logits - logits.max()).reshape(-1)
        return expected


def noise(outcome: Outcome, cost: float) -> float:
    """Half the width of a measurement's own interval, as a relative runtime; 0 for the timing model's."""
    interval = getattr(outcome, "interval", None)
    return 0.0 if interval is None else (interval.high - interval.low) / 2 * cost**2
