"""Scoreboards: waits dropped, barriers dropped or moved to another one, setters moved, order in queues.

Each uses a producer whose only cover is its own scoreboard: in its block, no other instruction between it and
the one that needs it sets any scoreboard, and exactly one of them waits for it. Where the in-order queue of
stores, shared memory and shuffles is the only cover, the order in it is broken.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sassafras.sass.control import NO_BARRIER
from sassafras.sass.registers import BREG, PRED

from .subject import READ, STALL, WAIT, WRITE, Mutant, Quota, Subject, shuffled

#: ptxas never lets these overwrite an operand without a wait, though some of them share a queue
#: (docs/experiments/scoreboards.md)
_NEVER_QUEUED = {
    "STG": ("LDL", "LDG", "LDC", "S2R"),
    "STL": ("LDL", "LDG", "LDC"),
    "STS": ("LDL", "LDG", "LDC"),
    "LDGSTS": ("LDS", "LDSM", "LDL", "LDG"),
}
#: what queues behind one another where ptxas leaves no wait: (earlier, later)
_QUEUE = ("LDS", "LDSM", "SHFL", "STG", "STL", "STS", "STSM")
#: not in order with these, though one would think so
ELSEWHERE = {"LDG": ("LDS", "LDSM"), "S2R": ("S2UR",)}


def scoreboards(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Mutants of this kind, at most `most` a class."""
    quota = Quota(most)
    for b in shuffled(rng, range(len(s.blocks))):
        start, end = s.blocks[b]
        for i in range(start, end):
            yield from _one(s, rng, quota, i, end)
            yield from _completion(s, quota, i, end)
            yield from _overtaken(s, quota, i, end)
            yield from _other_queue(s, quota, i, end)


def _completion(s: Subject, quota: Quota, i: int, end: int) -> Iterator[Mutant]:
    """A fence sets a scoreboard, and the next access to memory waits for it: ordering, no register."""
    kind = "completion of a fence not waited for"
    c = s.code[i].control
    field = WRITE if c.write_barrier is not None else READ
    barrier = c.write_barrier if c.write_barrier is not None else c.read_barrier
    if s.code[i].base not in ("FENCE", "MEMBAR") or barrier is None:
        return
    ahead = (n for n in range(i + 1, end) if s.touches(n) or s.code[n].base in ("BAR", "SYNCS", "ERRBAR"))
    j = next(ahead, -1)
    waits = _waits(s, i, j, barrier) if j > 0 else []
    if len(waits) == 1 and not any(_sets(s, n) for n in range(i + 1, j)) and quota.take(kind):
        note = f"{s.code[j].text}  behind  {s.code[i].text}"
        yield Mutant(kind, note, s.recoded(waits[0], WAIT + barrier, 1, 0))
        yield Mutant(kind, note, s.recoded(i, field, 3, NO_BARRIER))


def _one(s: Subject, rng: np.random.Generator, quota: Quota, i: int, end: int) -> Iterator[Mutant]:
    c = s.code[i].control
    if s.code[i].guard in ("!PT", "!UPT") or s.code[i].base == "LDGDEPBAR":
        return
    if c.write_barrier is not None:
        # what BMOV clears is in order with the next BSSY: ptxas lets most of those pairs go without a wait
        results = frozenset(r for r in s.code[i].writes if s.code[i].base != "BMOV" or r < BREG)
        needed = _first(s, i, end, results, True)
        if needed >= 0 and not s.code[needed].reads & results and s.code[i].base == "LDS":
            # the unused part of a wide load is overwritten: ptxas leaves that to the queue
            needed = -1 if s.code[needed].base in ("LDS", "SHFL") else needed
        yield from _covered(s, rng, quota, i, needed, c.write_barrier, WRITE, "result")
        yield from _behind_its_waiter(s, quota, i, end)
        yield from _too_soon(s, quota, i, c.write_barrier)
    elif c.read_barrier is not None:
        late = frozenset(r for r in s.code[i].reads if r < PRED)
        needed = _first(s, i, end, late, False)
        # where a load of the same queue overwrites the operand, ptxas often leaves the wait out; never
        # where a refill does (LDL behind STL)
        if s.fixed(needed):
            yield from _covered(s, rng, quota, i, needed, c.read_barrier, READ, "operand")
        elif (s.code[i].base, s.code[needed].base) == ("STL", "LDL"):
            yield from _covered(s, rng, quota, i, needed, c.read_barrier, READ, "a spill's operand")
        elif s.code[needed].base in _NEVER_QUEUED.get(s.code[i].base, ()):
            yield from _covered(s, rng, quota, i, needed, c.read_barrier, READ, "a store's operand")
        yield from _too_soon(s, quota, i, c.read_barrier)
    elif s.code[i].op.variable and s.code[i].writes:
        yield from _queue(s, quota, i, end)


