"""Copies with an instruction moved over a branch that are another program: `Validator.via` must refuse them.

One instruction goes to the other side of the branch between a block and the next; why somebody notices stands
beside each class, by the oracle's reading. Control codes are generous, and branches are aimed anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sassafras.sass import Instruction
from sassafras.sass.registers import UGPR
from sassafras.schedule import blocks as moving
from sassafras.schedule import flow
from sassafras.schedule.webs import live

from .subject import Mutant, Quota, Subject, poke

_REACH = 24


def moves(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Mutants of this kind, at most `most` a class; each is a copy to be proved, not a schedule."""
    quota = Quota(most)
    blocks = flow.blocks(s.function)
    rows = [list(range(b.start, b.end)) for b in blocks]
    entry = live(s.function, blocks)
    before: dict[int, list[int]] = {b.index: [] for b in blocks}
    for b in blocks:
        for m in b.successors:
            before[m].append(b.index)
    plans = []
    for b in blocks[1:]:
        head, tail = b.index - 1, b.index
        if tail in blocks[head].successors and s.code[blocks[head].end - 1].opcode in ("BRA", "EXIT"):
            plans += [(head, tail, True, n) for n in rows[tail][:_REACH]]
            plans += [(head, tail, False, n) for n in rows[head][-_REACH:-1]]
    for k in rng.permutation(len(plans)):
        head, tail, up, n = plans[k]
        elsewhere = set().union(*(entry[m] for m in blocks[head].successors if m != tail))
        alone = before[tail] == [head]
        kind = _kind(s, rows, head, tail, up, n, elsewhere, alone)
        if not kind or not quota.take(kind):
            continue
        lists = [list(row) for row in rows]
        lists[tail if up else head].remove(n)
        if up:
            lists[head].insert(len(lists[head]) - 1, n)
        else:
            lists[tail].insert(0, n)
        yield Mutant(kind, s.code[n].text, moving.emit(s.program, s.name, lists))
    yield from _spoilt(s, rng, quota)


def _kind(
    s: Subject,
    rows: list[list[int]],
    head: int,
    tail: int,
    up: bool,
    n: int,
    elsewhere: set[int],
    alone: bool,
) -> str:
    """The one reason why this move is wrong, or ``""``: none, several, or nothing to be sure of."""
    i = s.code[n]
    branch = s.code[rows[head][-1]]
    row = rows[tail][: rows[tail].index(n)] if up else rows[head][rows[head].index(n) + 1 : -1]
    if s.still[n] or any(s.still[m] for m in row) or s.guard(n) or any(r >= UGPR for r in i.reads | i.writes):
        return ""
    where = "above" if up else "below"
    bound = [m for m in row if any(s.conflicts(min(m, n), max(m, n)))]
    predicate = bool(i.writes & branch.reads)
    needed = bool(i.writes & elsewhere)
    if s.touches(n):
        stores = i.op.writes_memory
        if bound or predicate or not alone or any(s.touches(m) for m in row) or i.op.memory == "constant":
            return ""
        # threads that go elsewhere store too, or do not store; or they load what they must not touch
        return f"moves: a {'store' if stores else 'load'} {where} the branch" if stores or up else ""
    if not s.fixed(n) or not i.writes:
        return ""
    reasons = []
    if bound and _matters(s, bound, n):
        reasons.append(f"moves: {where} what it depends on, or what depends on it")
    if predicate and up:
        reasons.append("moves: above the branch whose predicate it writes")
    if needed:
        # the old value is overwritten, or the new one missing, where the branch goes elsewhere
        value = "old" if up else "new"
        reasons.append(f"moves: {where} a branch behind which its result's {value} value is needed elsewhere")
    if up and not alone and _read_behind(s, n, rows[tail]):
        # whoever comes from the other block misses the result
        reasons.append("moves: out of a block that others lead to as well")
    return reasons[0] if len(reasons) == 1 and (alone or not needed) else ""


def _matters(s: Subject, bound: list[int], n: int) -> bool:
    """A value is read from the wrong definition: n reads what one of them writes, or the other way round."""
    return any(s.code[m].writes & s.code[n].reads or s.code[n].writes & s.code[m].reads for m in bound)


def _read_behind(s: Subject, n: int, row: list[int]) -> bool:
    waiting = set(s.code[n].writes)
    for m in row[row.index(n) + 1 :]:
        if waiting & s.code[m].reads:
            return True
        if not s.guard(m):
            waiting -= s.code[m].writes
    return False


def _spoilt(s: Subject, rng: np.random.Generator, quota: Quota) -> Iterator[Mutant]:
    """A copy that is right, and one thing in it that is not."""
    from sassafras.core import SassafrasError
    from sassafras.sass import Program

    try:
        cubin = moving.move(s.program, s.name).cubin
        code = Program.parse(cubin).function(s.name).instructions
    except SassafrasError:  # nothing can move, or nvdisasm cannot follow a branch of the copy
        return
    start = s.function.text_offset
    for i in code:
        kind = "moves: a branch aimed one instruction too far"
        if i.base == "BRA" and i.guard not in ("", "PT") and quota.take(kind):
            # (16 bytes are four units; bits 16-23 of the offset's low byte stand lowest)
            low = i.low & ~(0xFF << 16) | ((i.low >> 16) + 4 & 0xFF) << 16
            yield Mutant(kind, i.text, poke(cubin, start + 16 * i.index, low, i.high))
    for n in rng.permutation(len(code) - 1).tolist():
        kind = "moves: and two dependent neighbours swapped"
        a, b = code[n], code[n + 1]
        if a.writes & b.reads and _free(a) and _free(b) and quota.take(kind):
            swapped = poke(cubin, start + 16 * n, b.low, b.high)
            yield Mutant(kind, f"{a.text}  {b.text}", poke(swapped, start + 16 * n + 16, a.low, a.high))


def _free(i: Instruction) -> bool:
    return i.base in ("FADD", "FMUL", "FFMA", "IMAD", "IADD3", "LOP3", "SHF", "LEA", "MOV") and not i.guard
