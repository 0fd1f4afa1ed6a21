"""The constraints of one function as flat arrays, the form that the compiled kernels read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from sassafras.sass import Function, Instruction, Memory, Queue
from sassafras.sass.latency.spacing import classes
from sassafras.sass.opcodes import BRANCHES

from .distances import HORIZON, Distances
from .graph import Graph, issue_cycles
from .pipes import busy, holds, uses

FAR = 1 << 20


class Tables(NamedTuple):
    """Arrays by instruction (original index) unless said otherwise; int32 but where noted.

    Attributes:
        order_at, order_before: CSR of instructions that must stand before each one.
        after_at, after: CSR of those that must stand behind it.
        near_at, near, near_cycles: CSR of (earlier instruction, cycles) where more than one is needed.
        later_at, later: CSR of the instructions that name this one in `near`.
        head, tail: cycles needed from the block's start, to the block's end.
        own: smallest stall count.
        busy, uses: bit masks of pipes kept for more than a cycle, and needed (`schedule.pipes`; 0 where
            control codes are kept); holds: for how many cycles.
        frozen: 1 where the stall count must not be raised (control transfers).
        sets, waits: bit masks of scoreboards.
        kind: row of `spacing`, or -1.
        movable, memory: 1 where it may move; where it is a memory operation.
        block_of: by position (blocks and fences do not move): block number.
        low, high: by position: the range between fences that it belongs to.
        start, end, length, least_length: by block: positions; cycles originally; cycles to keep.
        spacing: (kinds, kinds) cycles between the nearest of two kinds, 0 for none.
        before_at, before: by kind: CSR of the kinds that have a rule towards it.
        entry_gap, exit_gap: (blocks, kinds) cycles since the last of a kind on entry (FAR: none
            recent), cycles to keep between the last of a kind and the block's end.
    """

    order_at: np.ndarray
    order_before: np.ndarray
    after_at: np.ndarray
    after: np.ndarray
    near_at: np.ndarray
    near: np.ndarray
    near_cycles: np.ndarray
    later_at: np.ndarray
    later: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    own: np.ndarray
    busy: np.ndarray
    uses: np.ndarray
    holds: np.ndarray
    frozen: np.ndarray
    sets: np.ndarray
    waits: np.ndarray
    kind: np.ndarray
    movable: np.ndarray
    memory: np.ndarray
    block_of: np.ndarray
    low: np.ndarray
    high: np.ndarray
    start: np.ndarray
    end: np.ndarray
    length: np.ndarray
    least_length: np.ndarray
    spacing: np.ndarray
    before_at: np.ndarray
    before: np.ndarray
    entry_gap: np.ndarray
    exit_gap: np.ndarray


def touches_memory(i: Instruction) -> bool:
    """Loads and stores of global, local and shared memory: what SIP and CuAsmRL move."""
    return i.op.memory not in (Memory.NONE, Memory.CONSTANT) and i.op.queue not in (
        Queue.CONTROL,
        Queue.WGMMA,
    )


def build(function: Function, graph: Graph, distances: Distances, free: bool = False) -> Tables:
    """Flatten a function's constraints.

    Args:
        function, graph, distances: the function and what is known of it.
        free: scoreboards are assigned for each schedule: nothing is known of them here.
    """
    code, blocks = function.instructions, graph.blocks
    count = len(code)
    block_of = _i32([0] * count)
    low, high = _i32([0] * count), _i32([0] * count)
    length = []
    for b in blocks:
        block_of[b.start : b.end] = b.index
        length.append(sum(issue_cycles(i) for i in code[b.start : b.end]))
        begin = b.start
        for position in range(b.start, b.end + 1):
            if position == b.end or graph.fence[position]:
                low[begin:position], high[begin:position] = begin, position
                if position < b.end:
                    low[position], high[position] = position, position + 1
                begin = position + 1
    order = [(a, b) for a, b in graph.order if low[a] == low[b] and block_of[a] == block_of[b]]
    near = [pair for pair, cycles in graph.least.items() if cycles > 1]
    before_at, before = _csr(count, ((b, a) for a, b in order))
    after_at, after = _csr(count, order)
    near_at, near_from = _csr(count, ((b, a) for a, b in near))
    near_cycles = [
        graph.least[int(near_from[k]), b] for b in range(count) for k in range(near_at[b], near_at[b + 1])
    ]
    later_at, later = _csr(count, near)
    kind, spacing = _kinds(function, graph, distances)
    rule_at, rules = _csr(len(spacing), ((int(c), int(d)) for d, c in np.argwhere(spacing)))
    entry_gap, exit_gap = _gaps(function, graph, kind, spacing, length)
    own = [distances.own(n) if not graph.pinned[n] else i.control.stall for n, i in enumerate(code)]
    return Tables(
        order_at=before_at,
        order_before=before,
        after_at=after_at,
        after=after,
        near_at=near_at,
        near=near_from,
        near_cycles=_i32(near_cycles),
        later_at=later_at,
        later=later,
        head=_i32(graph.head.get(n, 0) for n in range(count)),
        tail=_i32(graph.tail.get(n, 0) for n in range(count)),
        own=_i32(own),
        busy=_i32(busy(i) if free else 0 for i in code),
        uses=_i32(uses(i) if free else 0 for i in code),
        holds=_i32(holds(i) for i in code),
        frozen=_i32(i.base in BRANCHES or i.control.stall == 0 for i in code),
        sets=_i32(0 if free else _sets(i) for i in code),
        waits=_i32(0 if free else i.control.wait_mask for i in code),
        kind=kind,
        movable=_i32(not p for p in graph.pinned),
        memory=_i32(touches_memory(i) for i in code),
        block_of=block_of,
        low=low,
        high=high,
        start=_i32(b.start for b in blocks),
        end=_i32(b.end for b in blocks),
        length=_i32(length),
        least_length=_i32(min(n, HORIZON) for n in length),
        spacing=spacing,
        before_at=rule_at,
        before=rules,
        entry_gap=entry_gap,
        exit_gap=exit_gap,
    )


def _sets(i: Instruction) -> int:
    c = i.control
    return sum(1 << n for n in {c.write_barrier, c.read_barrier} if n is not None)


def _i32(values: Iterable[Any]) -> np.ndarray:
    return np.array([int(v) for v in values], dtype=np.int32)


def _csr(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.array(sorted(pairs), dtype=np.int32).reshape(-1, 2)
    return np.searchsorted(rows[:, 0], np.arange(count + 1)).astype(np.int32), rows[:, 1].copy()


def _kinds(function: Function, graph: Graph, distances: Distances) -> tuple[np.ndarray, np.ndarray]:
    """Give instructions of the same spacing classes a row of the spacing matrix.

    Rules of the table hold, 6 cycles from BAR to a fence, 3 from a product to its wait, 4 from a copy to its
    group's end; where the original undercuts one, or the table has no pair of memory operations, its smallest
    gap between the kinds holds.
    """
    code = function.instructions
    names: list[tuple[str, ...]] = []
    for n, i in enumerate(code):
        never = i.guard in ("!PT", "!UPT")
        own = () if never else (distances.keys[n], *classes(i.op))
        names.append((*own, "@full") if graph.fence[n] else own)
    signatures = sorted({s for s in names if s})
    number = {s: k for k, s in enumerate(signatures)}
    matrix = np.zeros((len(signatures), len(signatures)), dtype=np.int32)
    for first in signatures:
        for second in signatures:
            known = [distances.table.spacing(a, b) for a in first for b in second]
            found = [k.cycles for k in known if k is not None]
            cycles = 6 if first[0].startswith("BAR") and "@full" in second else 0
            if "@wgmma" in first and second[0].startswith("WARPGROUP.DEPBAR"):
                cycles = 3
            if first[0].startswith("LDGSTS") and second[0] == "LDGDEPBAR":
                cycles = 4
            if "@memory" in first and "@memory" in second and not found:
                cycles = 4
            matrix[number[first], number[second]] = max(cycles, *found, 0)
    seen = np.full_like(matrix, FAR)
    for b in graph.blocks:
        last: dict[int, int] = {}
        now = 0
        for n in range(b.start, b.end):
            kind = number.get(names[n], -1)
            if kind >= 0:
                for other, time in last.items():
                    seen[other, kind] = min(seen[other, kind], now - time)
                last[kind] = now
            now += issue_cycles(code[n])
    matrix = np.minimum(matrix, seen)
    matrix[matrix <= 1] = 0
    return _merge(matrix, [number.get(s, -1) for s in names])


def _merge(matrix: np.ndarray, kinds: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Give kinds that the matrix does not tell apart one row; those without rules none."""
    while True:
        alike: dict[bytes, int] = {}
        group: list[int] = []
        keep: list[int] = []
        for k in range(len(matrix)):
            if not matrix[k].any() and not matrix[:, k].any():
                group.append(-1)
                continue
            # within a merged kind the rule is the diagonal's, so it must be the same between its members
            print_of = matrix[k].tobytes() + matrix[:, k].tobytes()
            if print_of not in alike:
                alike[print_of] = len(keep)
                keep.append(k)
            group.append(alike[print_of])
        kinds = [group[k] if k >= 0 else -1 for k in kinds]
        if len(keep) == len(matrix):
            return _i32(kinds), matrix
        matrix = np.ascontiguousarray(matrix[np.ix_(keep, keep)], dtype=np.int32).reshape(len(keep), -1)


