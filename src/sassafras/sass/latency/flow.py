"""Which earlier instruction each read and write of a function depends on, and how long before it issues.

A forward data-flow analysis over the basic blocks: loop back-edges and joins included, bounded to
`HORIZON` cycles. Time is counted by stall counts alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from ..control import Control
from ..instruction import Instruction
from ..program import Function
from ..registers import PRED, UPRED
from .slots import SlotUse, slots

#: cycles after which every fixed-latency result is there (the longest one mined is below 40)
HORIZON = 48

Entry = tuple[int, str]
"""(index of the instruction, slot)"""

#: (kind, first instruction, its slot, second instruction, its slot, cycles)
Sink = Callable[[str, int, str, int, str, int], None]


def issue_cycles(control: Control) -> int:
    """Cycles until the same warp may issue its next instruction: the stall count, at least one.

    ptxas emits a stall count of 0 only in code that never runs on (the trailing self-loop and the NOPs
    behind it) and in USETMAXREG.
    """
    return max(1, control.stall)


@dataclass(slots=True)
class _State:
    """What may still be in flight. Times are cycles before (<= 0) or after the block's first issue."""

    written: dict[int, dict[Entry, int]] = field(default_factory=dict)
    unread: dict[int, dict[Entry, int]] = field(default_factory=dict)  # those of them that nothing read yet
    read: dict[int, dict[Entry, int]] = field(default_factory=dict)
    predicate: dict[int, int] = field(default_factory=dict)  # last definition of each predicate
    waited: int = -HORIZON  # last wait for a scoreboard

    def copy(self) -> _State:
        return self.after(0)

    def after(self, elapsed: int) -> _State:
        """The state `elapsed` cycles later, without what is past the horizon."""
        oldest = elapsed - HORIZON
        return _State(
            _recent(self.written, elapsed),
            _recent(self.unread, elapsed),
            _recent(self.read, elapsed),
            {r: t - elapsed for r, t in self.predicate.items() if t > oldest},
            max(self.waited - elapsed, -HORIZON),
        )

    def _tables(self) -> tuple[dict[int, dict[Entry, int]], ...]:
        return self.written, self.unread, self.read

    def merge(self, other: _State) -> bool:
        """Take in the state at the end of a predecessor; True if it adds anything."""
        changed = False
        for mine, theirs in zip(self._tables(), other._tables(), strict=True):
            for register, entries in theirs.items():
                kept = mine.setdefault(register, {})
                for entry, time in entries.items():
                    if kept.get(entry, -HORIZON) < time:
                        kept[entry] = time
                        changed = True
        for register, time in other.predicate.items():
            if self.predicate.get(register, -HORIZON) < time:
                self.predicate[register] = time
                changed = True
        if other.waited > self.waited:
            self.waited = other.waited
            changed = True
        return changed


def _recent(table: dict[int, dict[Entry, int]], elapsed: int) -> dict[int, dict[Entry, int]]:
    oldest = elapsed - HORIZON
    found = {}
    for register, entries in table.items():
        if kept := {entry: time - elapsed for entry, time in entries.items() if time > oldest}:
            found[register] = kept
    return found


