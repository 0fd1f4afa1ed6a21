"""Pairs of instructions that must keep their order, within blocks and across them, read off the original.

In a candidate that keeps the order of every pair within a block, and moves nothing out of its block, each
read has the same reaching definitions as in the original, on every path: by induction along the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .effects import Access, Effects
from .graph import GraphBlock
from .operands import UP, UR, P

#: ORDER is a write after a write that something reads in between: no distance of its own
RAW, WAW, WAR, MEMORY, ORDER = 0, 1, 2, 3, 4
KIND_NAMES = ("raw", "waw", "war", "memory", "waw")

Guard = tuple[int, bool, int]
"""(predicate, negated, version): equal guards within a block have the same value"""


class Pair(NamedTuple):
    """`first` stays before `second`: kind, indices, and the slots that meet (``""`` for memory)."""

    kind: int
    first: int
    slot: str
    second: int
    other: str
    register: int


@dataclass(slots=True)
class Event:
    """One access by one instruction, with the guard that it is under."""

    index: int
    slot: str
    guard: Guard | None


@dataclass(slots=True)
class Ends:
    """What of one register's accesses in a block can be seen from outside.

    Attributes:
        early_reads, early_writes: those that what came before the block can reach.
        bare_writes: those of `early_writes` before which nothing reads the register.
        late_reads, late_writes: those that can reach what comes after it.
        unread: those of `late_writes` whose value nothing has read.
        read: a read that always happens comes before any write.
        kills: a write that always happens stands between.
    """

    early_reads: list[Event] = field(default_factory=list)
    early_writes: list[Event] = field(default_factory=list)
    bare_writes: list[Event] = field(default_factory=list)
    late_reads: list[Event] = field(default_factory=list)
    late_writes: list[Event] = field(default_factory=list)
    unread: list[Event] = field(default_factory=list)
    read: bool = False
    kills: bool = False


def guards_of(block: GraphBlock, effects: Sequence[Effects]) -> dict[int, Guard | None]:
    """Each instruction's guard with the version of its predicate within the block."""
    version: dict[int, int] = {}
    guards: dict[int, Guard | None] = {}
    for index in range(block.start, block.end):
        e = effects[index]
        guards[index] = None if e.guard is None else (e.guard, e.negated, version.get(e.guard, 0))
        for register in e.writes:
            if P <= register < UR or UP <= register < UP + 8:
                version[register] = version.get(register, 0) + 1
    return guards


def exclusive(a: Guard | None, b: Guard | None) -> bool:
    """No thread runs both: the same predicate value, once negated."""
    return a is not None and b is not None and a[0] == b[0] and a[2] == b[2] and a[1] != b[1]


def _forget(events: list[Event], guard: Guard | None) -> None:
    """Drop the events that an instruction under this guard supersedes: all, or those under the same one."""
    events[:] = [e for e in events if e.guard != guard] if guard is not None else ()


class BlockPairs:
    """Register pairs within one block, and its `ends` by register."""

    def __init__(self, block: GraphBlock, effects: Sequence[Effects]) -> None:
        self.pairs: list[Pair] = []
        self.ends: dict[int, Ends] = {}
        guards = guards_of(block, effects)
        for index in range(block.start, block.end):
            if effects[index].never:
                continue
            self._instruction(index, effects[index].accesses, guards[index])

    def _instruction(self, index: int, accesses: tuple[Access, ...], guard: Guard | None) -> None:
        for a in accesses:
            if not a.write:
                ends = self.ends.setdefault(a.register, Ends())
                event = Event(index, a.slot, None if a.slot == "G" else guard)  # guards are always read
                if not ends.kills:
                    ends.early_reads.append(event)
                    ends.read = ends.read or guard is None
                self._pair(RAW, ends.late_writes, event, a.register)
                ends.late_reads.append(event)
        for a in accesses:
            if not a.write:
                _forget(self.ends[a.register].unread, guard)
        for a in accesses:
            if a.write:
                ends = self.ends.setdefault(a.register, Ends())
                event = Event(index, a.slot, guard)
                if not ends.kills:
                    ends.early_writes.append(event)
                    if not ends.read:
                        ends.bare_writes.append(event)
                self._pair(WAW, ends.unread, event, a.register)
                self._pair(ORDER, ends.late_writes, event, a.register)
                self._pair(WAR, ends.late_reads, event, a.register)
        for a in accesses:
            if a.write:
                ends = self.ends[a.register]
                # a write under the same guard takes the place of what happened under it; an unguarded one
                # of everything
                for events in (ends.late_writes, ends.late_reads, ends.unread):
                    _forget(events, guard)
                ends.kills = ends.kills or guard is None
        for a in accesses:
            if a.write:
                event = Event(index, a.slot, guard)
                self.ends[a.register].late_writes.append(event)
                self.ends[a.register].unread.append(event)

    def _pair(self, kind: int, earlier: list[Event], event: Event, register: int) -> None:
        for e in earlier:
            if e.index != event.index and not exclusive(e.guard, event.guard):
                self.pairs.append(Pair(kind, e.index, e.slot, event.index, event.slot, register))


def crossing(
    blocks: Sequence[GraphBlock], parts: Sequence[BlockPairs], shortest: Sequence[int], horizon: int
) -> Iterator[tuple[Pair, bool]]:
    """Pairs whose second instruction is reached over at least one block edge.

    Args:
        blocks, parts: the graph and each block's ends.
        shortest: the least number of cycles that each block can take in any candidate.
        horizon: cycles after which fixed latencies are over.

    Yields:
        (pair, near): near when the edge can be crossed within `horizon` cycles, so that distances matter.
    """
    registers: dict[int, list[int]] = {}
    for n, part in enumerate(parts):
        for register, ends in part.ends.items():
            if ends.late_reads or ends.late_writes:
                registers.setdefault(register, []).append(n)
    for register, sources in registers.items():
        for source in sources:
            out = parts[source].ends[register]
            seen = reach(blocks, parts, shortest, source, register)
            bare = reach(blocks, parts, shortest, source, register, True) if out.unread else {}
            for target, cycles in seen.items():
                into = parts[target].ends.get(register)
                if into is None:
                    continue
                near = cycles < horizon
                for kind, late, early in (
                    (RAW, out.late_writes, into.early_reads),
                    (WAW, out.unread if target in bare else [], into.bare_writes),
                    (ORDER, out.late_writes, into.early_writes),
                    (WAR, out.late_reads, into.early_writes),
                ):
                    for e in late:
                        for f in early:
                            yield Pair(kind, e.index, e.slot, f.index, f.slot, register), near


def reach(
    blocks: Sequence[GraphBlock],
    parts: Sequence[BlockPairs],
    shortest: Sequence[int],
    source: int,
    register: int,
    unread: bool = False,
) -> dict[int, int]:
    """Blocks entered with the register's accesses of `source` still visible -> least cycles on the way.

    With `unread`, and with nothing on the way that always reads the register. -1 for no register: all blocks.
    """
    best = dict.fromkeys(blocks[source].follow, 0)
    work = list(best)
    while work:
        n = work.pop()
        ends = parts[n].ends.get(register)
        if ends is not None and (ends.kills or (unread and ends.read)):
            continue
        cycles = best[n] + shortest[n]
        for m in blocks[n].follow:
            if best.get(m, cycles + 1) > cycles:
                best[m] = cycles
                work.append(m)
    return best
