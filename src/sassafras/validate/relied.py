"""Scoreboards as compiled code uses them: what an audit takes for granted and the validator does not.

The validator approves schedules that no compiler made, so `classes` says of few opcodes that they keep the
order of their queue. An audit asks whether code departs from what compilers emit: here are further orders
that ptxas relies on, and pairs that no lane runs both of. Nothing here is known to the validator.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sassafras.sass.latency import LatencyTable
from sassafras.sass.opcodes import base

from . import classes
from .analysis import Analysis
from .operands import UR, P
from .pending_jit import AT_FENCE, Tracked
from .report import Violation
from .validator import Validator

#: stores and reductions that `classes.READS_COVERED_BY` says nothing of, and the queue that they are in there
_STORES, _QUEUE = frozenset(["ST", "RED", "REDG"]), ("STG", "STL", "STS", "STSM", "LDS", "SHFL")
#: as `classes.READS_COVERED_BY`: operands of the first have been read when a scoreboard of one of the others
#: says so. ptxas 12.3, 13.0 and 13.5 rely on it, in FlashAttention 3, FlashMLA and CUTLASS and in 488 kernels
#: from 206 generated sources, where it leaves no read of a store unexplained. Not every pair was seen alone:
#: here one queue is taken to keep its order, which the validator never does
READS_COVERED_BY: dict[str, frozenset[str]] = {
    **dict.fromkeys(_QUEUE, _STORES), **dict.fromkeys(_STORES, _STORES.union(_QUEUE) - {"STSM"}),
    "STS": _STORES | {"STAS"}, "SYNCS": frozenset(["SYNCS"]), "ATOM": frozenset(["ATOM"]),
    "LD": frozenset(["LD", "LDG"]), "LDG": frozenset(["LD"]),
}  # fmt: skip
#: as `classes.QUEUED_WRITERS`: the later one cannot overwrite what the earlier one has not read
QUEUED_WRITERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_STORES, frozenset(["LDS", "SHFL"])), "LD": frozenset(["SHFL"]), "LDG": frozenset(["LD"]),
    "ATOM": frozenset(["ATOM"]),
}  # fmt: skip
#: findings looked at, and told
_ROWS, _MOST = 1 << 14, 16


def pending(validator: Validator) -> Iterator[Violation]:
    """Results and operands of variable latency that may be pending where they are touched, in the original.

    Args:
        validator: of a supported kernel.

    Yields:
        The first 16, as the validator tells them.
    """
    a = validator.analysis
    order = np.arange(a.count, dtype=np.int32)
    out = np.empty((_ROWS, 2), dtype=np.int32)
    count = a.scoreboards.pending(order, a.original_high, *a.original_times, out, facts=_facts(a))
    rows = [(n, code) for n, code in out[:count].tolist() if not (_queued(a, n, code) or _apart(a, n, code))]
    yield from validator.told(rows[:_MOST], order)


def _facts(a: Analysis) -> Tracked:
    """What the validator knows, and the table above."""
    extra = frozenset().union(*READS_COVERED_BY.values()) - frozenset(classes.COVERING)
    names = sorted(extra | frozenset(classes.COVERING))
    number = {name: n for n, name in enumerate(names)}

    def mask(*tables: frozenset[str]) -> int:
        return sum(1 << number[name] for name in frozenset().union(*tables))

    none: frozenset[str] = frozenset()
    kinds = [a.kinds[n] for n in a.scoreboards.tracked]
    results = [classes.RESULTS_COVERED_BY.get(k.queue, none) if k.variable else none for k in kinds]
    reads = [classes.READS_COVERED_BY.get(k.queue, none) if k.variable else none for k in kinds]
    more = [READS_COVERED_BY.get(k.queue, none) for k in kinds]
    return a.scoreboards.facts._replace(
        covers=np.array(
            [number.get(k.queue, -1) if k.variable or k.queue in extra else -1 for k in kinds], dtype=np.int8
        ),
        results_by=np.array([mask(known) for known in results], dtype=np.uint64),
        reads_by=np.array([mask(*both) for both in zip(reads, more, strict=True)], dtype=np.uint64),
    )


def _queued(a: Analysis, second: int, code: int) -> bool:
    """Whether operands of the first are overwritten by what queues behind it."""
    if not 0 <= code < AT_FENCE or not code & 1:
        return False
    first = int(a.scoreboards.tracked[code >> 1])
    if any(P <= register < UR for register in a.effects[first].writes):
        return False  # the predicate of ATOM is a result
    queued = QUEUED_WRITERS.get(a.kinds[first].queue, ())
    return a.variable[second] and a.kinds[second].queue in queued


def _apart(a: Analysis, second: int, code: int) -> bool:
    """Whether no lane runs both: under one predicate, once negated, that nothing writes on any path from one
    to the other on which the first may be at work."""
    if not 0 <= code < AT_FENCE:
        return False
    first = int(a.scoreboards.tracked[code >> 1])
    e, f, control = a.effects[first], a.effects[second], a.code[first].control
    if e.guard is None or e.guard != f.guard or e.negated == f.negated:
        return False
    if a.code[second].base not in classes.KEEPS_TO_ITS_LANES:
        return False
    barriers = (control.write_barrier, control.read_barrier if code & 1 else None)
    done = sum(1 << scoreboard for scoreboard in barriers if scoreboard is not None)
    block = int(a.block_of[first])
    work, seen = [(first + 1, block, e.guard in e.writes)], set()
    while work:
        start, block, written = work.pop()
        for n in range(start, a.blocks[block].end):
            if a.code[n].control.wait_mask & done:
                break
            if n == second and written:
                return False
            written = written or e.guard in a.effects[n].writes
        else:
            for m in a.blocks[block].follow:
                if (m, written) not in seen:
                    seen.add((m, written))
                    work.append((a.blocks[m].start, m, written))
    return True


def floor(table: LatencyTable, kind: str, first: str, slot: str, second: str, other: str) -> int | None:
    """`LatencyTable.floor`, less where compiled code is closer than the class that the pair is put in.

    IMAD.HI takes its addend as late as IMAD.WIDE, whose addend has a class of its own. HSETP2, of which few
    rows were mined, has read its operands one cycle later in eight kernels of xformers; two is HFMA2's rate.
    """
    least = table.floor(kind, first, slot, second, other)
    if least is None:
        return None
    if kind == "raw" and second.startswith("IMAD.HI") and other in ("3", "3+1"):
        late = table.floor(kind, first, slot, "IMAD.WIDE", other)
        return least if late is None else min(least, late)
    return 1 if kind == "war" and base(first) == "HSETP2" else least