class Flow:
    """The dependences of one function.

    Args:
        function: the kernel.
    """

    def __init__(self, function: Function) -> None:
        self.instructions = function.instructions
        self.blocks = function.blocks
        self.uses: list[tuple[SlotUse, ...]] = [slots(i) for i in self.instructions]
        self._guards = [_guard(i) for i in self.instructions]
        self._entry: list[_State | None] = [None] * len(self.blocks)

    def walk(self, sink: Sink) -> None:
        """Report every pair of dependent instructions once for each path on which its distance differs.

        `sink` gets ("raw", writer, slot, reader, slot, cycles), ("waw", writer, slot, writer, slot,
        cycles) and ("war", reader, slot, writer, slot, cycles). For "waw", nothing reads the first value (a
        reader in between would keep the two apart). For "war", pairs with a wait for a scoreboard
        between them are left out if the reader reads late (it is of variable latency).
        """
        if not self.blocks:
            return
        self._entry[0] = _State()
        work, queued = [0], {0}
        while work:
            number = heapq.heappop(work)
            queued.discard(number)
            start = self._entry[number]
            if start is None:
                continue
            state = start.copy()
            end = state.after(self._block(number, state, None))
            for successor in self.blocks[number].successors:
                into = self._entry[successor]
                if into is None:
                    self._entry[successor] = end.copy()
                elif not into.merge(end):
                    continue
                if successor not in queued:
                    queued.add(successor)
                    heapq.heappush(work, successor)
        for number, entry in enumerate(self._entry):
            if entry is not None:
                self._block(number, entry.copy(), sink)

    @property
    def reachable(self) -> list[bool]:
        """Whether each block can run (after `walk`)."""
        return [entry is not None for entry in self._entry]

    def _block(self, number: int, state: _State, sink: Sink | None) -> int:
        """Run a block through `state`; returns the cycles from its first issue to the next block's."""
        block, time = self.blocks[number], 0
        for index in range(block.start, block.end):
            i = self.instructions[index]
            if i.control.wait_mask:
                state.waited = time
            if i.guard != "!PT":
                if sink is not None:
                    self._report(index, state, time, sink)
                self._update(index, state, time)
            time += issue_cycles(i.control)
        return time

    def _report(self, index: int, state: _State, now: int, sink: Sink) -> None:
        read = {u.register for u in self.uses[index] if not u.write}
        for use in self.uses[index]:
            if use.write and use.register in read:
                earlier: dict[int, dict[Entry, int]] = {}  # it reads what it replaces: "raw" says more
            else:
                earlier = state.unread if use.write else state.written
            for (first, slot), time in earlier.get(use.register, {}).items():
                if now - time < HORIZON and not self._exclusive(first, time, index, state):
                    sink("waw" if use.write else "raw", first, slot, index, use.slot, now - time)
            if not use.write:
                continue
            for (first, slot), time in state.read.get(use.register, {}).items():
                if now - time >= HORIZON or self._exclusive(first, time, index, state):
                    continue
                if self.instructions[first].op.variable and state.waited > time:
                    continue
                sink("war", first, slot, index, use.slot, now - time)

    def _update(self, index: int, state: _State, now: int) -> None:
        uses = self.uses[index]
        for use in uses:
            if not use.write:
                self._forget(state.unread.get(use.register), index, state)
                state.read.setdefault(use.register, {})[index, use.slot] = now
        for register in {u.register for u in uses if u.write}:
            for table in (state.written, state.unread, state.read):
                self._forget(table.get(register), index, state)
            if PRED <= register < PRED + 7 or UPRED <= register < UPRED + 7:
                state.predicate[register] = now
        for use in uses:
            if use.write:
                state.written.setdefault(use.register, {})[index, use.slot] = now
                state.unread.setdefault(use.register, {})[index, use.slot] = now

    def _forget(self, entries: dict[Entry, int] | None, index: int, state: _State) -> None:
        """Drop what an instruction supersedes: everything, or what has its own unchanged guard."""
        if not entries:
            return
        if self._guards[index] is None:
            entries.clear()
            return
        for entry in [e for e, t in entries.items() if self._same_guard(e[0], t, index, state)]:
            del entries[entry]

    def _exclusive(self, first: int, time: int, second: int, state: _State) -> bool:
        """Guards of the same predicate value, one negated: no thread runs both."""
        a, b = self._guards[first], self._guards[second]
        return (
            a is not None
            and b is not None
            and a[0] == b[0]
            and a[1] != b[1]
            and state.predicate.get(a[0], -HORIZON) < time
        )

    def _same_guard(self, first: int, time: int, second: int, state: _State) -> bool:
        a, b = self._guards[first], self._guards[second]
        return a is not None and a == b and state.predicate.get(a[0], -HORIZON) < time


def _guard(i: Instruction) -> tuple[int, bool] | None:
    """(predicate, negated), or None when the instruction always runs."""
    if i.guard in ("", "PT", "UPT"):
        return None
    negated = i.guard.startswith("!")
    name = i.guard.lstrip("!")
    base = UPRED if name.startswith("UP") else PRED
    digits = name.lstrip("UP")
    return (base + int(digits), negated) if digits.isdigit() else None
