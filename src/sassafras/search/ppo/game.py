"""The assembly game: a Gymnasium environment over any `core.Playable` space.

A state of the space is shown as a row of numbers an instruction; a choice is a row and an action, or stop;
the reward is how much the runtime changed, relative to the baseline's. The game knows no SASS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sassafras.core import Outcome, Playable, SearchError, Tracked, Verdict

#: columns that the game adds behind the space's: the row is real (not padding), it was touched by the last
#: move, runtime won so far, share of the episode left
OWN_COLUMNS = ("real", "touched", "won", "left")


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """How an observation is laid out: float32 (rows, columns + len(OWN_COLUMNS) + links).

    Attributes:
        rows: rows, padding included.
        columns: columns of the space's features.
        links: columns at the end that name other rows, -1 for none.
        actions: what can be done with a row; a choice is ``row * actions + action``, ``rows * actions`` is
            stop.
    """

    rows: int
    columns: int
    links: int
    actions: int

    @property
    def width(self) -> int:
        """Columns in all."""
        return self.columns + len(OWN_COLUMNS) + self.links

    @property
    def choices(self) -> int:
        """Number of choices: an action on a row, or stop (the last one)."""
        return self.rows * self.actions + 1


class AssemblyGame(gymnasium.Env[np.ndarray, np.int64]):
    """One kernel, one player. Episodes end at stop, at a failure (reward -1), or after `horizon` moves.

    Args:
        space: what can be changed (`core.Space` and `core.Playable`).
        evaluate: what a state is worth; `search.Evaluate`, or an evaluator's method on the candidate.
        horizon: most moves in an episode.
        rows: pad observations and actions to so many rows; None: no padding.
        noise: changes of relative runtime below this are not paid until they add up; None: half the width
            of the outcome's own interval, 0 where it has none (the timing model).
        trusted: the space promises that every move is legal: a refusal by the validator is then an error of
            ours, and raised. False: it ends the episode as any failure.
        mask: False offers every move of what the space may move; one that is not legal is refused unrun, and
            ends the episode as a failure does.
        begin: where an episode begins: a function of the episode's generator that returns a state of known
            relative runtime, and that runtime; None: at the baseline.

    Raises:
        SearchError: the space cannot be played, `rows` is too small, or the baseline is unusable.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(
        self,
        space: Any,
        evaluate: Callable[[Any], Outcome],
        *,
        horizon: int = 32,
        rows: int | None = None,
        noise: float | None = None,
        trusted: bool = True,
        mask: bool = True,
        begin: Callable[[np.random.Generator], tuple[Any, float]] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.space: Any = space
        if not isinstance(space, Playable):
            raise SearchError(
                f"{type(space).__name__} cannot be played by an agent",
                hint="it needs actions, features, links, legal and act; see core.Playable",
            )
        self.evaluate, self.horizon, self.noise = evaluate, horizon, noise
        self.trusted, self.mask, self.begin, self.render_mode = trusted, mask, begin, render_mode
        self._start = self.space.start()
        self._return = 0.0
        seen, links = space.features(self._start), space.links(self._start)
        self._count = len(seen)
        self.layout = ObservationLayout(rows or len(seen), seen.shape[1], links.shape[1], len(space.actions))
        if self.layout.rows < len(seen):
            raise SearchError(f"the kernel has {len(seen)} rows, more than the {rows} that observations hold")
        self.observation_space = spaces.Box(
            -np.inf, np.inf, (self.layout.rows, self.layout.width), dtype=np.float32
        )
        self.action_space = spaces.Discrete(self.layout.choices)
        self.counts = {"moves": 0, "no_moves": 0, "failures": 0, "refused": 0, "stops": 0}
        self.state: Any = self._start
        self.cost = self.best_cost = 1.0
        self._baseline: float | None = None
        self._paid = 1.0
        self._steps, self._touched, self._over = 0, -1, True
        self._impossible: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode. See `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        if self._baseline is None:
            outcome = self.evaluate(self._start)
            if outcome.cost is None:
                raise SearchError(
                    f"the unmodified kernel itself is unusable: {outcome.detail or 'no reason'}"
                )
            self._baseline = outcome.cost
        if self.begin is None:
            self.state, self.cost = self._start, self._baseline
        else:
            self.state, self.cost = self.begin(self.np_random)
        self._paid, self._steps, self._touched, self._over = self.cost, 0, -1, False
        self._return = 0.0
        self._impossible = []
        return self._observation(), self._info()

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Make one move. See `gymnasium.Env.step`; the reward is in percent of the baseline's runtime."""
        if self._over:
            raise SearchError("the episode is over", hint="call reset()")
        action = int(action)
        self._steps += 1
        reward, ended = 0.0, False
        if action == self.layout.choices - 1:
            self.counts["stops"] += 1
            ended = True
        else:
            reward, ended = self._move(action)
        late = self._steps >= self.horizon and not ended
        self._over = ended or late
        self._return += reward
        return self._observation(), reward, ended, late, self._info()

    def _move(self, action: int) -> tuple[float, bool]:
        row, kind = divmod(action, self.layout.actions)
        found = self.space.act(self.state, row, kind) if row < self._count else None
        if found is None and not self.mask:
            self.counts["refused"] += 1
            self.counts["failures"] += 1
            return -1.0, True
        if found is None:
            # nothing came of it: the state stays, and the action is masked while it does
            self.counts["no_moves"] += 1
            self._impossible.append(action)
            return 0.0, False
        move, touched = found
        state = self.space.apply(self.state, move)
        outcome = self.evaluate(state)
        self.counts["moves"] += 1
        if outcome.cost is None:
            return self._failed(outcome), True
        self.state, self.cost, self._impossible = state, outcome.cost, []
        self._touched = touched
        self.best_cost = min(self.best_cost, self.cost)
        return self._pay(outcome), False

    def _failed(self, outcome: Outcome) -> float:
        if outcome.verdict is Verdict.ILLEGAL_SCHEDULE:
            self.counts["refused"] += 1
            if self.trusted:
                raise SearchError(
                    f"the validator refused a move that the space called legal: {outcome.detail}",
                    hint="a defect of ours: please report it with the kernel",
                )
        self.counts["failures"] += 1
        return -1.0

    def _pay(self, outcome: Outcome) -> float:
        """What departs from the last runtime that was paid for by more than the noise, in percent."""
        noise = self.noise
        if noise is None:
            interval = getattr(outcome, "interval", None)
            noise = 0.0 if interval is None else (interval.high - interval.low) / 2 * self.cost**2
        change = self._paid - self.cost
        if abs(change) <= noise:
            return 0.0
        self._paid = self.cost
        return 100.0 * change  # in percent, as CuAsmRL pays

    def action_masks(self) -> np.ndarray:
        """bool (actions,): what may be done now; stop always may."""
        legal = self.space.legal(self.state)
        mask = np.zeros(self.layout.choices, dtype=bool)
        mask[: legal.size] = legal.reshape(-1) if self.mask else self._movable(legal).reshape(-1)
        mask[self._impossible] = False
        mask[-1] = True
        return mask

    def _movable(self, legal: np.ndarray) -> np.ndarray:
        """bool (rows, actions): every action on a row whose thing the space may ever move."""
        movable = getattr(self.space, "movable", None)
        if movable is None or not isinstance(self.space, Tracked):
            return np.ones_like(legal)
        rows = np.isin(self.space.things(self.state), movable)
        return np.broadcast_to(rows[:, None], legal.shape)

    def _observation(self) -> np.ndarray:
        """float32 (layout.rows, layout.width)."""
        seen, columns = self.space.features(self.state), self.layout.columns
        count = len(seen)
        out = np.zeros((self.layout.rows, self.layout.width), dtype=np.float32)
        out[:count, :columns] = seen
        out[:count, columns] = 1.0
        if 0 <= self._touched < count:
            out[self._touched, columns + 1] = 1.0
        out[:count, columns + 2] = np.clip(10.0 * (1.0 - self.cost), -3.0, 3.0)
        out[:count, columns + 3] = 1.0 - self._steps / self.horizon
        out[:, columns + 4 :] = -1.0
        out[:count, columns + 4 :] = self.space.links(self.state)
        return out

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"cost": self.cost, "best_cost": self.best_cost}
        if self._over:
            info["episode"] = {"r": self._return, "l": self._steps, "t": 0.0}
        return info

    def render(self) -> str:  # type: ignore[override]
        """One line: where the episode stands."""
        return f"move {self._steps} of {self.horizon}: {1 / self.cost:.4f}x of the baseline's speed"
