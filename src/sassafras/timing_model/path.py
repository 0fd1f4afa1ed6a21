"""Which way a warp goes: the sequence of code positions that the model runs, predicted once a kernel.

The instructions decide no branch here (there are no data), so the path is assumed, and reported:

* back-edges are taken ``trips - 1`` times; the main loop's trip count comes from the case or is assumed;
* forward conditional branches (tails, slow paths) are not taken, unless they skip a CALL;
* an EXIT under a guard is not taken;
* polling loops (mbarrier waits, atomics) run once: what they wait for is modelled as time.

Branches do not move in a schedule, so one path in terms of positions serves every candidate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from sassafras.core.errors import DisassemblyError
from sassafras.sass import Function, Instruction

#: iterations of the main loop where the case does not say
DEFAULT_TRIPS = 8
#: iterations of loops much smaller than the main one (remainders of unrolling, polling excepted)
MINOR_TRIPS = 2
#: a loop at least this fraction of the main loop's length is taken for a main loop too
_MAIN_FRACTION = 0.5
#: a path longer than this is cut: no warp of a real kernel that we model needs more with capped loops
MAX_STEPS = 60_000

_LABEL = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop, positions ``start <= p <= end``.

    Attributes:
        start, end: first position, and position of the back-edge's branch.
        trips: assumed iterations each time it is entered.
        simulated: iterations that are simulated; the others are extrapolated from the steady state.
        main: carries the case's trip count.
    """

    start: int
    end: int
    trips: int
    simulated: int
    main: bool


@dataclass(frozen=True)
class Path:
    """A predicted path.

    Attributes:
        positions: int32 (steps,): code position of each step.
        taken: uint8 (steps,): 1 where a branch is taken.
        marks: int32 (steps,): 1 + a running number at each back-edge of a loop to extrapolate, else 0.
        entries: for each entry of such a loop: (loop, marks of its iterations in order).
        loops: every loop found.
        cut: True when the path was ended at `MAX_STEPS`.
    """

    positions: np.ndarray
    taken: np.ndarray
    marks: np.ndarray
    entries: tuple[tuple[Loop, tuple[int, ...]], ...]
    loops: tuple[Loop, ...]
    cut: bool

    def __len__(self) -> int:
        return len(self.positions)


def target(i: Instruction, labels: dict[str, int]) -> int | None:
    """Position that a branch names, or None."""
    for label in _LABEL.findall(i.text):
        if label in labels:
            return labels[label] // 16
    return None


def _conditional(i: Instruction) -> bool:
    if i.guard not in ("", "PT", "UPT"):
        return True
    return any(re.fullmatch(r"!?U?P\d|UR\d+", o) for o in i.operands[:-1])


def find_loops(function: Function, loop_trips: int | None, cap: int) -> tuple[Loop, ...]:
    """The loops of a function with their assumed trip counts.

    Args:
        function: the kernel.
        loop_trips: iterations of the main loop (the longest innermost one), None: `DEFAULT_TRIPS`.
        cap: most iterations of a main loop to simulate.
    """
    labels = dict(function.labels)
    spans: dict[int, int] = {}  # end -> start
    for i in function.instructions:
        if i.base == "BRA" and i.guard not in ("!PT", "!UPT"):
            to = target(i, labels)
            if to is not None and to < i.index:
                spans[i.index] = to
    innermost = {
        end: start
        for end, start in spans.items()
        if not any(start <= s and e <= end and e != end for e, s in spans.items())
        and not _polls(function, start, end)
    }
    longest = max((end - start + 1 for end, start in innermost.items()), default=0)
    wanted = max(1, DEFAULT_TRIPS if loop_trips is None else loop_trips)
    loops = []
    for end, start in sorted(spans.items()):
        if _polls(function, start, end):
            trips, main = 1, False
        elif end in innermost and end - start + 1 >= _MAIN_FRACTION * longest:
            trips, main = wanted, True
        else:
            trips, main = MINOR_TRIPS, False
        loops.append(Loop(start, end, trips, min(trips, cap) if main else trips, main))
    return tuple(loops)


def _polls(function: Function, start: int, end: int) -> bool:
    if end - start > 24:
        return False
    body = function.instructions[start : end + 1]
    return any(
        (b.base == "SYNCS" and "TRYWAIT" in b.opcode)
        or b.base in ("NANOSLEEP", "ATOM", "ATOMG", "ATOMS", "LD", "CCTL")
        or (b.base == "LDG" and "STRONG" in b.opcode)
        for b in body
    )


def predict(function: Function, loop_trips: int | None = None, cap: int = 6) -> Path:
    """The path of every warp.

    Args:
        function: the kernel, in original order.
        loop_trips: see `find_loops`.
        cap: see `find_loops`.

    Raises:
        DisassemblyError: the path runs off the end of the code, or comes to a branch whose target is unknown.
    """
    return _Walk(function, find_loops(function, loop_trips, cap)).run()


