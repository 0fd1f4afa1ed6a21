"""Which of a schedule's many changes carry its gain: the others are taken back, in ever smaller portions."""

from __future__ import annotations

from collections.abc import Callable

from sassafras.schedule import ScheduleState

from .changes import Changes

#: relative runtime of a schedule (1 is the original's), None where it was refused
Cost = Callable[[ScheduleState], float | None]


class Spent(Exception):
    """No evaluations are left."""


class Purse:
    """Asks for costs until `limit` different schedules were judged; equal schedules are asked for once."""

    def __init__(self, cost: Cost, limit: int) -> None:
        self._cost, self.left = cost, limit
        self._known: dict[str, float | None] = {}

    @property
    def evaluations(self) -> int:
        """How many schedules were judged."""
        return len(self._known)

    def cost(self, state: ScheduleState) -> float | None:
        """The schedule's cost. Raises `Spent`."""
        if state.digest not in self._known:
            if self.left <= 0:
                raise Spent
            self.left -= 1
            self._known[state.digest] = self._cost(state)
        return self._known[state.digest]

    def known(self, state: ScheduleState) -> float | None:
        """`cost`; None where no evaluations are left."""
        try:
            return self.cost(state)
        except Spent:
            return None


def essential(changes: Changes, purse: Purse, keep: float = 0.95) -> frozenset[int]:
    """The changes that can be taken back while `keep` of the gain stays.

    Halves, quarters and so on of the changes that are left are taken back where that costs nothing that
    counts (Zeller's delta debugging, without complements). The answer need not be the smallest one.

    Args:
        changes: the tuned schedule's.
        purse: judges schedules; where it runs out, what was found so far is returned.
        keep: how much of the gain has to stay.

    Returns:
        Numbers of the changes to take back; none where the tuned schedule gains nothing.
    """
    count = len(changes.all)
    undone: frozenset[int] = frozenset()
    try:
        full = purse.cost(changes.tuned)
        if full is None or full >= 1.0:
            return undone
        limit = full + (1.0 - keep) * (1.0 - full)
        size = max(1, count // 2)
        while True:
            left = [n for n in range(count) if n not in undone]
            gone_before = undone
            for start in range(0, len(left), size):
                portion = [n for n in left[start : start + size] if n not in undone]
                if not portion or len(undone) + len(portion) >= count:
                    continue
                made = changes.without(undone | set(portion))
                if made is None:
                    continue
                cost = purse.cost(made[0])
                if cost is not None and cost <= limit:
                    undone = made[1]
            if size == 1:
                if undone == gone_before:
                    return undone
            else:
                size = max(1, size // 2)
    except Spent:
        return undone
