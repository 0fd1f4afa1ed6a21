"""`ScheduleSpace`: the legal orders and stall counts of one kernel's native code."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from sassafras.core.errors import SassafrasError
from sassafras.core.evaluation import Candidate
from sassafras.core.kernel import Kernel
from sassafras.sass import Emitter, Program, check_schedulable
from sassafras.sass.latency import LatencyTable

from . import control as codes
from . import graph, pipes, reuse, tables
from .construct import Constructor
from .control import ScoreboardProblem
from .distances import Distances
from .machine import Costs
from .state import REORDER, RESTALL, Move, ScheduleState

Moves = Literal["memory", "all"]
ControlCodes = Literal["keep", "regenerate"]

#: chances of (one memory instruction by one, any by one, any to any place, a stall count), out of 65536
_WEIGHTS = {"memory": (65536, 0, 0, 0), "all": (9830, 16384, 26214, 13108)}
_ATTEMPTS = 256
#: moves drawn for which no control codes exist, before the space gives up
_REDRAWS = 64
#: actions of an agent by set of moves, and the steps by which the compiled kernels know them
_VERBS: dict[str, dict[str, int]] = {
    "memory": {"up": -1, "down": 1},
    "all": {
        "up": -1,
        "down": 1,
        "up 4": -4,
        "down 4": 4,
        "to the top": -64,
        "to the bottom": 64,
        "tighten": 100,
        "loosen": 101,
    },
}
#: rows that `links` names on either side
_LINKS = 4


class ScheduleSpace:
    """Schedules of one kernel. Implements `core.Space`, `Playable`, `Tracked` and `Constructive`.

    Barriers and wait masks travel with their instructions, or are regenerated (`control`). Every schedule in
    the space keeps the register, scoreboard and memory dependences of the original and the smallest issue
    distances of the latency table (``docs/concepts/search-space.md``); the independent validator judges it.

    Args:
        kernel: the baseline.
        program: its cubin, if it was parsed already.
        arch_by_name: the user named this architecture on purpose (sm_80, 86, 89).
        moves: ``"memory"``: one memory instruction up or down by one, as in SIP and CuAsmRL;
            ``"all"``: also any movable instruction anywhere between its fences, and stall counts.
        control: ``"keep"``: barriers and wait masks travel with their instructions, and moves respect them;
            ``"regenerate"``: scoreboards and waits are worked out for every schedule (`schedule.control`),
            and moves respect true dependences only.
        view: columns of `features`: ``"all"``, or ``"paper"`` for those that CuAsmRL's agent sees.
        rename: a copy of the kernel under other register names (`schedule.renaming.rename`) or with
            instructions moved over branches (`schedule.blocks.move`), of which every candidate but the start
            is a schedule; `via` then holds it under control codes of its own, for
            the validator to prove (`Validator.via`).

    Raises:
        UnsupportedArch: the architecture is not scheduled, or only when asked for by name.
        CubinError, DisassemblyError: the cubin cannot be read.
        SassafrasError: this kernel must not be reordered, or nothing in it can move.
    """

    def __init__(
        self,
        kernel: Kernel,
        program: Program | None = None,
        arch_by_name: bool = False,
        moves: Moves = "all",
        control: ControlCodes = "keep",
        view: Literal["all", "paper"] = "all",
        rename: bytes | None = None,
    ) -> None:
        if view not in ("all", "paper"):
            raise SassafrasError(f"unknown view {view!r}", hint="all or paper")
        if moves not in _WEIGHTS:
            raise SassafrasError(f"unknown moves {moves!r}", hint="memory or all")
        if control not in ("keep", "regenerate"):
            raise SassafrasError(f"unknown control {control!r}", hint="keep or regenerate")
        #: what stands between the baseline and the candidates, and has to be proved first
        self.via: tuple[bytes, ...] = ()
        self._baseline = kernel.cubin
        if rename is not None:
            if control != "regenerate":
                raise SassafrasError("other names need other waits", hint='control="regenerate"')
            program = Program.parse(rename)
            kernel = kernel.with_cubin(rename)
        self.kernel = kernel
        self.program = program or Program.parse(kernel.cubin)
        self.function = self.program.function(kernel.name)
        self.arch = check_schedulable(self.function.arch, arch_by_name)
        if self.function.pinned_reason:
            raise SassafrasError(
                f"this kernel cannot be rescheduled: {self.function.pinned_reason}", where=_short(kernel.name)
            )
        distances = Distances(self.function.instructions, LatencyTable.load(self.arch.table))
        free = control == "regenerate"
        self.graph = graph.build(self.function, distances, waits=not free)
        self.tables = tables.build(self.function, self.graph, distances, free)
        #: what a search must share to be the same one
        self.description = f"moves={moves}, control={control}"
        if view != "all":
            self.description += f", view={view}"
        self.control: ScoreboardProblem | None = codes.facts(self.function, self.graph) if free else None
        movable = np.flatnonzero(self.tables.movable).astype(np.int32)
        self.memory = np.flatnonzero(self.tables.movable & self.tables.memory).astype(np.int32)
        self.movable = self.memory if moves == "memory" else movable
        if len(self.movable) == 0:
            raise SassafrasError(
                "nothing in this kernel can move",
                where=_short(kernel.name),
                hint=f"{len(self.function)} instructions, of which none is a movable "
                + ("memory operation" if moves == "memory" else "instruction"),
            )
        self._moves = moves
        self._view = view
        self._steps = np.array(list(_VERBS[moves].values()), dtype=np.int32)
        self._weights = np.array(_WEIGHTS[moves], dtype=np.int64)
        self._coded: tuple[ScheduleState, codes.Codes] | None = None
        self._emitter = Emitter(self.program, kernel.name)
        self._words = np.ascontiguousarray(self.function.words)
        self._reach = reuse.reaches(self.function)
        code = self.function.instructions
        self._plain = np.array([free and pipes.plain(i) for i in code], dtype=np.bool_)
        if rename is not None:
            # (not `emit`: where nothing can be tightened, that gives the baseline)
            self.via = (self._written(self.tightened(self._start)),)
            self.description += ", renamed"
        self._made: tuple[ScheduleState, Move, ScheduleState] | None = None

    @cached_property
    def _start(self) -> ScheduleState:
        code = self.function.instructions
        return ScheduleState(
            np.arange(len(code), dtype=np.int32),
            np.array([i.control.stall for i in code], dtype=np.uint8),
        )

    def start(self) -> ScheduleState:
        """The baseline's schedule; its candidate is the baseline, byte for byte."""
        return self._start

    def sample(self, state: ScheduleState, rng: np.random.Generator) -> Move | None:
        """One legal change, drawn at random; None where 256 draws found none. Same generator, same move."""
        from .moves_jit import propose

        for _ in range(_REDRAWS):
            seed = int(rng.integers(1 << 62))
            kind, i, j, order, stall = propose(
                self.tables,
                state.order,
                state.stall,
                self.movable,
                self.memory,
                self._weights,
                seed,
                _ATTEMPTS,
            )
            if kind < 0:
                return None
            move = Move(kind, i, j)
            new = ScheduleState(order, stall, state.depth + 1, move)
            if self.placed(new):
                self._made = (state, move, new)
                return move
        return None

    def apply(self, state: ScheduleState, move: Move) -> ScheduleState:
        """The changed schedule; `state` stays as it was.

        Raises:
            SassafrasError: the move is not legal in this state.
        """
        made = self._made
        if made is not None and made[0] is state and made[1] == move:
            return made[2]
        new = self._changed(state, Move(*move))
        if new is None:
            raise SassafrasError(f"{move} is not legal here", where=f"{_short(self.kernel.name)}, {state}")
        return new

    def _changed(self, state: ScheduleState, move: Move) -> ScheduleState | None:
        """The schedule after a move; None where it is not legal."""
        from .moves_jit import carry_out

        ok, order, stall = carry_out(self.tables, state.order, state.stall, *move)
        new = ScheduleState(order, stall, state.depth + 1, move)
        return new if ok and self.placed(new) else None

    def _codes(self, facts: ScoreboardProblem, state: ScheduleState) -> codes.Codes:
        """Control codes from scratch; those of the last state asked for are kept."""
        if self._coded is None or self._coded[0] is not state:
            self._coded = (state, codes.regenerate(facts, state.order, state.stall))
        return self._coded[1]

    def placed(self, state: ScheduleState) -> bool:
        """Whether there are control codes for this order (see `control.Codes`)."""
        return self.control is None or state == self._start or self._codes(self.control, state).placed

    def expect(self, costs: Costs, warps: float) -> None:
        """Say what instructions cost, for schedules that are built from scratch.

        Args:
            costs: expected cycles by instruction (`api/instruction_costs.py` has them from the timing model).
            warps: warps that share a sub-core.
        """
        self.constructor = Constructor(self, costs, warps)
        self.description += f", costs={costs.source}"

    @cached_property
    def constructor(self) -> Constructor:
        """Builds schedules from scratch; see `core.Constructive`."""
        return Constructor(self)

    def candidate(self, state: ScheduleState) -> Candidate:
        """The kernel in this schedule, and how it came about."""
        recipe: dict[str, Any] = {
            "space": "schedule",
            "schedule": state.digest,
            "depth": state.depth,
            "last": list(state.last) if state.last else None,
        }
        return Candidate(self.kernel.with_cubin(self.emit(state)), recipe)

    def emit(self, state: ScheduleState) -> bytes:
        """The cubin of a schedule."""
        if self.control is not None and state == self._start:
            return self._baseline
        return self._written(state)

    def _written(self, state: ScheduleState) -> bytes:
        from .encode_jit import encode

        if self.control is None:
            words = encode(self._words, state.order, state.stall, self._reach, self._plain)
        else:
            made = self._codes(self.control, state)
            words = encode(self._words, state.order, made.stall, self._reach, self._plain)
            codes.put(words, made)
        return self._emitter.write(state.order, words)

    def tightened(self, state: ScheduleState) -> ScheduleState:
        """The same order with stall counts from scratch: the least that every bound allows.

        Raises:
            SassafrasError: the order is outside the space.
        """
        from .moves_jit import settle_all, working

        w = working(state.order, np.minimum(state.stall, self.least_stalls(state.order)))
        if (start := settle_all(self.tables, w)) >= 0:
            raise SassafrasError("no stall counts will do", where=f"the block at position {start}")
        return ScheduleState(w.order, w.stall, state.depth + 1)

    def least_stalls(self, order: np.ndarray) -> np.ndarray:
        """The least stall counts to begin with (uint8, by position): what an instruction needs itself, and
        what it keeps its pipe for where the next one of its block goes there (`schedule.pipes`)."""
        t = self.tables
        own = t.own[order].astype(np.uint8)
        meet = (t.busy[order[:-1]] & t.uses[order[1:]] != 0) & (t.block_of[:-1] == t.block_of[1:])
        own[:-1] = np.where(meet & (own[:-1] > 0), np.maximum(own[:-1], t.holds[order[:-1]]), own[:-1])
        return own

    def moves(self, state: ScheduleState) -> list[Move]:
        """Every legal reordering of this state: of memory instructions by one (``moves="memory"``), or of
        any movable instruction to any place."""
        from .moves_jit import enumerate_moves

        found = enumerate_moves(self.tables, state.order, state.stall, self.movable, self._moves == "memory")
        at = state.where[self.movable]
        listed = [Move(REORDER, int(at[k]), int(j)) for k, j in np.argwhere(found)]
        if self.control is None:
            return listed
        return [move for move in listed if self._changed(state, move) is not None]

    def violation(self, state: ScheduleState) -> str:
        """Why a schedule is outside the space, or ``""``; for schedules that did not come from `apply`."""
        from .moves_jit import settle_all, working

        t, order = self.tables, state.order
        if sorted(order.tolist()) != list(range(len(self.function))):
            return "the order is not a permutation of the instructions"
        w = working(order, state.stall)
        where = w.where
        if (t.low[where] != t.low).any() or (t.block_of[where] != t.block_of).any():
            return "an instruction left its block or crossed a fence"
        for first, second in self.graph.order:
            if where[first] >= where[second]:
                return f"{self._text(second)} must stay behind {self._text(first)}"
        if (state.stall < t.own[order]).any():
            return "a stall count is below what its instruction needs"
        if (start := settle_all(t, w)) >= 0:
            return f"no stall counts will do for the block at position {start}"
        if changed := np.flatnonzero(w.stall != state.stall).tolist():
            return f"{self._text(order[changed[0]])} stalls for too few cycles"
        if not self.placed(state):
            return "something must be waited for directly before an instruction that can carry no wait"
        return ""

    def _text(self, index: int) -> str:
        i = self.function.instructions[index]
        return f"{i.text} (+{i.offset:#x})"

    def features(self, state: ScheduleState) -> np.ndarray:
        """float32 (instructions, columns), one row a position; see `schedule.features`."""
        from .features import PAPER, rows

        seen = rows(self, state)
        return seen if self._view == "all" else np.ascontiguousarray(seen[:, : len(PAPER)])

    @property
    def actions(self) -> tuple[str, ...]:
        """What an agent may do with the instruction at a position."""
        return tuple(_VERBS[self._moves])

    def links(self, state: ScheduleState) -> np.ndarray:
        """int32 (instructions, 8): for each position the nearest four that must stay above it, then the
        nearest four that must stay below; -1 where there are fewer."""
        from .encode_jit import neighbours

        return neighbours(self.tables, state.order, state.where, _LINKS)

    def things(self, state: ScheduleState) -> np.ndarray:
        """int32 (instructions,): the original index of what stands at each position."""
        return state.order

    def legal(self, state: ScheduleState) -> np.ndarray:
        """bool (instructions, actions): what an agent may try.

        With ``moves="memory"`` every one is a legal move; with ``"all"`` every order is legal, and `act`
        finds no stall counts (or, where control codes are regenerated, no place for a wait) for a few of a
        hundred.
        """
        from .moves_jit import legal_actions

        sure = self._moves == "memory"
        return legal_actions(self.tables, state.order, state.stall, self.movable, self._steps, sure)

    def act(self, state: ScheduleState, row: int, action: int) -> tuple[Move, int] | None:
        """The move that an action on a position is, and where the instruction then stands; None where no
        stall counts, or no control codes, make it legal, or these moves do not touch the instruction."""
        from .moves_jit import goals, working

        if state.order[row] not in self.movable:
            return None
        w = working(state.order, state.stall)
        aim = int(goals(self.tables, w, row, self._steps)[action])
        if aim < 0:
            return None
        move = Move(RESTALL if self._steps[action] >= 100 else REORDER, int(row), aim)
        new = self._changed(state, move)
        if new is None:
            return None
        self._made = (state, move, new)
        return move, aim if move.kind == REORDER else int(row)


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:57] + "..."
