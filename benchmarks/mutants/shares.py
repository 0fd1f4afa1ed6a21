"""Fair shares of time: how long each kernel's mutants may be made, its opening counted.

Every kernel that is left gets the same time for its mutants, of what remains when the openings still to
come are taken off. How long an opening takes is guessed from the number of instructions and corrected by
those that were seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

#: what is not given away: the last kernels do not end together
_SPARE = 0.04
#: seconds of a kernel's mutants, at least
_LEAST_S = 0.25
#: seconds that an opening takes on one core, at first: for itself, and per instruction
_OPENING = (0.6, 1 / 1200)


@dataclass(frozen=True)
class Item:
    """A kernel: the file, its place under the folder named, the kernel's name, how many instructions."""

    path: str
    shown: str
    folder: int
    name: str
    instructions: int

    @property
    def guess_s(self) -> float:
        """Seconds that opening it may take."""
        return _OPENING[0] + _OPENING[1] * self.instructions


class Shares:
    """Gives kernels out, the largest first, and each its time.

    Args:
        items: all kernels.
        workers: processes.
        until: when all must be over (``time.time()``).
    """

    def __init__(self, items: list[Item], workers: int, until: float) -> None:
        # what is long begins early; nothing starves, as every kernel has its share
        self.left = sorted(items, key=lambda item: (-item.instructions, item.shown, item.name))
        self._left_s = sum(item.guess_s for item in self.left)
        self._workers, self._until = workers, until
        self._guessed = self._took = 2.0
        #: when the kernels under way may end
        self._ends: dict[Item, float] = {}

    def opened(self, item: Item, seconds: float) -> None:
        """Note how long an opening took."""
        self._guessed += item.guess_s
        self._took += seconds

    def ended(self, item: Item) -> None:
        """Note that a kernel is done, or was killed."""
        self._ends.pop(item, None)

    def following(self) -> tuple[Item, float] | None:
        """The next kernel and the seconds for its mutants; None when there is none."""
        if not self.left:
            return None
        now, slow = time.time(), self._took / self._guessed
        under_way = sum(max(0.0, end - now) for end in self._ends.values())
        time_left = max(0.0, (self._until - now) * self._workers - under_way) * (1 - _SPARE)
        share = (time_left - self._left_s * slow) / len(self.left)
        item = self.left.pop(0)
        self._left_s -= item.guess_s
        ready = now + item.guess_s * slow
        share = max(_LEAST_S, min(share, self._until - ready))
        self._ends[item] = ready + share
        return item, share
