"""Distances below minima that the latency table knows: within blocks and over their edges.

The stall counts between a producer and its consumer are lowered until they add up to one cycle less than the
table's minimum for exactly these operands (named by `sassafras.sass.latency.slots`, the table's own reading).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sassafras.sass import ARCHS
from sassafras.sass.latency import LatencyTable, opcode_key, slots

from .subject import STALL, Mutant, Quota, Subject, file_of, put, shuffled
from .swaps import pairs


class _Times:
    def __init__(self, s: Subject, quota: Quota) -> None:
        self.s, self.quota = s, quota
        self.table = LatencyTable.load(ARCHS[s.function.arch].table)

    def closer(self, kind: str, i: int, j: int, run: list[int], need: int) -> Iterator[Mutant]:
        """j comes a cycle too early behind i, if the stalls of `run` can be lowered so far."""
        high = self._lowered(run, need - 1) if need >= 2 else None
        if high is not None and self.quota.take(kind):
            s = self.s
            note = f"{s.code[j].text}  {need - 1} after  {s.code[i].text}, needs {need}"
            yield Mutant(kind, note, s.emit(s.identity(), high))

    def need(self, kind: str, i: int, j: int, register: int) -> tuple[int, str]:
        """(known minimum or 0, slot of the consumer)."""
        a, b = self.s.code[i], self.s.code[j]
        best, where = 0, ""
        for x in slots(a):
            if x.register != register or x.write != (kind != "war"):
                continue
            for y in slots(b):
                if y.register != register or y.write != (kind != "raw"):
                    continue
                found = self.table.distance(kind, opcode_key(a.opcode), x.slot, opcode_key(b.opcode), y.slot)
                if found is not None and found.cycles > best:
                    best, where = found.cycles, y.slot
        return best, where

    def _lowered(self, run: list[int], target: int) -> list[int] | None:
        """Upper words with the stalls of `run` lowered to add up to `target`; None if they cannot."""
        s = self.s
        high = list(s.high)
        stalls = {n: max(1, s.code[n].control.stall) for n in run}
        excess = sum(stalls.values()) - target
        for n in run:
            if excess > 0 and not s.still[n]:
                cut = min(excess, stalls[n] - 1)
                excess -= cut
                high[n] = put(high[n], STALL, 4, stalls[n] - cut)
        return high if excess == 0 else None


def timing(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Mutants of this kind, at most `most` a class."""
    quota = Quota(most)
    times = _Times(s, quota)
    for i, j, register in pairs(s, rng):
        if not s.fixed(i):
            continue
        need, slot = times.need("raw", i, j, register)
        kind = "stall below " + _kind(register, slot)
        if quota.free(kind):
            yield from times.closer(kind, i, j, list(range(i, j)), need)
    yield from _overwrites(s, rng, times)
    yield from _edges(s, rng, times)
    yield from _counted(s, rng, times)
    yield from _frozen(s, rng, quota)


def _kind(register: int, slot: str) -> str:
    if slot == "G":
        return "the guard's latency"
    if "a" in slot or "u" in slot:
        return "an address's latency"
    if "d" in slot:
        return "a descriptor's latency"
    if "+" in slot:
        return "a wide operand's latency"
    return f"a {file_of(register)}'s latency"


def _overwrites(s: Subject, rng: np.random.Generator, times: _Times) -> Iterator[Mutant]:
    """Write after read, of early readers."""
    kind = "stall below war"
    for n in shuffled(rng, range(len(s.blocks))):
        start, end = s.blocks[n]
        read: dict[int, int] = {}
        for j in range(start, end):
            for register in s.code[j].writes:
                i = read.pop(register, -1)
                if 0 <= i != j and s.fixed(i) and not s.exclusive(i, j) and times.quota.free(kind):
                    need, _ = times.need("war", i, j, register)
                    yield from times.closer(kind, i, j, list(range(i, j)), need)
            if s.code[j].guard not in ("!PT", "!UPT"):
                read.update(dict.fromkeys(s.code[j].reads, j))


def _edges(s: Subject, rng: np.random.Generator, times: _Times) -> Iterator[Mutant]:
    """The producer at the end of a block, its reader at the start of one that follows, loops included."""
    for n in shuffled(rng, range(len(s.blocks))):
        start, end = s.blocks[n]
        if s.code[end - 1].base in ("BSYNC", "RET", "CALL", "BRX", "WARPSYNC"):
            continue
        last = {r: i for i in range(start, end) for r in s.code[i].writes if not s.still[i]}
        for m in s.function.blocks[n].successors:
            first, stop = s.blocks[m]
            kind = "latency over a loop's back-edge" if first <= start else "latency over a block's edge"
            known: set[int] = set()
            for j in range(first, min(stop, first + 12)):
                for register in s.code[j].reads - known:
                    i = last.get(register, -1)
                    if i < 0 or not s.fixed(i) or not times.quota.free(kind) or s.exclusive(i, j):
                        continue
                    if n != m or j < i:
                        need, _ = times.need("raw", i, j, register)
                        run = [*range(i, end), *range(first, j)]
                        yield from times.closer(kind, i, j, run, need)
                known |= s.code[j].writes


def _counted(s: Subject, rng: np.random.Generator, times: _Times) -> Iterator[Mutant]:
    """What waits for operations, or closes their group, sooner behind the last one than ptxas ever has it.

    No register shows it: the operation is not counted yet (on an H200 a product's accumulators were then
    overwritten behind their wait).
    """
    behind = {"WARPGROUP.DEPBAR.LE": (("HGMMA", "QGMMA", "IGMMA", "BGMMA"), 3), "LDGDEPBAR": (("LDGSTS",), 4)}
    for n in shuffled(rng, range(len(s.blocks))):
        start, end = s.blocks[n]
        for j in range(start, end):
            bases, need = behind.get(s.code[j].opcode, ((), 0))
            i = max((i for i in range(start, j) if s.code[i].base in bases), default=-1)
            kind = f"{s.code[j].base} too soon for what it counts"
            if i >= 0 and times.quota.free(kind):
                yield from times.closer(kind, i, j, list(range(i, j)), need)


def _frozen(s: Subject, rng: np.random.Generator, quota: Quota) -> Iterator[Mutant]:
    """Stall counts of control instructions lowered below what ptxas ever emits."""
    least = {"EXIT": 5, "BRA": 5, "BSYNC": 5, "RET": 5, "DEPBAR": 4, "MEMBAR": 6}
    for n in shuffled(rng, range(s.count)):
        i = s.code[n]
        kind = "stall of control flow and fences"
        if i.base in least and i.control.stall == least[i.base] and quota.take(kind):
            yield Mutant(kind, i.text, s.recoded(n, STALL, 4, int(rng.integers(1, i.control.stall))))
