"""A tuned schedule as single changes of the original, each of which can be taken back.

Only order and stall counts differ between two schedules of a `ScheduleSpace`. The order becomes the fewest
instructions that must be taken out and put back (a heaviest increasing subsequence stays, memory operations
are the rather named as movers); the stall counts of instructions whose successor is the original one become
changes of their own, all others follow from the order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from sassafras.core import SassafrasError
from sassafras.sass import control
from sassafras.schedule import ScheduleSpace, ScheduleState
from sassafras.schedule.moves_jit import settle_all, working
from sassafras.schedule.tables import touches_memory

#: what `encode` may change in a word: everything else travels with the instruction
_TRAVELS = ~np.uint64(control.STALL_MASK | control.YIELD_MASK | control.REUSE_MASK)


@dataclass(frozen=True, slots=True)
class Change:
    """One instruction that stands elsewhere, or stalls for another number of cycles.

    Attributes:
        kind: ``reorder`` or ``restall``.
        instruction: its original index.
        block: its basic block.
    """

    kind: Literal["reorder", "restall"]
    instruction: int
    block: int


def state_of(space: ScheduleSpace, cubin: bytes) -> ScheduleState:
    """The schedule that a cubin holds.

    Instructions of the same encoding and the same scoreboards are told apart by their order alone.

    Raises:
        SassafrasError: it is no schedule of the space's kernel (other instructions, registers or size).
    """
    function = space.function
    if len(cubin) != len(space.kernel.cubin):
        what = f"the kernel's cubin has {len(space.kernel.cubin)} bytes, this one {len(cubin)}"
        raise SassafrasError(what, hint="explain compares schedules of one cubin")
    code = np.frombuffer(cubin, "<u8", 2 * len(function), function.text_offset).reshape(-1, 2)
    pools: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index in range(len(function) - 1, -1, -1):
        low, high = function.words[index]
        pools[int(low), int(high & _TRAVELS)].append(index)
    order = []
    for position, (low, high) in enumerate(code):
        pool = pools.get((int(low), int(high & _TRAVELS)))
        if not pool:
            raise SassafrasError(
                "it holds an instruction (or a scoreboard) that the original does not",
                where=f"{space.kernel.name}+{16 * position:#x}",
                hint="explain knows schedules that differ in order and stall counts",
            )
        order.append(pool.pop())
    stall = ((code[:, 1] & np.uint64(control.STALL_MASK)) >> np.uint64(control.STALL_SHIFT)).astype(np.uint8)
    return ScheduleState(np.array(order, dtype=np.int32), stall)


def stall_counts(state: ScheduleState) -> np.ndarray:
    """int (instructions,): the stall count of each, by its original index."""
    counts = np.empty(len(state.order), dtype=int)
    counts[state.order] = state.stall
    return counts


class Changes:
    """What leads from the original schedule to a tuned one.

    Args:
        space: the kernel's space; its start is the original.
        tuned: a schedule of it.

    Attributes:
        all: every change, by block and position in the tuned schedule.
    """

    def __init__(self, space: ScheduleSpace, tuned: ScheduleState) -> None:
        self.space, self.tuned, self.original = space, tuned, space.start()
        self.blocks = [(int(a), int(b)) for a, b in zip(space.tables.start, space.tables.end, strict=True)]
        weights = [1.0 if touches_memory(i) else 1.001 for i in space.function.instructions]
        self._stall_before, self._stall_after = stall_counts(self.original), stall_counts(tuned)
        self._next_before = _successors(self.original.order, self.blocks)
        self._next_after = _successors(tuned.order, self.blocks)
        self._needs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for a, b in space.graph.order:
            self._needs[a].append((a, b))
            self._needs[b].append((a, b))
        found: list[Change] = []
        for number, (start, end) in enumerate(self.blocks):
            order = [int(x) for x in tuned.order[start:end]]
            kept = heaviest_increasing(order, [weights[x] for x in order])
            found += [Change("reorder", x, number) for x in order if x not in kept]
            found += [Change("restall", x, number) for x in order if x in kept and self._restalled(x)]
        self.all: tuple[Change, ...] = tuple(found)

    def _restalled(self, x: int) -> bool:
        """Whether it stalls otherwise in front of the same instruction."""
        same = self._next_before.get(x) == self._next_after.get(x)
        return same and bool(self._stall_before[x] != self._stall_after[x])

    def without(self, undone: Iterable[int]) -> tuple[ScheduleState, frozenset[int]] | None:
        """The tuned schedule with some changes taken back.

        Args:
            undone: numbers of changes in `all`.

        Returns:
            A schedule of the space, and the changes that had to go: those asked for, and those that cannot
            stay without them (an access hoisted along with its address). None where the space has no stall
            counts for it.
        """
        gone = set(undone)
        taken = {self.all[n].instruction for n in gone if self.all[n].kind == "reorder"}
        moved = {c.instruction: n for n, c in enumerate(self.all) if c.kind == "reorder"}
        order = np.array(self.tuned.order)
        for start, end in self.blocks:
            if not taken.isdisjoint(int(x) for x in self.tuned.order[start:end]):
                order[start:end] = self._block(start, end, taken, moved)
        gone |= {moved[x] for x in taken}
        for generous in (False, True):
            state = self._settled(order, self._stalls(order, gone, taken, generous))
            if state is not None:
                return state, frozenset(gone)
        return None

    def _block(self, start: int, end: int, taken: set[int], moved: dict[int, int]) -> list[int]:
        """One block's order without `taken`, which grows by what cannot stay."""
        tuned = [int(x) for x in self.tuned.order[start:end]]
        while True:
            order, clash = self._merge(start, end, tuned, taken, moved)
            if clash is None:
                where = {x: p for p, x in enumerate(order)}
                clash = next(
                    (
                        pair
                        for x in order
                        if x in taken
                        for pair in self._needs[x]
                        if pair[0] in where and pair[1] in where and where[pair[0]] >= where[pair[1]]
                    ),
                    None,
                )
            if clash is None:
                return order
            taken.add(clash[0] if clash[0] not in taken and clash[0] in moved else clash[1])

    def _merge(
        self, start: int, end: int, tuned: list[int], taken: set[int], moved: dict[int, int]
    ) -> tuple[list[int], tuple[int, int] | None]:
        """Those that stay in the tuned order, those taken back in the original's; or a pair that clashes."""
        order: list[int] = []
        back = [x for x in range(start, end) if x in taken or x not in moved]
        at = 0
        gap: list[int] = []
        for x in [*(y for y in tuned if y not in taken), -1]:
            if x in moved:
                gap.append(x)
                continue
            mine: list[int] = []
            while at < len(back) and back[at] in taken:
                mine.append(back[at])
                at += 1
            at += 1  # x itself
            while gap or mine:
                if not mine or (gap and gap[0] < mine[0]):
                    first, others, rest = gap, mine, gap
                else:
                    first, others, rest = mine, gap, mine
                if (pair := self._blocked(first[0], others)) is not None:
                    first, others, rest = others, first, others
                    if self._blocked(first[0], others) is not None:
                        return order, pair
                order.append(rest.pop(0))
            if x >= 0:
                order.append(x)
        return order, None

    def _blocked(self, x: int, others: list[int]) -> tuple[int, int] | None:
        """The edge that makes one of `others` come before x."""
        waiting = set(others)
        return next(((a, b) for a, b in self._needs[x] if b == x and a in waiting), None)

    def _stalls(self, order: np.ndarray, gone: set[int], taken: set[int], generous: bool) -> np.ndarray:
        """Stall counts to begin with: those that both schedules agree on where an instruction's successor
        is that of one of them, else the least (or, if `generous`, the most) that either has."""
        restored = taken | {self.all[n].instruction for n in gone}
        after = _successors(order, self.blocks)
        own = self.space.tables.own
        stall = np.empty(len(order), dtype=np.uint8)
        for position, x in enumerate(int(x) for x in order):
            follower = after.get(x)
            if follower == self._next_after.get(x) and x not in restored:
                cycles = self._stall_after[x]
            elif follower == self._next_before.get(x):
                cycles = self._stall_before[x]
            elif generous:
                cycles = max(self._stall_before[x], self._stall_after[x])
            else:
                cycles = min(int(own[x]), int(self._stall_before[x]), int(self._stall_after[x]))
            stall[position] = cycles
        return stall

    def _settled(self, order: np.ndarray, stall: np.ndarray) -> ScheduleState | None:
        """The schedule with stall counts raised where they must be."""
        w = working(order, stall)
        if settle_all(self.space.tables, w) >= 0:
            return None
        state = ScheduleState(w.order, w.stall)
        return None if self.space.violation(state) else state


def _successors(order: np.ndarray, blocks: list[tuple[int, int]]) -> dict[int, int]:
    """Instruction -> the one behind it in its block; the last of a block is not in it."""
    found: dict[int, int] = {}
    for start, end in blocks:
        part = [int(x) for x in order[start:end]]
        found.update(pairwise(part))
    return found


def heaviest_increasing(values: list[int], weights: list[float]) -> set[int]:
    """The heaviest increasing subsequence of distinct values."""
    numbers, total = np.array(values), np.zeros(len(values))
    behind: list[int] = []
    for n, weight in enumerate(weights):
        below = np.where(numbers[:n] < numbers[n], total[:n], 0.0)
        behind.append(int(below.argmax()) if below.any() else -1)
        total[n] = weight + below.max(initial=0.0)
    kept: set[int] = set()
    n = int(total.argmax()) if values else -1
    while n >= 0:
        kept.add(values[n])
        n = behind[n]
    return kept
