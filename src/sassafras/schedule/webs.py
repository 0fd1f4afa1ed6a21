"""Values of a kernel: what lives and dies within one basic block under one register's name.

A *web* is a value's definitions and their readers. It may take another name where every operand that names it
names one register alone, and where nothing but scoreboards and distances tells when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sassafras.sass import Function, Instruction, Queue
from sassafras.sass.latency import slots
from sassafras.sass.opcodes import KEEPS_TO_ITS_LANES
from sassafras.sass.registers import PRED, UGPR

from . import flow
from .graph import is_fence


class KernelCopy(NamedTuple):
    """A kernel in other words, for the validator to prove: the cubin, and how many things were changed."""

    cubin: bytes
    changed: int


@dataclass(slots=True)
class Web:
    """A value: positions of its definitions and of its readers, in one block; `name` is its register."""

    register: int
    writes: list[int]
    reads: list[int]
    movable: bool = True
    name: int = -1

    @property
    def first(self) -> int:
        """Where it begins."""
        return min(self.writes)

    @property
    def last(self) -> int:
        """Where it is needed last."""
        return max(*self.writes, *self.reads, -1)


def _single(i: Instruction) -> dict[int, bool]:
    """Registers that an instruction names, and whether each stands alone in its operands."""
    found: dict[int, bool] = {}
    uses = slots(i)
    wide = {u.slot.partition("+")[0] for u in uses if "+" in u.slot}
    for u in uses:
        alone = u.slot != "?" and u.slot not in wide and "+" not in u.slot
        found[u.register] = found.get(u.register, True) and alone
    for r in i.reads | i.writes:
        found.setdefault(r, False)
    return found


def values(function: Function) -> list[Web]:
    """Every value that lives within one block, in order of its first definition."""
    code = function.instructions
    found: list[Web] = []
    fixed = fixed_registers(function)
    blocks = flow.blocks(function)
    entry = live(function, blocks)
    for b in blocks:
        out = set().union(*(entry[s] for s in b.successors)) if b.successors else set()
        current: dict[int, Web] = {}
        local: list[Web] = []
        for n in range(b.start, b.end):
            i = code[n]
            single = _single(i)
            bank = i.base in ("P2R", "R2P")
            still = is_fence(i) or i.op.queue in (Queue.WGMMA, Queue.TMA) or bool(i.unexplained)
            for r in i.reads:
                if r not in current:
                    current[r] = Web(r, [], [], movable=False)
                web = current[r]
                web.reads.append(n)
                if still or (bank and r >= PRED) or not single.get(r, False):
                    web.movable = False
            for r in i.writes:
                guarded = i.guard not in ("", "PT")
                if guarded and r in current:
                    current[r].writes.append(n)  # the old value may live on
                elif guarded:
                    current[r] = Web(r, [n], [], movable=False)
                else:
                    current[r] = Web(r, [n], [])
                    local.append(current[r])
                if still or bank or not single.get(r, False):
                    current[r].movable = False
        for r, web in current.items():
            if r in out:
                web.movable = False
        found += [w for w in local if w.movable and w.register not in fixed and w.reads]
    return sorted(found, key=lambda w: w.first)


def fixed_registers(function: Function) -> set[int]:
    """Registers whose uses no scoreboard or distance tells, or that lanes elsewhere in the code may read."""
    out: set[int] = set()
    for i in function.instructions:
        if i.base not in KEEPS_TO_ITS_LANES:
            out |= {r for r in i.reads | i.writes if r < UGPR}
        if (
            i.op.queue in (Queue.WGMMA, Queue.TMA)
            or i.unexplained
            or (is_fence(i) and i.base not in ("BRA", "EXIT", "NOP"))
        ):
            out |= i.reads | i.writes
    return out


def live(
    function: Function, blocks: tuple[flow.Block, ...], lists: list[list[int]] | None = None
) -> list[set[int]]:
    """Registers that are live on entry of each block (`lists`: what stands in each, if not the original)."""
    code = function.instructions
    rows = [list(range(b.start, b.end)) for b in blocks] if lists is None else lists
    entry: list[set[int]] = [set() for _ in blocks]
    again = True
    while again:
        again = False
        for b in reversed(blocks):
            state = set().union(*(entry[s] for s in b.successors)) if b.successors else set()
            for n in reversed(rows[b.index]):
                i = code[n]
                if i.guard in ("", "PT"):
                    state -= i.writes
                state |= i.reads
            if state != entry[b.index]:
                entry[b.index] = state
                again = True
    return entry
