"""A readable difference between two schedules of one kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sassafras.sass import Function

from .state import ScheduleState


@dataclass(frozen=True, slots=True)
class MovedInstruction:
    """An instruction that changed places relative to its neighbours.

    Attributes:
        instruction: its original index.
        text: its disassembly.
        block: its basic block.
        before, after: positions within the block.
    """

    instruction: int
    text: str
    block: int
    before: int
    after: int

    def __str__(self) -> str:
        way = "up" if self.after < self.before else "down"
        by = abs(self.after - self.before)
        return f"block {self.block}: {self.before} -> {self.after} ({way} {by})  {self.text}"


@dataclass(frozen=True, slots=True)
class Description:
    """What differs between two schedules.

    Attributes:
        moved: the fewest instructions that need to be taken out and put back to get from one order to the
            other, in the new order.
        shifted: how many instructions stand elsewhere, those included.
        restalled: how many instructions have another stall count.
        cycles: (before, after) sums of the stall counts of each block in which anything differs.
    """

    moved: tuple[MovedInstruction, ...]
    shifted: int
    restalled: int
    cycles: dict[int, tuple[int, int]]

    def __str__(self) -> str:
        if not self.moved and not self.restalled:
            return "the same schedule"
        lines = [
            f"{len(self.moved)} instructions moved, {self.restalled} stall counts changed, "
            f"{self.shifted} instructions at another address"
        ]
        for block, (before, after) in sorted(self.cycles.items()):
            lines.append(f"block {block}: {before} -> {after} issue cycles")
        return "\n".join([*lines, *map(str, self.moved)])


def _kept(values: list[int]) -> set[int]:
    """A longest increasing subsequence (patience sorting)."""
    tails: list[int] = []
    behind: dict[int, int] = {}
    for value in values:
        at = int(np.searchsorted(tails, value))
        behind[value] = tails[at - 1] if at else -1
        if at == len(tails):
            tails.append(value)
        else:
            tails[at] = value
    kept: set[int] = set()
    value = tails[-1] if tails else -1
    while value >= 0:
        kept.add(value)
        value = behind[value]
    return kept


def describe(function: Function, new: ScheduleState, old: ScheduleState | None = None) -> Description:
    """Compare two schedules of a kernel.

    Args:
        function: the kernel.
        new: the schedule to describe.
        old: what to compare with; None for the original.
    """
    code = function.instructions
    count = len(code)
    before = np.arange(count) if old is None else old.order
    stalls = np.array([i.control.stall for i in code]) if old is None else old.stall
    where = np.empty(count, dtype=np.int64)
    where[before] = np.arange(count)
    old_stall, new_stall = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    old_stall[before], new_stall[new.order] = stalls, new.stall
    moved: list[MovedInstruction] = []
    cycles: dict[int, tuple[int, int]] = {}
    for block in function.blocks:
        span = slice(block.start, block.end)
        ranks = [int(where[x]) for x in new.order[span]]
        kept = _kept(ranks)
        for position, (x, rank) in enumerate(zip(new.order[span], ranks, strict=True)):
            if rank not in kept:
                moved.append(
                    MovedInstruction(int(x), code[x].text, block.index, rank - block.start, position)
                )
        if ranks != sorted(ranks) or (new.stall[span] != stalls[span]).any():
            cycles[block.index] = (int(stalls[span].sum()), int(new.stall[span].sum()))
    return Description(
        tuple(moved), int((before != new.order).sum()), int((old_stall != new_stall).sum()), cycles
    )