def _gaps(
    function: Function, graph: Graph, kind: np.ndarray, spacing: np.ndarray, length: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """How close to each kind a block begins, and what its own end must leave."""
    kinds, blocks = len(spacing), graph.blocks
    entry = np.full((len(blocks), kinds), FAR, dtype=np.int32)
    leave = np.zeros((len(blocks), kinds), dtype=np.int32)
    widest = spacing.max(axis=1, initial=0) if kinds else np.zeros(0, dtype=np.int32)
    for b in blocks:
        for a, elapsed in graph.events[b.index].items():
            if kind[a] >= 0:
                entry[b.index, kind[a]] = min(entry[b.index, kind[a]], elapsed)
        now, last = 0, dict[int, int]()
        for n in range(b.start, b.end):
            if kind[n] >= 0:
                if int(kind[n]) not in last:
                    # what the original does is enough
                    np.maximum(entry[b.index], spacing[:, kind[n]] - now, out=entry[b.index])
                last[int(kind[n])] = now
            now += issue_cycles(function.instructions[n])
        for k, time in last.items():
            leave[b.index, k] = min(length[b.index] - time, int(widest[k]))
        for k in range(kinds):
            if k not in last:
                leave[b.index, k] = min(length[b.index] + int(entry[b.index, k]), int(widest[k]))
    return entry, leave
