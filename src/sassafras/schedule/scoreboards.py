"""How scoreboards protect registers in the original schedule, as order edges that a new one must keep.

A variable-latency instruction writes its results late and reads its general registers late. ptxas covers
each conflict in one of two ways: the instruction sets a scoreboard itself, or a later one of the same queue
does (results return, and operands are read, in order within a queue). Somewhere before the conflicting
instruction, a *waiter* waits for that scoreboard; that may be an earlier instruction on behalf of many
later ones. So for each conflict we keep: setter before waiter, waiter before whatever it protects, and, where
a later instruction of the queue covers an earlier one, these two in order. Scoreboards are counters:
whatever else is pending on them only delays the waiter.

The analysis runs forward over the control-flow graph to a fixed point. A conflict that no waiter covers is
reported as unprotected; both of its instructions are pinned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sassafras.sass import Block, Instruction, Queue
from sassafras.sass.in_order_completion import covers, unit
from sassafras.sass.registers import GPR, PRED, UGPR, UPRED

#: a load's result cannot overtake the operands of what is before it here
_MEMORY = (Queue.LSU, Queue.MIO)
_DEPBAR = re.compile(r"SB(\d+)")
#: read their uniform address at issue, as all uniform registers
_EARLY_UNIFORM = frozenset(["LDS", "LDSM", "STS", "STSM", "ATOMS", "S2UR", "S2R"])


def scoreboard_names(text: str) -> list[str]:
    """Numbers of the scoreboards in an operand of DEPBAR: ``SB0``."""
    return _DEPBAR.findall(text)


Item = tuple[int, bool]
"""(instruction, True for its results and False for its late reads)"""


@dataclass(slots=True)
class ScoreboardEffects:
    """What an instruction has to do with scoreboards.

    Attributes:
        waits: bit mask of scoreboards that are zero once it issues.
        results: registers that it writes late.
        late: registers that it reads late.
        write_bit, read_bit: masks of the scoreboards that it sets.
        unit: its name in `sass.in_order_completion`, which says what covers it.
        memory: whether it goes to memory.
        writes, touches, kills: all registers written; read or written; written unconditionally.
    """

    waits: int
    results: frozenset[int]
    late: frozenset[int]
    write_bit: int
    read_bit: int
    unit: str
    memory: bool
    writes: frozenset[int]
    touches: frozenset[int]
    kills: frozenset[int]


def fixed_double(instructions: tuple[Instruction, ...]) -> bool:
    """Whether FP64 is of fixed latency here: it is on sm_90, where ptxas sets no scoreboard on it."""
    plain = [i for i in instructions if i.op.queue is Queue.FP64 and i.base != "DMMA"]
    return all(i.control.write_barrier is None for i in plain)


def effects(i: Instruction, fixed_fp64: bool = True) -> ScoreboardEffects:
    """Read an instruction's part in scoreboards off its control code and its opcode's facts."""
    c = i.control
    waits = c.wait_mask
    if i.base == "DEPBAR" and len(i.operands) >= 2 and i.operands[1] == "0x0":
        waits |= sum(1 << int(n) for n in scoreboard_names(i.operands[0]))
    write_bit = 0 if c.write_barrier is None else 1 << c.write_barrier
    read_bit = 0 if c.read_barrier is None else 1 << c.read_barrier
    # control transfers are fences
    variable = i.op.variable and i.op.queue is not Queue.CONTROL
    if i.op.queue is Queue.FP64 and fixed_fp64:
        variable = False
    results = i.writes if variable or write_bit else frozenset[int]()
    late: frozenset[int] = frozenset()
    if variable or read_bit:
        late = frozenset(r for r in i.reads if GPR <= r < PRED)
        if i.base not in _EARLY_UNIFORM:
            late |= frozenset(r for r in i.reads if UGPR <= r < UPRED)
    guarded = i.guard not in ("", "PT")
    return ScoreboardEffects(
        waits,
        results,
        late,
        write_bit,
        read_bit,
        unit(i.opcode),
        i.op.queue in _MEMORY,
        i.writes,
        i.reads | i.writes,
        frozenset() if guarded else i.writes,
    )


@dataclass(slots=True)
class Protection:
    """The outcome.

    Attributes:
        edges: (first, second) pairs of instructions of one block whose order must be kept.
        unprotected: (producer, consumer, register) conflicts that no waiter covers.
        asynchronous: per instruction, registers it writes late; per instruction, registers it reads late.
    """

    edges: set[tuple[int, int]] = field(default_factory=set)
    unprotected: set[tuple[int, int, int]] = field(default_factory=set)
    results: list[frozenset[int]] = field(default_factory=list)
    late: list[frozenset[int]] = field(default_factory=list)


State = dict[Item, int]
Key = TypeVar("Key", bound=Hashable)


def analyse(
    instructions: tuple[Instruction, ...],
    blocks: tuple[Block, ...],
    successors: list[tuple[int, ...]],
    fence: list[bool],
) -> Protection:
    """Find the order edges that keep every register protected as it is in the original schedule.

    Args:
        instructions: the function, in original order.
        blocks: its basic blocks.
        successors: of each block.
        fence: instructions that nothing passes.
    """
    fixed = fixed_double(instructions)
    facts = [effects(i, fixed) for i in instructions]
    found = Protection(results=[f.results for f in facts], late=[f.late for f in facts])

    def pending(any_cover: bool) -> list[State]:
        return entries(successors, lambda n, state: _Walk(facts, blocks[n], state, None, any_cover).run())

    for b, state in zip(blocks, pending(any_cover=False), strict=True):
        _Walk(facts, b, state, found).run()
        _setter_before_waiter(facts, b, found.edges)
    home = [b for b in blocks for _ in range(b.start, b.end)]
    for b, state in zip(blocks, pending(any_cover=True), strict=True):
        _Done(facts, b, state, found, fence, home).run()
    return found


def entries(
    successors: Sequence[tuple[int, ...]], walk: Callable[[int, dict[Key, int]], dict[Key, int]]
) -> list[dict[Key, int]]:
    """What may be pending on entry of each block, as a fixed point: item -> scoreboards that say, on all
    paths, that it is done.

    Args:
        successors: of each block.
        walk: what is pending at the end of a block, by its number and what is on its entry.
    """
    entry: list[dict[Key, int]] = [{} for _ in successors]
    work = list(range(len(successors)))
    while work:
        n = work.pop(0)
        out = walk(n, dict(entry[n]))
        for s in successors[n]:
            known = entry[s]
            merged = {item: known.get(item, mask) & mask for item, mask in out.items()}
            if any(known.get(item) != mask for item, mask in merged.items()):
                known.update(merged)
                if s not in work:
                    work.append(s)
    return entry


def _setter_before_waiter(facts: list[ScoreboardEffects], block: Block, edges: set[tuple[int, int]]) -> None:
    following: dict[int, int] = {}
    for i in range(block.end - 1, block.start - 1, -1):
        for bit in range(6):
            if (facts[i].write_bit | facts[i].read_bit) >> bit & 1 and bit in following:
                edges.add((i, following[bit]))
        for bit in range(6):
            if facts[i].waits >> bit & 1:
                following[bit] = i


class _Walk:
    """One pass over one block; collects edges when `found` is given."""

    def __init__(
        self,
        facts: list[ScoreboardEffects],
        block: Block,
        state: State,
        found: Protection | None = None,
        any_cover: bool = False,
    ) -> None:
        self.facts, self.block, self.state, self.found = facts, block, state, found
        # let a later operation of the queue cover also those that set a scoreboard themselves
        self.any_cover = any_cover
        # (item, bit) -> the instruction of this block that covers it
        self.cover: dict[tuple[Item, int], int] = {}
        # (unit, result) -> items
        self.by_unit: dict[tuple[str, bool], set[Item]] = {}
        for item in state:
            self._index(item)
        # register -> waiters of this block that an instruction that touches (or writes) it stays behind
        self.after_results: dict[int, set[int]] = {}
        self.after_reads: dict[int, set[int]] = {}

    def _index(self, item: Item) -> None:
        self.by_unit.setdefault((self.facts[item[0]].unit, item[1]), set()).add(item)

    def _covered(self, fact: ScoreboardEffects, result: bool) -> list[Item]:
        """Items that an instruction covers, if they are pending."""
        return [
            item
            for (name, of_result), items in self.by_unit.items()
            if of_result is result and covers(fact.unit, name, result)
            for item in items
        ]

    def run(self) -> State:
        for i in range(self.block.start, self.block.end):
            self._step(i, self.facts[i])
        if self.found is not None:
            for (item, bit), cover in self.cover.items():
                if self.state.get(item, 0) >> bit & 1:
                    self._edge(item[0], cover)
        return self.state

    def _edge(self, first: int, second: int) -> None:
        if self.found is not None and self.block.start <= first < second:
            self.found.edges.add((first, second))

    def _step(self, i: int, fact: ScoreboardEffects) -> None:
        if fact.waits:
            for item in [x for x, mask in self.state.items() if mask & fact.waits]:
                self._clear(item, self.state.pop(item) & fact.waits, i)
        if self.found is not None:
            self._conflicts(i, fact, self.found)
        self._cover(i, fact)
        for item, mask, registers in (
            ((i, True), fact.write_bit, fact.results),
            ((i, False), fact.read_bit | fact.write_bit, fact.late),
        ):
            if registers:
                for bit in range(6):
                    self.cover.pop((item, bit), None)
                self.state[item] = mask
                self._index(item)

    def _clear(self, item: Item, usable: int, waiter: int) -> None:
        if self.found is None:
            return
        a, result = item
        bits = [b for b in range(6) if usable >> b & 1]
        # a bit that the instruction set itself, or that was set before this block, needs no cover
        own = [b for b in bits if (item, b) not in self.cover]
        if own:
            self._edge(a, waiter)
        else:
            cover = min(self.cover[item, b] for b in bits)
            self._edge(a, cover)
            self._edge(cover, waiter)
        registers = self.facts[a].results if result else self.facts[a].late
        guards = self.after_results if result else self.after_reads
        for register in registers:
            guards.setdefault(register, set()).add(waiter)

    def _conflicts(self, i: int, fact: ScoreboardEffects, found: Protection) -> None:
        for (a, result), _ in self.state.items():
            other = self.facts[a]
            hit = other.results & fact.touches if result else other.late & fact.writes
            if hit and not result and other.memory and fact.memory:
                # the later operation's result cannot overtake the earlier one's operands: same queue
                hit -= fact.results
            for register in hit:
                if a != i or result:
                    found.unprotected.add((a, i, register))
        for register in fact.touches:
            for waiter in self.after_results.get(register, ()):
                self._edge(waiter, i)
        for register in fact.writes:
            for waiter in self.after_reads.get(register, ()):
                self._edge(waiter, i)
        for register in fact.kills:
            self.after_results.pop(register, None)
            self.after_reads.pop(register, None)

    def _cover(self, i: int, fact: ScoreboardEffects) -> None:
        """A scoreboard of this instruction also covers earlier ones of its queue."""
        if fact.write_bit:
            bit = fact.write_bit.bit_length() - 1
            for item in self._covered(fact, True):
                # one that sets a scoreboard itself is waited for by that
                if item in self.state and (self.any_cover or not self.facts[item[0]].write_bit):
                    self._add(item, bit, i)
        for mask in (fact.write_bit, fact.read_bit):
            if mask:
                bit = mask.bit_length() - 1
                for item in self._covered(fact, False):
                    if item in self.state and (self.any_cover or not self.facts[item[0]].read_bit):
                        self._add(item, bit, i)

    def _add(self, item: Item, bit: int, i: int) -> None:
        if not self.state[item] >> bit & 1:
            self.state[item] |= 1 << bit
            self.cover[item, bit] = i


class _Done(_Walk):
    """Keeps what is done at a fence done there, where only a later operation of the queue tells.

    Nothing in the block depends on it (that is `_Walk`'s part), but what stands behind the fence could.
    """

    def __init__(
        self,
        facts: list[ScoreboardEffects],
        block: Block,
        state: State,
        found: Protection,
        fence: list[bool],
        home: list[Block],
    ) -> None:
        super().__init__(facts, block, state, found, any_cover=True)
        self.fence, self.home = fence, home

    def run(self) -> State:
        begin = self.block.start
        for i in range(self.block.start, self.block.end):
            if self.fence[i]:
                self._unexplained(begin, i)
                begin = i + 1
            self._step(i, self.facts[i])
        return self.state

    def _unexplained(self, begin: int, fence: int) -> None:
        """What nothing here says is done at a fence may be so by rules that the validator alone knows: it
        stays before all setters between."""
        waits = self.facts[fence].waits
        for (a, result), mask in self.state.items():
            fact = self.facts[a]
            own = fact.write_bit if result else fact.write_bit | fact.read_bit
            if a >= begin and not own and not mask & waits:
                for c in range(a + 1, fence):
                    if self.facts[c].write_bit or self.facts[c].read_bit:
                        self._edge(a, c)

    def _conflicts(self, i: int, fact: ScoreboardEffects, found: Protection) -> None:
        """`_Walk` has reported them."""

    def _clear(self, item: Item, usable: int, waiter: int) -> None:
        a, result = item
        fact = self.facts[a]
        own = fact.write_bit if result else fact.write_bit | fact.read_bit
        if usable & own or self._waited_before_fence(own, waiter):
            return
        cover = self._cover_at_home(a, result, usable)
        if cover is None:
            cover = min((v for b in range(6) if (v := self.cover.get((item, b))) is not None), default=-1)
        elif a < cover and self.found is not None:
            self.found.edges.add((a, cover))
        if cover >= self.block.start:
            self._edge(cover, waiter)

    def _waited_before_fence(self, own: int, waiter: int) -> bool:
        for i in range(waiter, self.block.end):
            if self.facts[i].waits & own:
                return True
            if self.fence[i]:
                return False
        return False

    def _cover_at_home(self, a: int, result: bool, usable: int) -> int | None:
        """The first operation behind `a` in its own block that covers it with a usable scoreboard."""
        fact = self.facts[a]
        for i in range(a + 1, self.home[a].end):
            other = self.facts[i]
            sets = other.write_bit if result else other.write_bit | other.read_bit
            if sets & usable and covers(other.unit, fact.unit, result):
                return i
        return None
