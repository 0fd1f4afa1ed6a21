"""A kernel to plant violations in: oracle facts, moves, and control codes with time to spare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sassafras.sass import Fence, Function, Instruction, Program
from sassafras.sass.control import REUSE_MASK
from sassafras.sass.opcodes import IMMOVABLE
from sassafras.sass.registers import BREG, PRED, UGPR, UPRED

STALL, YIELD, WRITE, READ, WAIT = 41, 45, 46, 49, 52


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted violation: its class, what was done, and the cubin."""

    kind: str
    note: str
    cubin: bytes


def put(word: int, shift: int, width: int, value: int) -> int:
    """`word` with the bits from `shift` on replaced."""
    mask = ((1 << width) - 1) << shift
    return (word & ~mask) | (value << shift)


def file_of(register: int) -> str:
    """The register file, as classes name it."""
    if register >= BREG:
        return "barrier register"
    if register >= UPRED:
        return "uniform predicate"
    if register >= UGPR:
        return "uniform register"
    return "predicate" if register >= PRED else "register"


def poke(data: bytes, at: int, low: int, high: int) -> bytes:
    """A cubin with another instruction at a place of the file."""
    return data[:at] + low.to_bytes(8, "little") + high.to_bytes(8, "little") + data[at + 16 :]


class Subject:
    """One kernel of a cubin.

    Args:
        program: the parsed cubin.
        name: the kernel.
    """

    def __init__(self, program: Program, name: str) -> None:
        self.program, self.name = program, name
        self.function: Function = program.function(name)
        self.code: tuple[Instruction, ...] = self.function.instructions
        self.count = len(self.code)
        self.high = [i.high for i in self.code]
        self.blocks = [(b.start, b.end) for b in self.function.blocks]

    @cached_property
    def still(self) -> list[bool]:
        """Nobody may say that these move: control flow, fences, NOPs, and what the oracle cannot explain."""
        return [
            i.op.fence is Fence.FULL
            or i.base in IMMOVABLE
            or i.base == "NOP"
            or bool(i.unexplained)
            or i.guard in ("!PT", "!UPT")
            for i in self.code
        ]

    @cached_property
    def stretches(self) -> list[tuple[int, int]]:
        """Runs of instructions within a block with nothing that stands still."""
        found = []
        for start, end in self.blocks:
            begin = start
            for n in range(start, end + 1):
                if n == end or self.still[n]:
                    if n - begin > 1:
                        found.append((begin, n))
                    begin = n + 1
        return found

    def stretch(self, n: int) -> tuple[int, int]:
        """The one that n stands in."""
        return next((a, b) for a, b in self.stretches if a <= n < b)

    def guard(self, n: int) -> str:
        """The guard, ``""`` for none."""
        return "" if self.code[n].guard in ("", "PT", "UPT") else self.code[n].guard

    def exclusive(self, i: int, j: int) -> bool:
        """The two guards name one predicate with opposite signs (its value may differ: not looked into)."""
        a, b = self.guard(i), self.guard(j)
        return bool(a and b) and a.lstrip("!") == b.lstrip("!") and a != b

    def conflicts(self, i: int, j: int) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """Registers through which j depends on the earlier i: (raw, war, waw)."""
        a, b = self.code[i], self.code[j]
        return a.writes & b.reads, a.reads & b.writes, a.writes & b.writes

    def independent(self, i: int, j: int) -> bool:
        """No register and no memory stands between them, by the oracle."""
        if self.still[i] or self.still[j] or any(self.conflicts(i, j)):
            return False
        return not (self.touches(i) and self.touches(j))

    def touches(self, n: int) -> bool:
        """It accesses memory other than constants."""
        op = self.code[n].op
        return (op.reads_memory or op.writes_memory) and str(op.memory) != "constant"

    def identity(self) -> list[int]:
        """The original order."""
        return list(range(self.count))

    def moved(self, at: int, to: int) -> list[int]:
        """The original order with the instruction at `at` taken out and put in at `to`."""
        order = self.identity()
        order.insert(to, order.pop(at))
        return order

    def generous(self, start: int, end: int) -> list[int]:
        """Upper words by original index with which any order of ``start < n < end`` has legal timing.

        Every movable instruction there stalls 15 cycles; all but the first, which has to stay, wait for all
        scoreboards (a setter may stand shortly before the first). Nothing in the kernel caches an operand.
        """
        high = [word & ~REUSE_MASK for word in self.high]
        for n in range(start, end):
            if not self.still[n]:
                high[n] = put(high[n], STALL, 5, 15)
                if n > start:
                    high[n] = put(high[n], WAIT, 6, 0x3F)
        return high

    def emit(self, order: list[int], high: list[int]) -> bytes:
        """The cubin; `high` by original index."""
        return self.program.emit(
            self.name, np.array(order, dtype=np.int64), np.array([high[n] for n in order], dtype=np.uint64)
        )

    def recoded(self, n: int, shift: int, width: int, value: int) -> bytes:
        """The cubin in the original order with one field of one control code replaced."""
        high = list(self.high)
        high[n] = put(high[n], shift, width, value)
        return self.emit(self.identity(), high)

    def read_later(self, j: int, registers: frozenset[int]) -> bool:
        """Something reads one of them behind j in its block, before anything writes it again."""
        end = next(end for start, end in self.blocks if start <= j < end)
        for n in range(j + 1, end):
            if registers & self.code[n].reads and not self.exclusive(j, n):
                return True
            registers -= self.code[n].writes
        return False

    def fixed(self, n: int) -> bool:
        """Of fixed latency, as the compiler treated it: no scoreboard, and not of an opcode that has one."""
        i = self.code[n]
        return not i.op.variable and i.control.write_barrier is None and i.op.queue != "wgmma"


class Quota:
    """Counts what was planted by class, so that no class swamps the rest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.counts: dict[str, int] = {}

    def free(self, kind: str) -> bool:
        """Whether another one of this class is wanted."""
        return self.counts.get(kind, 0) < self.most

    def take(self, kind: str) -> bool:
        """Whether one may be planted; it is counted."""
        if not self.free(kind):
            return False
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return True


def shuffled(rng: np.random.Generator, items: Iterable[int]) -> Iterator[int]:
    """The items in random order."""
    listed = list(items)
    for n in rng.permutation(len(listed)):
        yield listed[n]
