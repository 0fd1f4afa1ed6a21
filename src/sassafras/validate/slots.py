"""Slots of shared memory that the copy engine fills: given back only when no product reads them.

A copy names its slot and the slot's *full* barrier, which counts the bytes. Before it, its thread waits for
the *empty* barrier. A thread whose products read the slot waits for the full one and, when they are done,
arrives at the empty one. Which barriers and slots belong together is seen in the code of the copies.

A finding is an arrival that frees a slot which a product at work reads: a product after a wait for the full
barrier of this slot, whose operand begins in it. It must be seen of two slots: in the first turn of a loop,
a guard that cannot be known may keep the arrival back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sassafras.sass import Instruction

from .integers import Value
from .report import Violation

#: opcodes of copies that a barrier counts
FILLS = frozenset(["UTMALDG", "UBLKCP"])
#: of an address in a cluster's shared memory: the place in its block's
_PLACE = 0xFFFFFF
#: what a product reads: its position, its group, the full barriers waited for before it, where operands begin
_Product = tuple[int, int, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]


@dataclass(slots=True)
class Turn:
    """Where one path of the walk stands. Everything in it is replaced, never changed."""

    awaited: int | None = None  # barrier waited for last
    filled: int | None = None  # full barrier of the copies since
    fresh: tuple[np.ndarray, ...] = ()  # waited for since the last product
    before: tuple[np.ndarray, ...] = ()  # waited for before the last product, and since the one before that
    at_work: tuple[_Product, ...] = ()


class Slots:
    """Slots and barriers of one kernel, gathered over the paths of a walk. Values are arrays (threads,)."""

    def __init__(self) -> None:
        self._begins: dict[int, set[int]] = {}  # full barrier -> where its copies write
        self._empty: dict[int, set[int]] = {}  # barrier waited for before copies -> their full barriers
        self._freed: dict[tuple[int, int], set[tuple[int, ...]]] = {}

    def wait(self, turn: Turn, barrier: Value, live: np.ndarray) -> None:
        """A thread waits for a phase of a barrier."""
        turn.awaited, turn.filled = _one(barrier, live), None
        if barrier is not None:
            turn.fresh = (*turn.fresh, barrier & _PLACE)[-4:]

    def fill(self, turn: Turn, slot: Value, barrier: Value, live: np.ndarray) -> None:
        """A copy begins."""
        begin, full = _one(slot, live), _one(barrier, live)
        if begin is None or full is None:
            return
        self._begins.setdefault(full, set()).add(begin)
        if turn.awaited is not None and turn.filled in (None, full):
            turn.filled = full
            self._empty.setdefault(turn.awaited, set()).add(full)

    def product(self, turn: Turn, n: int, group: int, done: int, operands: tuple[np.ndarray, ...]) -> None:
        """A product of a group is issued; groups up to `done` have been waited for."""
        if turn.fresh:
            turn.before, turn.fresh = turn.fresh, ()
        turn.at_work = (*(p for p in turn.at_work if p[1] > done), (n, group, turn.before, operands))

    def arrive(self, turn: Turn, n: int, barrier: Value, live: np.ndarray, done: int) -> None:
        """Threads arrive at a barrier."""
        if barrier is None or not live.any():
            return
        for product, group, fulls, operands in turn.at_work:
            for full in fulls if group > done else ():
                for operand in operands:
                    rows = np.stack([barrier & _PLACE, full, operand])[:, live]
                    seen = self._freed.setdefault((n, product), set())
                    one = rows[:, :1] if (rows == rows[:, :1]).all() else np.unique(rows, axis=1)
                    seen.update(map(tuple, one.T.tolist()))

    def findings(self, code: Sequence[Instruction]) -> Iterator[Violation]:
        """Slots freed while a product reads them; one of each arrival."""
        every = sorted(set().union(*self._begins.values()))
        apart = {empty - next(iter(fulls)) for empty, fulls in self._empty.items() if len(fulls) == 1}
        told: set[int] = set()
        for (n, product), rows in sorted(self._freed.items()):
            slots: dict[int, int] = {}
            for barrier, full, operand in rows:
                known = self._empty.get(barrier, set())
                if not known and len(apart) == 1:  # all slots have their two barriers equally far apart
                    known = {barrier - next(iter(apart))}
                at = bisect_right(every, operand) - 1
                begin = every[at] if at >= 0 else -1
                if barrier not in self._begins and known == {full} and begin in self._begins.get(full, ()):
                    slots[full] = begin
            if len(slots) > 1 and n not in told:
                told.add(n)
                whose = f"{code[product].text} ({code[product].offset:#x})"
                first = f"frees the slot at {slots[min(slots)]:#x} for the next copy"
                yield Violation.at("slot", code[n], f"{first} before the wait for the group of {whose}")


def _one(value: Value, live: np.ndarray) -> int | None:
    """The one value of all threads, None if they differ or it is not known."""
    if value is None or not live.any():
        return None
    first = int(value[live][0])
    return first & _PLACE if (value[live] == first).all() else None