def _first(s: Subject, i: int, end: int, registers: frozenset[int], result: bool) -> int:
    """The first instruction that reads or overwrites the result, or overwrites the operand; -1 for none."""
    for j in range(i + 1, end):
        touched = s.code[j].writes | (s.code[j].reads if result else frozenset())
        if touched & registers and not s.exclusive(i, j):
            return j
    return -1


def _waits(s: Subject, i: int, j: int, barrier: int) -> list[int]:
    return [n for n in range(i + 1, j + 1) if s.code[n].control.wait_mask >> barrier & 1]


def _sets(s: Subject, n: int) -> bool:
    c = s.code[n].control
    return c.write_barrier is not None or c.read_barrier is not None


def _covered(
    s: Subject, rng: np.random.Generator, quota: Quota, i: int, j: int, barrier: int, field: int, what: str
) -> Iterator[Mutant]:
    if j < 0 or any(_sets(s, n) for n in range(i + 1, j)):
        return
    # a load's address may be covered by its own result's barrier too: then nothing is left out
    if field == READ and s.code[i].control.write_barrier is not None:
        return
    waits = _waits(s, i, j, barrier)
    if len(waits) != 1:
        return
    note = f"{s.code[j].text}  needs  {s.code[i].text}"
    if quota.take(kind := f"wait for {what} dropped"):
        yield Mutant(kind, note, s.recoded(waits[0], WAIT + barrier, 1, 0))
    if quota.take(kind := f"barrier of {what} dropped"):
        yield Mutant(kind, note, s.recoded(i, field, 3, NO_BARRIER))
    others = [b for b in range(6) if not _waits(s, i, j, b)]
    if others and quota.take(kind := f"barrier of {what} retargeted"):
        yield Mutant(kind, note, s.recoded(i, field, 3, int(rng.choice(others))))


def _behind_its_waiter(s: Subject, quota: Quota, i: int, end: int) -> Iterator[Mutant]:
    """Trap 3: w waits for i's scoreboard, does not itself need i; c behind it needs i and does not wait."""
    kind = "setter moved behind its waiter"
    barrier = s.code[i].control.write_barrier
    if barrier is None or s.still[i] or not quota.free(kind):
        return
    c = _first(s, i, end, s.code[i].writes, True)
    waits = _waits(s, i, c, barrier) if c > 0 else []
    if len(waits) != 1 or waits[0] == c or any(_sets(s, n) for n in range(i + 1, c)):
        return
    if any(s.still[n] for n in range(i, waits[0] + 1)):
        return
    quota.take(kind)
    note = f"{s.code[i].text}  behind  {s.code[waits[0]].text}"
    yield Mutant(kind, note, s.emit(s.moved(i, waits[0]), s.high))


def _too_soon(s: Subject, quota: Quota, i: int, barrier: int) -> Iterator[Mutant]:
    """The next instruction waits for what this one sets: never less than two cycles."""
    kind = "waiter one cycle behind its setter"
    if i + 1 < s.count and s.code[i + 1].control.wait_mask >> barrier & 1 and quota.take(kind):
        yield Mutant(kind, s.code[i].text, s.recoded(i, STALL, 4, 1))