class _Walk:
    """State of one prediction: counts of back-edges, the call stack, BSSY targets, and what was recorded."""

    def __init__(self, function: Function, loops: tuple[Loop, ...]) -> None:
        self.function = function
        self.instructions = function.instructions
        self.labels = dict(function.labels)
        self.loops = loops
        self.by_end = {loop.end: loop for loop in loops}
        self.counts = dict.fromkeys(self.by_end, 0)
        self.calls: list[int] = []
        self.syncs: dict[str, int] = {}
        self.positions: list[int] = []
        self.taken: list[int] = []
        self.marks: list[int] = []
        self.number = 0
        self.open: dict[int, list[int]] = {}
        self.entries: list[tuple[Loop, tuple[int, ...]]] = []

    def run(self) -> Path:
        at: int | None = 0
        cut = False
        while at is not None:
            if at >= len(self.instructions):
                raise DisassemblyError(
                    "the predicted path runs off the end of the code", where=self.function.name
                )
            if len(self.positions) >= MAX_STEPS:
                cut = True
                break
            self.positions.append(at)
            self.marks.append(0)
            onward = self._next(self.instructions[at])
            self.taken.append(int(onward is not None and onward != at + 1))
            at = onward
        return Path(
            np.array(self.positions, dtype=np.int32),
            np.array(self.taken, dtype=np.uint8),
            np.array(self.marks, dtype=np.int32),
            tuple(self.entries),
            self.loops,
            cut,
        )

    def _next(self, i: Instruction) -> int | None:
        name, after = i.base, i.index + 1
        if i.guard in ("!PT", "!UPT"):
            return after
        if name in ("EXIT", "KILL"):
            return after if _conditional(i) else None
        if name == "BRA":
            return self._branch(i)
        if name == "CALL":
            to = target(i, self.labels)
            if to is None or _conditional(i):
                return after
            self.calls.append(after)
            return to
        if name == "RET":
            return after if _conditional(i) else (self.calls.pop() if self.calls else None)
        if name == "BSSY" and i.operands:
            to = target(i, self.labels)
            if to is not None:
                self.syncs[i.operands[0]] = to
        elif name == "BSYNC" and i.operands and not _conditional(i):
            return self.syncs.get(i.operands[0], after)
        elif name in ("BRX", "BRXU", "JMX"):
            targets = self.function.indirect.get(i.offset, ())
            return targets[0] // 16 if targets else self._unknown(i)
        elif name == "JMP":
            to = target(i, self.labels)
            return self._unknown(i) if to is None else to
        return after

    def _unknown(self, i: Instruction) -> NoReturn:
        # what follows is most of the kernel, perhaps: without it a ratio says nothing
        raise DisassemblyError("the target of a branch is unknown", where=f"{self.function.name}, {i.text}")

    def _branch(self, i: Instruction) -> int | None:
        to, after, conditional = target(i, self.labels), i.index + 1, _conditional(i)
        if to is None:
            return after if conditional else self._unknown(i)
        if to == i.index:
            return after if conditional else None
        if to < i.index:
            return self._back_edge(self.by_end[i.index], conditional)
        if not conditional:
            return to
        for loop in self.loops:
            # leaving a loop whose back-edge is unconditional: at its last iteration
            inside = loop.start <= i.index < loop.end
            if inside and to > loop.end and not _conditional(self.instructions[loop.end]):
                if self.counts[loop.end] + 1 >= loop.simulated and self._last_exit(loop, i.index):
                    self._mark(loop)
                    self._close(loop)
                    return to
                return after
        skipped = self.instructions[after:to]
        return to if any(s.base in ("CALL", "BPT") for s in skipped) else after

    def _last_exit(self, loop: Loop, at: int) -> bool:
        for i in self.instructions[at + 1 : loop.end]:
            if i.base == "BRA" and _conditional(i):
                to = target(i, self.labels)
                if to is not None and to > loop.end:
                    return False
        return True

    def _back_edge(self, loop: Loop, conditional: bool) -> int | None:
        self._mark(loop)
        self.counts[loop.end] += 1
        if self.counts[loop.end] < loop.simulated:
            return loop.start
        if not conditional and self.counts[loop.end] < MAX_STEPS and self._has_exit(loop):
            return loop.start
        self._close(loop)
        return loop.end + 1 if conditional else None

    def _has_exit(self, loop: Loop) -> bool:
        return any(
            i.base == "BRA" and _conditional(i) and (target(i, self.labels) or 0) > loop.end
            for i in self.instructions[loop.start : loop.end]
        )

    def _mark(self, loop: Loop) -> None:
        if loop.main and loop.simulated < loop.trips:
            self.number += 1
            self.marks[-1] = self.number
            self.open.setdefault(loop.end, []).append(self.number)

    def _close(self, loop: Loop) -> None:
        self.counts[loop.end] = 0
        if loop.end in self.open:
            self.entries.append((loop, tuple(self.open.pop(loop.end))))
