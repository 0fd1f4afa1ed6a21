"""Which instructions take a variable time, and where the original lets none of them be pending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sassafras.core.errors import DisassemblyError
from sassafras.sass.control import READ_BARRIER_SHIFT, WAIT_SHIFT, WRITE_BARRIER_SHIFT

from . import classes
from .pending_jit import Schedule, Tracked, scoreboards

if TYPE_CHECKING:
    from .analysis import Analysis


class Scoreboards:
    """The part of an analysis that concerns scoreboards; `ask`, then `allow`, then candidates.

    Attributes:
        number: by instruction, its number among those of variable latency, or -1.
        tracked: their instructions.
        facts: what is known of them, and asked of every schedule.
    """

    def __init__(self, analysis: Analysis) -> None:
        a = self._analysis = analysis
        self.number = np.full(a.count, -1, dtype=np.int32)
        tracked = [
            n
            for n, i in enumerate(a.code)
            if (a.variable[n] or i.control.read_barrier is not None) and not a.effects[n].never
        ]
        self.number[tracked] = np.arange(len(tracked))
        self.tracked = np.array(tracked, dtype=np.int32)

    def ask(self, checks: set[tuple[int, int, int]]) -> None:
        """Note which producers must not be pending when an instruction issues.

        Args:
            checks: (instruction, number of the producer, 0 for its results or 1 for its reads).
        """
        a = self._analysis
        by_second: list[list[int]] = [[] for _ in range(a.count)]
        for second, number, rule in sorted(checks):
            by_second[second].append(2 * number + rule)
        self._check_at = np.zeros(a.count + 1, dtype=np.int32)
        self._check_at[1:] = np.cumsum([len(c) for c in by_second])
        self._check = np.array([c for row in by_second for c in row], dtype=np.int32)
        # whatever the original gives a scoreboard is watched too: see `allow`
        controls = [a.code[n].control for n in self.tracked]
        self._watched = np.array(
            [(c.write_barrier is not None) | (c.read_barrier is not None) << 1 for c in controls],
            dtype=np.uint8,
        )
        for _, number, rule in checks:
            self._watched[number] |= 1 << rule
        if a.system:
            self._watched[:] = 3  # nothing in this cubin says what such a call needs

    def allow(self, first: Analysis | None, place: Sequence[int] | None) -> None:
        """What may be pending at fences that order memory or end the kernel: no more than in the original, as
        ptxas may have had a reason to wait there that no register shows. What fences themselves left pending
        (FENCE, MEMBAR and so on set scoreboards) may not be pending at memory operations either.

        Args:
            first, place: as `Analysis` has them.

        Raises:
            DisassemblyError: a fence, an access or a setter of scoreboards has moved.
        """
        a = self._analysis
        strict = [
            n
            for n in range(a.count)
            if a.fence[n]
            and not a.effects[n].never
            and (n in a.system or a.code[n].base not in classes.BRANCHING)
        ]
        setters = [v for v, n in enumerate(self.tracked) if a.fence[n] and self._watched[v]]
        loose = [n for n in range(a.count) if a.kinds[n].memory and not a.fence[n]] if setters else []
        self._rows = strict + loose
        row = np.full(a.count, -1, dtype=np.int32)
        row[self._rows] = np.arange(len(self._rows))
        allowed = np.zeros((len(self._rows), len(self.tracked)), dtype=np.uint8)
        allowed[len(strict) :] = 3
        allowed[len(strict) :, setters] = 0
        # groups of copies are counted on purpose; USETMAXREG (stall 0) holds its successor itself
        counted = [
            (i.base not in classes.UNCOUNTED)
            | (i.control.stall > 0) << 1
            | (0 if i.guard else classes.drained(i.opcode, i.operands)) << 2
            for i in a.code
        ]
        hopper = a.function.arch.startswith("sm_90")
        kinds = [a.kinds[n] for n in self.tracked]
        self.facts = Tracked(
            number=self.number,
            covers=np.array([kind.covers for kind in kinds], dtype=np.int8),
            results_by=np.array([kind.results_by for kind in kinds], dtype=np.uint64),
            reads_by=np.array([kind.reads_by for kind in kinds], dtype=np.uint64),
            watched=self._watched,
            counted=np.array(counted, dtype=np.uint8),
            families=np.array([classes.families(i.base, hopper) for i in a.code], dtype=np.int32),
            check_at=self._check_at,
            check=self._check,
            fence=row,
            allowed=allowed,
        )
        if place is not None and first is not None:
            self._take(first.scoreboards, place)
            return
        order = np.arange(a.count, dtype=np.int32)
        out = np.empty((1, 2), dtype=np.int32)
        self.pending(order, a.original_high, *a.original_times, out, record=True)

    def left(self) -> Iterator[tuple[int, int]]:
        """(fence or access, producer that may be pending there) in the original, by instruction."""
        for row, n in enumerate(self._rows):
            for v in np.flatnonzero(self.facts.allowed[row]):
                yield n, int(self.tracked[v])

    def _take(self, first: Scoreboards, place: Sequence[int]) -> None:
        """Take what may be pending at fences from the original: none of it has moved."""
        same = [place[n] for n in self.tracked] == first.tracked.tolist()
        if not same or [place[n] for n in self._rows] != first._rows:
            raise DisassemblyError("a fence, an access or a setter of scoreboards has moved")
        self.facts = self.facts._replace(allowed=first.facts.allowed)

    def pending(
        self,
        order: np.ndarray,
        high: np.ndarray,
        times: np.ndarray,
        lengths: np.ndarray,
        out: np.ndarray,
        record: bool = False,
        facts: Tracked | None = None,
    ) -> int:
        """Run `pending_jit.scoreboards` on a candidate.

        Args:
            order, high, times: original indices, upper words and issue cycles in the block, by position.
            lengths: cycles by block.
            out: int32 (rows, 2), filled with what is wrong.
            record: note what may be pending at fences instead.
            facts: None for `facts`; another reading of the queues for an audit.

        Returns:
            How many rows were written.
        """
        wait, write, read = (
            ((high >> np.uint64(shift)) & np.uint64(mask)).astype(np.uint8)
            for shift, mask in ((WAIT_SHIFT, 0x3F), (WRITE_BARRIER_SHIFT, 7), (READ_BARRIER_SHIFT, 7))
        )
        schedule = Schedule(order, times, wait, write, read, lengths)
        return scoreboards(self._analysis.flow, facts or self.facts, schedule, record, out)