def _overtaken(s: Subject, quota: Quota, i: int, end: int) -> Iterator[Mutant]:
    """j overwrites what i reads, or what i loads and nobody uses, and the queue alone keeps it from coming
    too early. With j above i, i reads j's result, or destroys it before it is used."""
    if s.still[i] or s.code[i].base not in _QUEUE:
        return
    for what, registers in (("operand", s.code[i].reads), ("result", s.code[i].writes)):
        kind = f"what overwrites a queued {what} moved above it"
        late = frozenset(r for r in registers if r < PRED)
        j = _first(s, i, end, late, what == "result")
        if j < 0 or not quota.free(kind) or s.code[j].base not in _QUEUE:
            continue
        between = range(i + 1, j)
        if _waited(s, i, j) or s.code[j].reads & s.code[i].writes or (s.guard(i) and s.guard(j)):
            continue
        if any(s.still[n] for n in range(i, j + 1)) or any(any(s.conflicts(n, j)) for n in between):
            continue
        if what == "result" and not s.read_later(j, late & s.code[j].writes):
            continue
        quota.take(kind)
        order, note = s.moved(j, i), f"{s.code[j].text}  above  {s.code[i].text}"
        yield Mutant(kind, note, s.emit(order, s.generous(s.stretch(i)[0], j + 1)))
        yield Mutant(kind, note, s.emit(order, s.high))


def _waited(s: Subject, i: int, j: int) -> bool:
    """Up to j somebody waits for a scoreboard that i, or somebody behind it, sets."""
    raised = 0
    for n in range(i, j + 1):
        c = s.code[n].control
        if c.wait_mask & raised:
            return True
        raised |= sum(1 << b for b in (c.write_barrier, c.read_barrier) if b is not None)
    return False


def _other_queue(s: Subject, quota: Quota, i: int, end: int) -> Iterator[Mutant]:
    """A later operation that goes elsewhere is waited for, its own scoreboard no longer: not enough.

    On an H200 that was wrong for LDG in front of LDSM; S2R in front of S2UR ptxas never leaves to chance.
    """
    base = s.code[i].base
    if base not in ELSEWHERE or s.code[i].guard in ("!PT", "!UPT"):
        return
    c, result = s.code[i].control, base == "S2R"
    barrier = c.write_barrier if result else c.read_barrier
    kind = f"{base} left to an operation of another queue"
    if barrier is None or not quota.free(kind):
        return
    j = _first(
        s, i, end, s.code[i].writes if result else frozenset(r for r in s.code[i].reads if r < PRED), result
    )
    waits = _waits(s, i, j, barrier) if j > 0 else []
    if len(waits) != 1 or not (result or s.fixed(j)):
        return
    own = {c.write_barrier, c.read_barrier}
    others: set[int | None] = set()
    for n in range(i + 1, j):
        sets = {s.code[n].control.write_barrier, s.code[n].control.read_barrier}
        if s.code[n].base == base:
            own |= sets
        elif s.code[n].base in ELSEWHERE[base] and any(
            w != barrier and w in sets and _waits(s, n, j, w) for w in range(6)
        ):
            others |= sets
    own -= {None, barrier}
    if not others - {None, barrier} or any(_waits(s, i, j, w) for w in own if w is not None):
        return
    quota.take(kind)
    note = f"{s.code[j].text}  needs  {s.code[i].text}"
    yield Mutant(kind, note, s.recoded(waits[0], WAIT + barrier, 1, 0))


def _queue(s: Subject, quota: Quota, i: int, end: int) -> Iterator[Mutant]:
    """Trap 1: i has no scoreboard and leans on a later k of its opcode; moved behind k nothing covers it."""
    kind = "moved behind the operation whose scoreboard covers it"
    c = _first(s, i, end, s.code[i].writes, True)
    if c < 0 or s.still[i] or not quota.free(kind):
        return
    setters = [n for n in range(i + 1, c) if _sets(s, n)]
    if len(setters) != 1 or s.code[setters[0]].base != s.code[i].base:
        return
    k = setters[0]
    if any(s.still[n] or not s.independent(i, n) for n in range(i + 1, k)) or any(s.conflicts(i, k)):
        return
    quota.take(kind)
    yield Mutant(kind, f"{s.code[i].text}  behind  {s.code[k].text}", s.emit(s.moved(i, k), s.high))
