"""Start times of the warps, drawn at random: sets that share no draw, and the cycles of schedules on them.

With many warps the cycles of one simulation are chaotic: another draw moves them by 1 %. A search that looks
at thousands of schedules on one set of draws finds the schedule that suits these draws. So it selects on one
set, chooses among its leaders on a second, and a third gives the figure that is reported; a fourth gives the
baseline's null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sassafras.core import Interval
from sassafras.core.statistics import redrawn_ratio

from . import simulate as sim
from .kernel_model import KernelModel

#: draws made by one seed
_BLOCK = 16
#: draws of the baseline from which its spread is told
_PROBE = 32
#: standard errors, relative, to which the number of draws brings a search's first look at a schedule, its
#: last one, and one look when the leaders are chosen among; and the most draws of each
FIRST_ERROR, FIRST_MOST = 0.005, 8
LAST_ERROR, LAST_MOST = 0.001, 64
LOOK_ERROR, LOOK_MOST = 0.0025, 16
#: draws of a report: at least, at most, and the half-width of both intervals at which they are enough
REPORT_LEAST, REPORT_MOST, REPORT_HALF_WIDTH = 32, 256, 0.0025
#: draws of the other set that an interval is made for; by how much a half-width of few draws may be short
_OTHERS, _SPARE = 100, 1.2


class DrawSet(IntEnum):
    """What a set of draws is for; sets share no draw."""

    SEARCH = 0
    CHOICE = 1
    REPORT = 2
    NULL = 3
    #: to check a report again
    OTHER = 4


@dataclass(frozen=True)
class Redrawn:
    """A ratio on draws that nothing was selected on.

    Attributes:
        baseline_cycles, cycles: means over the draws.
        interval: see `core.statistics.redrawn_ratio`.
        null, null_interval: the same of the baseline against itself on other draws.
        draws: how many.
    """

    baseline_cycles: float
    cycles: float
    interval: Interval
    null: float
    null_interval: Interval
    draws: int

    @property
    def ratio(self) -> float:
        """Baseline's cycles / the candidate's."""
        return self.baseline_cycles / self.cycles


class Draws:
    """Cycles of one kernel's schedules on every set of draws.

    Args:
        model: the kernel.
        steps: the baseline's rows (`KernelModel.steps`).

    Raises:
        Deadlock: a barrier never opens.
    """

    def __init__(self, model: KernelModel, steps: np.ndarray) -> None:
        self._model, self._steps = model, steps
        self._starts: dict[DrawSet, np.ndarray] = {}
        self._baseline: dict[DrawSet, np.ndarray] = {}
        probe = self.baseline(DrawSet.SEARCH, 0, _PROBE)
        #: standard deviation of a ratio of one draw, relative
        self.spread = math.sqrt(2) * float(probe.std(ddof=1) / probe.mean())
        self.first = self._enough(FIRST_ERROR, FIRST_MOST)
        self.last = max(self.first, self._enough(LAST_ERROR, LAST_MOST))
        self.a_look = self._enough(LOOK_ERROR, LOOK_MOST)

    def _enough(self, error: float, most: int) -> int:
        return max(1, min(most, math.ceil((self.spread / error) ** 2)))

    def level(self, level: int) -> int | None:
        """Draws of a search's look: twice as many with each level; None past the last."""
        if level > 0 and self.first << (level - 1) >= self.last:
            return None
        return min(self.first << level, self.last)

    def starts(self, part: DrawSet, begin: int, end: int) -> np.ndarray:
        """Start cycles of the resident warps in each draw: int64 (end - begin, warps)."""
        held = self._starts.get(part)
        have = 0 if held is None else len(held)
        if held is None or have < end:
            blocks = [
                self._model.jittered(np.random.default_rng([part, n]), _BLOCK)
                for n in range(have // _BLOCK, -(-end // _BLOCK))
            ]
            held = np.concatenate([*([] if held is None else [held]), *blocks])
            self._starts[part] = held
        return held[begin:end]

    def of(self, model: KernelModel, steps: np.ndarray, part: DrawSet, begin: int, end: int) -> np.ndarray:
        """Cycles of a schedule on draws `begin` to `end`: float64. Raises Deadlock."""
        if model is self._model and np.array_equal(steps, self._steps):
            return self.baseline(part, begin, end).copy()
        return sim.drawn(model, steps, self.starts(part, begin, end))

    def baseline(self, part: DrawSet, begin: int, end: int) -> np.ndarray:
        """Cycles of the baseline on draws `begin` to `end`: float64."""
        held = self._baseline.get(part, np.empty(0))
        if len(held) < end:
            more = sim.drawn(self._model, self._steps, self.starts(part, len(held), end))
            held = self._baseline[part] = np.concatenate([held, more])
        return held[begin:end]


#: cycles on draws from the first number to the second
Cycles = Callable[[int, int], np.ndarray]


def redraw(baseline: Cycles, candidate: Cycles, null: Cycles) -> Redrawn:
    """As many draws as both intervals need, within the bounds above.

    The number is settled once, by the first draws: to stop where an interval happens to be narrow makes
    intervals that are too narrow.

    Args:
        baseline, candidate: on the draws of the report.
        null: the baseline on other draws.
    """
    have, want = [np.empty(0)] * 3, REPORT_LEAST
    for last in (False, True):
        have = [
            np.concatenate([one, more(len(one), want)])
            for one, more in zip(have, (baseline, candidate, null), strict=True)
        ]
        before, after, other = have
        _, interval = redrawn_ratio(before, after)
        level, null_interval = redrawn_ratio(before, other)
        if not last:
            want = _wanted(max(half_width(interval), half_width(null_interval)))
        if last or want == REPORT_LEAST:
            break
    return Redrawn(float(before.mean()), float(after.mean()), interval, level, null_interval, len(before))


def _wanted(wide: float) -> int:
    """Draws that bring this half-width of `REPORT_LEAST` draws to `REPORT_HALF_WIDTH`, with some to spare."""
    square = (REPORT_HALF_WIDTH / (_SPARE * wide)) ** 2 if wide > 0 else math.inf
    error = square * (1 / REPORT_LEAST + 1 / _OTHERS) - 1 / _OTHERS  # 1 / n that it leaves to these draws
    most = REPORT_MOST if error <= 0 else math.ceil(1 / error)
    return min(max(most, REPORT_LEAST), REPORT_MOST)


def half_width(interval: Interval) -> float:
    """Half of what an interval spans."""
    return (interval.high - interval.low) / 2
