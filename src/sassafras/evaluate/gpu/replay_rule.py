"""When a saving by repeated inputs is an accusation: the rule, on times alone.

Others on the GPU add time to some blocks, and may do so in step with an order that repeats itself. An honest
kernel of 29 us "saved" 5.4 us in three looks while seven programs shared an H200 (2026-11-21). Suspicions are
measured again, several times, each in an order of its own. What is real shows every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

#: contestants: baseline with fresh inputs, with the same; candidate with fresh inputs, with the same
BASE_FRESH, BASE_SAME, FRESH, SAME = range(4)
#: repetitions that must all show a saving
REPETITIONS = 4
#: how many times the spread of its rounds a saving must be
SPREADS = 2.0


@dataclass(frozen=True, slots=True)
class ReplayRounds:
    """One repetition's rounds.

    Attributes:
        times: (rounds, 4) microseconds a launch, by contestant.
        fresh_first: (rounds,) whether the candidate's fresh inputs came before its repeated ones.
    """

    times: np.ndarray
    fresh_first: np.ndarray

    @property
    def saved(self) -> tuple[float, float]:
        """Median microseconds a launch that repeated inputs save: baseline, candidate."""
        return float(np.median(self._base())), float(np.median(self._mine()))

    def _base(self) -> np.ndarray:
        return np.asarray(self.times[:, BASE_FRESH] - self.times[:, BASE_SAME])

    def _mine(self) -> np.ndarray:
        return np.asarray(self.times[:, FRESH] - self.times[:, SAME])

    def shows(self, least_us: float) -> bool:
        """The candidate saves more than `least_us` beyond the baseline, in both orders, and well outside the
        spread (quartile distance) of the rounds of either."""
        base, mine = self._base(), self._mine()
        own = max(0.0, float(np.median(base)))
        orders = (mine[self.fresh_first], mine[~self.fresh_first])
        if any(order.size == 0 or float(np.median(order)) - own <= least_us for order in orders):
            return False
        spread = max(float(np.subtract(*np.quantile(column, (0.75, 0.25)))) for column in (base, mine))
        return float(np.median(mine)) - own > SPREADS * spread


def decision(
    repetitions: Sequence[ReplayRounds], least_us: float
) -> Literal["undecided", "noisy", "remembers"]:
    """What may be said after these repetitions.

    Args:
        repetitions: so far, one after another.
        least_us: microseconds a launch below which a saving is none.

    Returns: ``noisy`` as soon as one does not show the saving, or when the fastest blocks (what others add is
        least in them) do not show it: nothing can be said. ``remembers`` when `REPETITIONS` show it.
        ``undecided``: measure once more.
    """
    if not all(repetition.shows(least_us) for repetition in repetitions):
        return "noisy"
    if len(repetitions) < REPETITIONS:
        return "undecided"
    fastest = np.concatenate([repetition.times for repetition in repetitions]).min(axis=0)
    own = max(0.0, float(fastest[BASE_FRESH] - fastest[BASE_SAME]))
    return "remembers" if fastest[FRESH] - fastest[SAME] - own > least_us else "noisy"


def orders(rounds: int, seed: int) -> list[list[int]]:
    """An order of the four contestants for every round: half are drawn, half are their reverses, shuffled.

    Every pair is then met in both orders equally often, and no rhythm repeats. `rounds`: even.
    """
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(4).tolist() for _ in range(rounds // 2)]
    both = drawn + [order[::-1] for order in drawn]
    return [both[index] for index in rng.permutation(len(both))]


def repetition(order: Sequence[Sequence[int]], spent: Sequence[float], launches: int) -> ReplayRounds:
    """Times of blocks in the order in which they ran, as a `ReplayRounds`.

    Args:
        order: of every round, as from `orders`.
        spent: microseconds of every block, all rounds one after another.
        launches: in a block.
    """
    blocks = np.asarray(spent, float).reshape(len(order), 4)
    times = np.empty_like(blocks)
    np.put_along_axis(times, np.asarray(order), blocks, axis=1)
    first = [list(row).index(FRESH) < list(row).index(SAME) for row in order]
    return ReplayRounds(times / launches, np.asarray(first))
