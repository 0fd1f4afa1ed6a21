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
from typing import NamedTuple

import numpy as np

from sassafras.sass import Function, Queue

from . import control as codes
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


def build(function: Function, graph: Graph, tables: Tables, costs: Costs, waits: bool) -> Machine:
    """Put constraints and costs together.

    Args:
        function, graph, tables: the space's.
        costs: expected cycles.
        waits: waits travel with their instructions (the space keeps the compiler's control codes).
    """
    made = _Builder(function, graph, tables, costs)
    for block in graph.blocks:
        span = range(block.start, block.end)
        made.fences(span)
        made.groups(span)
        made.conflicts(span, loops=block.index in graph.successors[block.index])
        if waits:
            made.masks(span)
    return made.machine()


class _Builder:
    """Arcs by pair of instructions, the longest of each: (cycles, FIXED, RESULT or READ)."""

    def __init__(self, function: Function, graph: Graph, tables: Tables, costs: Costs) -> None:
        self.code, self.graph, self.tables, self.costs = function.instructions, graph, tables, costs
        self.facts = codes.facts(function, graph)
        self.outside = np.zeros(len(self.code), dtype=np.int32)
        self.arcs: dict[tuple[int, int], tuple[int, int]] = {}
        for a, b in graph.order:
            if tables.block_of[a] == tables.block_of[b]:
                self.add(a, b, 1)
        for (a, b), cycles in graph.least.items():
            self.add(a, b, cycles)

    def add(self, first: int, second: int, cycles: int, what: int = FIXED) -> None:
        """Note an arc unless a longer one is known."""
        old = self.arcs.get((first, second))
        if old is None or cycles > old[0]:
            self.arcs[first, second] = (cycles, what)

    def fences(self, span: range) -> None:
        """Between its fences everything stays; pinned instructions keep their order; a fence may hold."""
        fence, pinned, begin = -1, -1, span.start
        for n in span:
            if fence >= 0:
                self.add(fence, n, 1)
            if self.graph.fence[n]:
                for x in range(begin, n):
                    self.add(x, n, 1)
                fence, pinned, begin = n, -1, n + 1
            elif self.graph.pinned[n]:
                if pinned >= 0:
                    self.add(pinned, n, 1)
                pinned = n

    def _behind(self, n: int, span: range) -> Iterable[int]:
        """What issues right behind a fence: up to the next fence and with it."""
        for x in range(n + 1, span.stop):
            yield x
            if self.graph.fence[x]:
                return

    def groups(self, span: range) -> None:
        """Fences that hold up the rest, for themselves or for groups that were closed before."""
        costs = self.costs
        groups: dict[int, list[list[tuple[int, int]]]] = {1: [], 2: []}
        members: dict[int, list[int]] = {1: [], 2: []}
        for n in span:
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
                    for x in self._behind(n, span):
                        for m, cycles in groups[awaits][pending - 1]:
                            self.add(m, x, cycles, RESULT)
            if costs.hold[n] > 1 and self.graph.fence[n]:
                for x in self._behind(n, span):
                    self.add(n, x, int(costs.hold[n]))

    def conflicts(self, span: range, loops: bool) -> None:
        """What must not be pending when an instruction issues, from its own block or the round before."""
        facts, costs, low = self.facts, self.costs, self.tables.low
        for x in span:
            for k in facts.conflict[facts.conflict_at[x] : facts.conflict_at[x + 1]].tolist():
                a, late = int(facts.tracked[k >> 1]), k & 1
                cycles = int(costs.read[a] if late else costs.result[a])
                if cycles <= 0 or costs.member[a] == 2:
                    continue
                if a in span and a < x:
                    if (a, x) in self.arcs or low[a] != low[x]:
                        self.add(a, x, cycles, READ if late else RESULT)
                elif not late and (a < x or (a in span and loops)):
                    self.outside[a] = max(self.outside[a], cycles)

    def masks(self, span: range) -> None:
        """Waits that travel with their instructions wait for every earlier setter that stays earlier."""
        for a, x in list(self.arcs):
            if x in span and a in span:
                mask, c = self.code[x].control.wait_mask, self.code[a].control
                if c.write_barrier is not None and mask >> c.write_barrier & 1:
                    self.add(a, x, int(self.costs.result[a]), RESULT)
                if c.read_barrier is not None and mask >> c.read_barrier & 1:
                    self.add(a, x, int(self.costs.read[a]), READ)

    def machine(self) -> Machine:
        """The arcs as arrays."""
        count, costs = len(self.code), self.costs
        rows = sorted((*pair, *arc) for pair, arc in self.arcs.items())
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
            outside=self.outside,
        )


def crowded(machine: Machine, warps: float) -> Machine:
    """The machine as a warp sees it that shares pipes and memory port with others."""
    return machine._replace(
        busy=np.ceil(machine.busy * warps).astype(np.int32), port=machine.port * warps * 4
    )
