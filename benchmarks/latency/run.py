"""Running a plan on a GPU: every distance of every kernel, then the smallest right ones again and again.

Everything is written to a journal, a line a kernel and distance, before the next one runs; the same command
goes on where it stopped. A crash or a hang costs a process: the kernel is then run in halves, until the
probe that did it is known; that distance counts as failed, and the probe is not run at smaller ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError

from .analysis import Tally
from .build import clock_cycles, patch
from .plan import LONGER, SHORT, SLOW, Plan, PlannedBatch
from .station import Station

_ANY = 0xFFFFFFFF
#: what a worker gets for a kernel, which takes milliseconds
ANSWER_SECONDS, PRETENDED_SECONDS = 6.0, 3.0
#: loops of a launch with one warp a multiprocessor, with one a scheduler, and with a full multiprocessor
LOOPS = (8, 8, 8)
CONFIRM_LOOPS = (32, 32, 64)


@dataclass
class Runner:
    """Runs a plan; see the module.

    Args:
        plan: what to run.
        journal: file of what was run.
        seconds: stop then (the kernel in flight is finished).
        pretend: no GPU, made-up latencies.
        fault: with `pretend`, the opcode key whose consumers hang or die at a distance of 2.
        turns: how often the smallest right distances are run again, at most.
    """

    plan: Plan
    journal: Path
    seconds: float
    pretend: bool = False
    fault: str = ""
    turns: int = 99
    say: Callable[[str], None] = print
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._station = Station(self.pretend, self.say)
        self.tally = Tally(self.plan)
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        done = self.tally.read(self.journal)
        if done:
            self.say(f"{done} runs are in {self.journal.name} already")
        self._file = self.journal.open("a")

    @property
    def restarts(self) -> int:
        """Processes lost so far."""
        return self._station.restarts

    def run(self) -> bool:
        """Run until the time is up or everything was confirmed; True when every distance was tried."""
        try:
            self._station.start()
            self._begin()
            whole = all(self._sweep(batch) for batch in self.plan.batches if self._left())
            whole = whole and self._left()
            self.say(f"sweep: {'done' if whole else 'not done'}, {self.tally.runs} runs")
            for turn in range(1, self.turns + 1):
                if not self._left():
                    break
                for batch in self.plan.batches:
                    for distance, hint in self._confirmations(batch):
                        if not self._left():
                            break
                        self._one(batch, distance, hint, turn)
            return all(self._swept(batch) for batch in self.plan.batches)
        finally:
            self._station.stop()
            self._file.close()

    def _begin(self) -> None:
        """Write the journal's conditions. Raises SassafrasError: it has others."""
        here = {"plan": self.plan.digest, "pretend": self.pretend, "gpu": self._station.facts.get("name")}
        if self.journal.stat().st_size == 0:
            self._write(here)
        elif {**here, **self.tally.header} != here:
            what = "the journal is of another GPU, or pretended"
            raise SassafrasError(what, where=str(self.journal), hint="give another --out")

    # -- what to run --------------------------------------------------------------------------------------

    def _left(self) -> bool:
        return time.monotonic() < self._end

    def _distances(self, batch: PlannedBatch) -> Iterator[tuple[int, bool]]:
        """Long ones first, so that a probe that crashes is not run at smaller ones."""
        if batch.slow:
            for distance in reversed(SLOW):
                yield distance, False
        else:
            for distance in reversed(LONGER):
                # what is right at 15 need not be tried beyond, but once
                if distance == LONGER[-1] or self.tally.fails_at(batch.number, 15):
                    yield distance, False
        for distance in reversed(SHORT):
            yield distance, False
            if distance <= 11:
                yield distance, True

    def _sweep(self, batch: PlannedBatch) -> bool:
        if not batch.slow and self._left():
            self._one(batch, 15, False, 0)
        for distance, hint in self._distances(batch):
            if not self._left():
                return False
            self._one(batch, distance, hint, 0)
        return True

    def _swept(self, batch: PlannedBatch) -> bool:
        return all(self.tally.has(batch.number, d, h, 0) for d, h in self._distances(batch))

    def _confirmations(self, batch: PlannedBatch) -> Iterator[tuple[int, bool]]:
        for distance in self.tally.smallest(batch.number):
            yield distance, False
            if distance <= 11:
                yield distance, True

    # -- one kernel at one distance -----------------------------------------------------------------------

    def _one(self, batch: PlannedBatch, distance: int, hint: bool, turn: int) -> None:
        if self.tally.has(batch.number, distance, hint, turn):
            return
        if batch.number not in self.tally.overhead:
            self._calibrate(batch)
        cycles = clock_cycles(distance)
        limits = [cycles + o if o is not None else _ANY for o in self.tally.overhead[batch.number]]
        line = {"batch": batch.number, "distance": distance, "yield": int(hint), "turn": turn}
        found = self._all(
            batch, distance, hint, turn, limits, self._shapes(LOOPS if turn == 0 else CONFIRM_LOOPS)
        )
        self._record({**line, **found})

    def _calibrate(self, batch: PlannedBatch) -> None:
        """How much longer than its stall counts each probe's clock says, when the multiprocessor is idle."""
        distance = 40 if batch.slow else 15
        shapes = self._shapes(LOOPS)[:1]
        found = self._all(batch, distance, False, 0, [_ANY] * len(batch.rows), shapes)
        over = [s - clock_cycles(distance) if s != _ANY else None for s in found["shortest"]]
        self._record(
            {"batch": batch.number, "overhead": over, "crashed": found["crashed"], "distance": distance}
        )

    def _shapes(self, loops: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        blocks = self._station.facts["multiprocessors"]
        return [(blocks, threads, n) for threads, n in zip((32, 128, 1024), loops, strict=True)]

    def _all(
        self,
        batch: PlannedBatch,
        distance: int,
        hint: bool,
        turn: int,
        limits: list[int],
        shapes: list[tuple[int, int, int]],
    ) -> dict[str, Any]:
        """Counters of every probe that can still be run, summed over the shapes."""
        cubin = self.plan.container.fill(patch(batch.words, batch.slots, distance, hint))
        count = len(batch.rows)
        total: dict[str, Any] = {k: [0] * count for k in ("bad", "odd", "counted")}
        total |= {"shortest": [_ANY] * count, "warps": [0] * count, "crashed": [], "bad_by_shape": [0, 0, 0]}
        more: dict[str, Any] = {}
        if self.pretend:
            more = {
                "rows": batch.rows,
                "slots": batch.slots,
                "offset": self.plan.container.offset,
                "room": self.plan.container.room,
                "fault": self.fault,
                "number": batch.number,
            }
        parts = self._station.run(
            f"kernel {batch.number} at {distance}",
            cubin,
            count,
            PRETENDED_SECONDS if self.pretend else ANSWER_SECONDS,
            self.tally.crashed.get(batch.number, set()),
            limits=limits,
            shapes=shapes,
            seed=7919 * turn + distance,
            **more,
        )
        for first, many, found in parts:
            if found is None:
                total["crashed"].append(first)
                continue
            for number, counters in enumerate(found):
                for n in range(first, first + many):
                    bad, odd, counted, shortest, warps = counters[n]
                    for key, value in (("bad", bad), ("odd", odd), ("counted", counted), ("warps", warps)):
                        total[key][n] += value
                    total["shortest"][n] = min(total["shortest"][n], shortest)
                    total["bad_by_shape"][number] += bad
        return total

    def _record(self, line: dict[str, Any]) -> None:
        self._write(line)
        self.tally.add(line)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()
