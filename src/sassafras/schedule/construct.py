"""Schedules built from scratch, block by block, by list scheduling.

Everything is ordered under the arcs of `schedule.machine`, which hold all that binds the order in the space;
stall counts are then the least that its bounds allow, exactly as after a move. A block for which no stall
counts or no control codes will do keeps the order that it had. So whatever comes out is in the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from . import machine as machines
from .machine import Costs, Machine
from .state import ScheduleState

if TYPE_CHECKING:
    from .space import ScheduleSpace

#: rule -> cycles of chain that one cycle of waiting costs: fill waits first, follow the chain, or in between
HASTE = {
    "order": 0.0,  # what stands earlier now goes first: the same order, least stall counts
    "path": 1e6,  # the longest chain of distances and expected waits to the end of the block
    "carried": 1.0,  # the same, with late results that other blocks or the next round of a loop need
    "crowded": 4.0,  # the same, on pipes that other warps share
}


class Constructor:
    """Builds schedules of one space.

    Args:
        space: the space.
        costs: what to expect of each instruction; None: usual figures by queue.
        warps: warps that share a sub-core, for the rule ``crowded``.
    """

    def __init__(self, space: ScheduleSpace, costs: Costs | None = None, warps: float = 4.0) -> None:
        self.space = space
        self.costs = machines.usual(space.function, space.graph) if costs is None else costs
        self.machine = machines.build(
            space.function, space.graph, space.tables, self.costs, waits=space.control is None
        )
        self._shared = machines.crowded(self.machine, warps)
        start = np.arange(len(space.function), dtype=np.int32)
        movable = space.tables.movable
        found = []
        for b, (first, end) in enumerate(zip(space.tables.start, space.tables.end, strict=True)):
            visits = float(self.costs.visits[first])
            if visits > 0 and movable[first:end].sum() > 1:
                found.append((visits * self.cycles(start, b), -b))
        #: blocks worth a look, those that take longest first
        self.parts: tuple[int, ...] = tuple(-b for _, b in sorted(found, reverse=True))

    #: names for `priorities`, with the haste that goes with each
    rules: Mapping[str, float] = MappingProxyType(HASTE)

    def cycles(self, order: np.ndarray, part: int) -> int:
        """Expected cycles of a block in an order (of the whole function), for a warp alone; -1 where the
        order is not of the space."""
        from .construct_jit import measure

        s, e = self._span(part)
        return int(measure(self.machine, self.space.tables, part, (order[s:e] - s).astype(np.int32)))

    def priorities(self, state: ScheduleState, part: int, rule: str) -> np.ndarray:
        """float64, by place in the original from the block's first: the higher, the earlier."""
        from .construct_jit import lengths

        s, e = self._span(part)
        if rule == "order":
            return -(state.where[s:e] - s).astype(np.float64)
        found: np.ndarray = lengths(self._machine(rule), self.space.tables, part, rule != "path")
        return found

    def construct(
        self, state: ScheduleState, part: int, priority: np.ndarray, haste: float, rule: str = "path"
    ) -> ScheduleState | None:
        """`state` with one block scheduled from scratch; None where no control codes will do."""
        from .construct_jit import schedule
        from .moves_jit import settle, working

        s, e = self._span(part)
        local = schedule(self._machine(rule), self.space.tables, part, priority, haste)
        order, stall = state.order.copy(), state.stall.copy()
        order[s:e] = local + s
        stall[s:e] = self.space.least_stalls(order)[s:e]
        w = working(order, stall)
        if not settle(self.space.tables, w, s, e - 1):
            return None
        made = ScheduleState(w.order, w.stall, state.depth + 1)
        return made if self.space.placed(made) else None

    def _span(self, part: int) -> tuple[int, int]:
        return int(self.space.tables.start[part]), int(self.space.tables.end[part])

    def _machine(self, rule: str) -> Machine:
        return self._shared if rule == "crowded" else self.machine
