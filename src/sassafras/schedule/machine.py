"""What a whole block's schedule is expected to take: the constraints of the space, and what waiting costs.

The tables of a space say what a schedule *must* keep. To build a schedule from scratch one also has to know
what it will *wait* for: results that come late, operands that are read late, pipes that are busy, groups of
copies and products that a fence waits for. Both are put together here, for one warp that runs alone, as

* arcs: `second` issues at least so many cycles after `first`, and behind it;
* pipes: an instruction keeps its pipe busy for some cycles;
* spacings: those of `tables`, by kind.

Whatever else the timing model knows (register banks, other warps) is left out, so that the best
schedule here takes no longer than the best one there: `bounds` rests on that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sassafras.sass import Function, Queue

from . import control as codes
from .control import ScoreboardProblem
from .graph import Graph
from .tables import Tables

#: pipes that an instruction can keep busy, and for how many cycles, where no costs say so
_BUSY = {
    Queue.ALU: 2,
    Queue.FMA: 1,
    Queue.HALF: 1,
    Queue.FP64: 2,
    Queue.TENSOR: 6,
    Queue.XU: 8,
    Queue.CONST: 8,
    Queue.SPECIAL: 8,
    Queue.UNIFORM: 2,
}
_PIPES = tuple(_BUSY)
#: kinds of arcs: a distance; the first one's result; its operands are read
FIXED, RESULT, READ = 0, 1, 2


class Costs(NamedTuple):
    """Expected cycles by instruction (original index), int32 but where noted.

    Attributes:
        pipe, busy: the pipe that it goes through (-1: none) and for how long it keeps it.
        queue: 1 where it goes through the memory queue, which takes one every `queue_interval` cycles.
        result, read: from issue to its late result, to its late reads.
        port: float64, cycles for which it keeps the memory port, a part of `result`.
        hold: cycles for which it holds up what follows it (barriers).
        member: 1: an asynchronous copy, 2: an asynchronous product.
        flight: cycles from its issue until a copy has arrived; for which a product keeps the tensor core.
        closes: 1: closes the open group of copies, 2: that of products.
        awaits: 1 or 2: waits for groups of copies or products, for all but the last `but` of them.
        visits: float64, expected executions.
        queue_interval: cycles.
        source: what it was taken from.
    """

    pipe: np.ndarray
    busy: np.ndarray
    queue: np.ndarray
    result: np.ndarray
    read: np.ndarray
    port: np.ndarray
    hold: np.ndarray
    member: np.ndarray
    flight: np.ndarray
    closes: np.ndarray
    awaits: np.ndarray
    but: np.ndarray
    visits: np.ndarray
    queue_interval: int
    source: str


def usual(function: Function, graph: Graph) -> Costs:
    """What to expect where no timing model is at hand: by queue, in orders of magnitude."""
    code = function.instructions
    zero = np.zeros(len(code), dtype=np.int32)
    pipe, busy, result, read, queue = (zero.copy() for _ in range(5))
    weights = codes.block_weights(graph.blocks)
    visits = np.zeros(len(code))
    for b in graph.blocks:
        visits[b.start : b.end] = weights[b.index]
    for i in code:
        q = i.op.queue
        pipe[i.index] = _PIPES.index(q) if q in _PIPES else -1
        busy[i.index] = _BUSY.get(q, 1)
        queue[i.index] = q in (Queue.LSU, Queue.MIO, Queue.TMA)
        result[i.index], read[i.index] = codes.RESULT.get(q, 20), codes.READ.get(q, 14)
    none = dict.fromkeys(("hold", "member", "flight", "closes", "awaits", "but"), zero)
    port = np.zeros(len(code))
    return Costs(
        pipe, busy, queue, result, read, port, **none, visits=visits, queue_interval=4, source="usual"
    )


class Machine(NamedTuple):
    """Arrays that the compiled kernels read besides `tables`; int32, by instruction (original index) unless
    said otherwise.

    Attributes:
        succ_at, succ, delay, what: CSR of arcs: to which instruction, cycles, and FIXED, RESULT or READ.
        preds: how many arcs come in.
        pipe, busy, queue: as in `Costs`.
        port: float64, as in `Costs`.
        interval: the queue's.
        outside: cycles until a late result that another block needs is there, or 0.
    """

    succ_at: np.ndarray
    succ: np.ndarray
    delay: np.ndarray
    what: np.ndarray
    preds: np.ndarray
    pipe: np.ndarray
    busy: np.ndarray
    queue: np.ndarray
    port: np.ndarray
    interval: int
    outside: np.ndarray


@dataclass(slots=True)
class _Arcs:
    """Arcs by pair, the longest of each."""

    found: dict[tuple[int, int], tuple[int, int]]

    def add(self, first: int, second: int, cycles: int, what: int = FIXED) -> None:
        old = self.found.get((first, second))
        if old is None or cycles > old[0]:
            self.found[first, second] = (cycles, what)


def build(function: Function, graph: Graph, tables: Tables, costs: Costs, waits: bool) -> Machine:
    """Put constraints and costs together.

    Args:
        function, graph, tables: the space's.
        costs: expected cycles.
        waits: waits travel with their instructions (the space keeps the compiler's control codes).
    """
    code = function.instructions
    arcs = _Arcs({})
    block_of = tables.block_of
    for a, b in graph.order:
        if block_of[a] == block_of[b]:
            arcs.add(a, b, 1)
    for (a, b), cycles in graph.least.items():
        arcs.add(a, b, cycles)
    facts = codes.facts(function, graph)
    outside = np.zeros(len(code), dtype=np.int32)
    for block in graph.blocks:
        start, end = block.start, block.end
        _fences(arcs, start, end, graph, tables)
        _groups(arcs, start, end, graph, costs)
        _conflicts(arcs, start, end, graph, tables, facts, costs, outside)
        if waits:
            _masks(arcs, start, end, function, graph, costs)
    return _flat(arcs, costs, outside)


def _fences(arcs: _Arcs, start: int, end: int, graph: Graph, tables: Tables) -> None:
    """Between its fences everything stays; pinned instructions keep their order; a fence may hold."""
    fence, pinned, begin = -1, -1, start
    for n in range(start, end):
        if graph.fence[n]:
            for x in range(begin, n):
                arcs.add(x, n, 1)
            if fence >= 0:
                arcs.add(fence, n, 1)
            fence, pinned, begin = n, -1, n + 1
            continue
        if fence >= 0:
            arcs.add(fence, n, 1)
        if graph.pinned[n]:
            if pinned >= 0:
                arcs.add(pinned, n, 1)
            pinned = n


def _behind(start: int, end: int, graph: Graph) -> Iterable[int]:
    """What issues right behind a fence: up to the next fence and with it."""
    for n in range(start + 1, end):
        yield n
        if graph.fence[n]:
            return


def _groups(arcs: _Arcs, start: int, end: int, graph: Graph, costs: Costs) -> None:
    """Fences that hold up the rest, for themselves or for groups that were closed before."""
    groups: dict[int, list[list[tuple[int, int]]]] = {1: [], 2: []}
    members: dict[int, list[int]] = {1: [], 2: []}
    for n in range(start, end):
        if costs.member[n]:
            members[int(costs.member[n])].append(n)
        if closes := int(costs.closes[n]):
            chain, busy = [], 0
            for m in reversed(members[closes]):
                # products follow one another in the tensor core, copies travel together
                busy = busy + int(costs.flight[m]) if closes == 2 else int(costs.flight[m])
                chain.append((m, int(costs.result[m]) + busy if closes == 2 else busy))
            groups[closes].append(chain)
            members[closes] = []
        if awaits := int(costs.awaits[n]):
            pending = len(groups[awaits]) - int(costs.but[n])
            if pending > 0:
                for x in _behind(n, end, graph):
                    for m, cycles in groups[awaits][pending - 1]:
                        arcs.add(m, x, cycles, RESULT)
        if costs.hold[n] > 1 and graph.fence[n]:
            for x in _behind(n, end, graph):
                arcs.add(n, x, int(costs.hold[n]))


def _conflicts(
    arcs: _Arcs,
    start: int,
    end: int,
    graph: Graph,
    tables: Tables,
    facts: ScoreboardProblem,
    costs: Costs,
    outside: np.ndarray,
) -> None:
    """What must not be pending when an instruction issues, from its own block or the round before."""
    b = int(tables.block_of[start])
    loops = b in graph.successors[b]
    for x in range(start, end):
        for k in facts.conflict[facts.conflict_at[x] : facts.conflict_at[x + 1]].tolist():
            a = int(facts.tracked[k >> 1])
            cycles = int(costs.read[a] if k & 1 else costs.result[a])
            if cycles <= 0 or costs.member[a] == 2:
                continue
            if not start <= a < end:
                if not k & 1 and a < x:
                    outside[a] = max(outside[a], cycles)
            elif a < x and ((a, x) in arcs.found or tables.low[a] != tables.low[x]):
                arcs.add(a, x, cycles, READ if k & 1 else RESULT)
            elif a >= x and loops and not k & 1:
                outside[a] = max(outside[a], cycles)


def _masks(arcs: _Arcs, start: int, end: int, function: Function, graph: Graph, costs: Costs) -> None:
    """Waits that travel with their instructions wait for every earlier setter that stays earlier."""
    code = function.instructions
    for (a, x), _ in list(arcs.found.items()):
        if not (start <= x < end and start <= a < end):
            continue
        mask, c = code[x].control.wait_mask, code[a].control
        if not mask:
            continue
        if c.write_barrier is not None and mask >> c.write_barrier & 1:
            arcs.add(a, x, int(costs.result[a]), RESULT)
        if c.read_barrier is not None and mask >> c.read_barrier & 1:
            arcs.add(a, x, int(costs.read[a]), READ)


def _flat(arcs: _Arcs, costs: Costs, outside: np.ndarray) -> Machine:
    count = len(costs.pipe)
    rows = sorted((a, b, c, w) for (a, b), (c, w) in arcs.found.items())
    flat = np.array(rows, dtype=np.int32).reshape(-1, 4)
    at = np.zeros(count + 1, dtype=np.int32)
    at[1:] = np.cumsum(np.bincount(flat[:, 0], minlength=count))
    return Machine(
        succ_at=at,
        succ=flat[:, 1].copy(),
        delay=flat[:, 2].copy(),
        what=flat[:, 3].copy(),
        preds=np.bincount(flat[:, 1], minlength=count).astype(np.int32),
        pipe=costs.pipe,
        busy=costs.busy,
        queue=costs.queue,
        port=costs.port,
        interval=costs.queue_interval,
        outside=outside,
    )


def crowded(machine: Machine, warps: float) -> Machine:
    """The machine as a warp sees it that shares pipes and memory port with others."""
    return machine._replace(
        busy=np.ceil(machine.busy * warps).astype(np.int32), port=machine.port * warps * 4
    )
