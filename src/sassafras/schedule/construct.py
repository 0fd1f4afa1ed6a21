"""Schedules built from scratch, block by block: by list scheduling, beam search, or an exact solver.

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

#: rule -> what has priority
RULES = {
    "order": "what stands earlier now (same order, least stall counts)",
    "path": "the longest chain of distances and expected waits to the end of the block",
    "carried": "the same, with late results that other blocks or the next round of a loop need",
    "crowded": "the same, on pipes that other warps share",
}
#: cycles of chain that one cycle of waiting costs: fill waits first, follow the chain, in between
HASTE = {"order": 0.0, "path": 1e6, "carried": 1.0, "crowded": 4.0}


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
        for b, (first, end) in enumerate(zip(self.machine.start, self.machine.end, strict=True)):
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
        s, e = int(self.machine.start[part]), int(self.machine.end[part])
        return self._alone(self.machine, part, order[s:e] - s)

    def size(self, part: int) -> int:
        """Instructions of a block."""
        return int(self.machine.end[part] - self.machine.start[part])

    def priorities(self, state: ScheduleState, part: int, rule: str) -> np.ndarray:
        """float64, by place in the original from the block's first: the higher, the earlier."""
        from .construct_jit import lengths

        s, e = int(self.machine.start[part]), int(self.machine.end[part])
        if rule == "order":
            out = np.empty(e - s)
            out[state.order[s:e] - s] = -np.arange(e - s, dtype=np.float64)
            return out
        found: np.ndarray = lengths(self._machine(rule), part, rule != "path")
        return found

    def construct(
        self, state: ScheduleState, part: int, priority: np.ndarray, haste: float, rule: str = "path"
    ) -> ScheduleState | None:
        """`state` with one block scheduled anew by a list scheduler; None where no control codes will do."""
        from .construct_jit import schedule

        return self._with(state, part, schedule(self._machine(rule), part, priority, haste))

    def beams(
        self,
        state: ScheduleState,
        part: int,
        width: int,
        branch: int,
        priority: np.ndarray,
        rule: str,
        keep: int,
    ) -> list[ScheduleState]:
        """`state` with one block in the few best orders that a beam search finds, best first."""
        from .construct_jit import beam, lengths

        machine = self._machine(rule)
        length = lengths(machine, part, rule != "path")
        orders, _ = beam(machine, part, length, priority, width, branch)
        made = (self._with(state, part, order) for order in orders[:keep])
        return [s for s in made if s is not None]

    def perfect(
        self,
        state: ScheduleState,
        part: int,
        seconds: float,
        window: tuple[int, int] | None,
        rule: str,
        seed: int,
    ) -> ScheduleState | None:
        """`state` with one block, or a stretch of it, in the order that an exact solver finds best.

        Args:
            state: where to begin.
            part: the block.
            seconds: the solver's limit.
            window: first and last place (from the block's first) that may change; None: all.
            rule: what is minimised: the cycles of a warp alone, or (``crowded``) of one among others.
            seed: the solver's.

        Raises:
            ToolMissing: OR-tools are not installed.
        """
        from .construct_jit import schedule
        from .exact import solve

        machine = self._machine(rule)
        s, e = int(self.machine.start[part]), int(self.machine.end[part])
        begin = (state.order[s:e] - s).astype(np.int32)
        if window is None:  # the solver goes on from the best that is at hand
            listed = schedule(machine, part, self.priorities(state, part, rule), HASTE[rule])
            if 0 <= self._alone(machine, part, listed) < self._alone(machine, part, begin):
                begin = listed
        found = solve(machine, part, begin, seconds, window, seed)
        return None if found.order is None else self._with(state, part, found.order)

    @staticmethod
    def _alone(machine: Machine, part: int, local: np.ndarray) -> int:
        from .construct_jit import measure

        return int(measure(machine, part, local.astype(np.int32), np.empty(len(local), dtype=np.int64)))

    def _machine(self, rule: str) -> Machine:
        return self._shared if rule == "crowded" else self.machine

    def _with(self, state: ScheduleState, part: int, local: np.ndarray) -> ScheduleState | None:
        from .moves_jit import positions, settle

        t = self.space.tables
        s, e = int(t.start[part]), int(t.end[part])
        order, stall = state.order.copy(), state.stall.copy()
        order[s:e] = local + s
        stall[s:e] = self.space.least_stalls(order)[s:e]
        time = np.empty(len(order) + 1, dtype=np.int64)
        if not settle(t, order, stall, positions(order), time, s, e - 1):
            return None
        made = ScheduleState(order, stall, state.depth + 1)
        return made if self.space.placed(made) else None
