"""From counters to latencies: the smallest distance at and above which no trial went wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sassafras.core import SassafrasError

if TYPE_CHECKING:
    from .plan import Plan

#: a distance is judged by this many counted trials of whole warps, or not at all
ENOUGH = 500
_LANES = 32


@dataclass
class Seen:
    """What was counted of a probe at a distance, over yield hints, shapes and turns.

    Attributes:
        bad: lanes whose result was wrong.
        odd: of these, lanes whose result was not the stale one either.
        counted: lanes in which a fault would have shown and the pair was as close as its stall counts say.
        warps: executions by a warp, counted or not.
        hints: yield hints that were run.
        crashed: it stopped the GPU.
    """

    bad: int = 0
    odd: int = 0
    counted: int = 0
    warps: int = 0
    hints: set[int] = field(default_factory=set)
    crashed: bool = False

    @property
    def trials(self) -> int:
        """Counted trials in whole warps: lanes of one warp are not independent."""
        return self.counted // _LANES

    @property
    def wrong(self) -> bool:
        """A fault was seen."""
        return self.bad > 0 or self.crashed


@dataclass(frozen=True)
class Result:
    """What a probe's counters say.

    Attributes:
        status: ``measured``; ``never failed`` (right at every distance down to 1: no more than that is
            known); ``always wrong`` (the probe, not the pair, is at fault, or 15 cycles are too few);
            ``blind`` (no fault could have shown); ``unfinished``.
        cycles: the smallest distance at and above which nothing went wrong.
        trials: of whole warps, at `cycles`.
        below: (lanes wrong, lanes counted) one cycle closer.
        fault: the largest distance at which something went wrong, by stall counts alone; 0 for none.
        held: executions by a warp at the least tried of the distances between `fault` and `cycles`. All were
            right, but the clock says that the hardware held the pair apart.
        odd: wrong results that were not the stale ones, over all distances.
        shortest: the closest distance that was reached.
        by_distance: distance -> (lanes wrong, lanes counted), or None where it stopped the GPU.
    """

    status: str
    cycles: int = 0
    trials: int = 0
    below: tuple[int, int] = (0, 0)
    fault: int = 0
    held: int = 0
    odd: int = 0
    shortest: int = 0
    by_distance: dict[int, tuple[int, int] | None] = field(default_factory=dict)

    @property
    def bound(self) -> float | None:
        """Upper 95 % bound on the share of warps' executions that fail at `cycles`, none having been seen."""
        return 1.0 - 0.05 ** (1.0 / self.trials) if self.trials else None


class Tally:
    """Everything a journal holds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.runs = 0
        self.overhead: dict[int, list[int | None]] = {}
        self.crashed: dict[int, set[int]] = defaultdict(set)
        self._done: set[tuple[int, int, int, int]] = set()
        self._seen: dict[tuple[int, int], dict[int, Seen]] = defaultdict(lambda: defaultdict(Seen))
        self.bad_by_shape = [0, 0, 0]
        self.header: dict[str, Any] = {}

    def read(self, journal: Path) -> int:
        """Take in a journal; how many runs it holds. A half-written last line is left out.

        Raises:
            SassafrasError: it is another plan's.
        """
        if not journal.exists():
            return 0
        whole = journal.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        if len(kept) < len(whole):
            journal.write_bytes(kept)
        for number, text in enumerate(kept.splitlines()):
            try:
                line = json.loads(text)
            except ValueError:
                raise SassafrasError(
                    "the journal is damaged", where=f"{journal.name}, line {number + 1}"
                ) from None
            if "plan" in line:
                if line["plan"] != self.plan.digest:
                    raise SassafrasError(
                        "the journal is of another plan", where=str(journal), hint="give another --out"
                    )
                self.header = line
                continue
            self.add(line)
        return self.runs

    def add(self, line: dict[str, Any]) -> None:
        """Take in one run."""
        batch, distance = line["batch"], line["distance"]
        for n in line["crashed"]:
            self.crashed[batch].add(n)
            self._seen[batch, n][distance].crashed = True
        if "overhead" in line:
            self.overhead[batch] = line["overhead"]
            return
        self.runs += 1
        self._done.add((batch, distance, line["yield"], line["turn"]))
        for n, (bad, odd, counted, warps) in enumerate(
            zip(line["bad"], line["odd"], line["counted"], line["warps"], strict=True)
        ):
            if not warps:
                continue
            seen = self._seen[batch, n][distance]
            seen.bad += bad
            seen.odd += odd
            seen.counted += counted
            seen.warps += warps
            seen.hints.add(line["yield"])
        for n, bad in enumerate(line["bad_by_shape"]):
            self.bad_by_shape[n] += bad

    def has(self, batch: int, distance: int, hint: bool, turn: int) -> bool:
        """Whether this was run."""
        return (batch, distance, int(hint), turn) in self._done

    def fails_at(self, batch: int, distance: int) -> bool:
        """Whether any probe of a kernel went wrong at a distance."""
        count = len(self.plan.batches[batch].rows)
        return any(
            self._seen[batch, n][distance].wrong
            for n in range(count)
            if distance in self._seen.get((batch, n), {})
        )

    def smallest(self, batch: int) -> list[int]:
        """The measured distances of a kernel's probes, each once."""
        found = {self.result(batch, n).cycles for n in range(len(self.plan.batches[batch].rows))}
        return sorted(found - {0})

    def result(self, batch: int, number: int) -> Result:
        """What a probe's counters say."""
        seen = self._seen.get((batch, number), {})
        if not seen:
            return Result("unfinished")
        table = {d: None if s.crashed else (s.bad, s.counted) for d, s in sorted(seen.items())}
        odd = sum(s.odd for s in seen.values())
        if not any(s.counted or s.wrong for s in seen.values()):
            return Result("blind", by_distance=table)
        right = sorted(d for d, s in seen.items() if not s.wrong and s.trials >= ENOUGH)
        wrong = [d for d, s in seen.items() if s.wrong]
        least = max(wrong, default=0)
        above = [d for d in right if d > least]
        if not above:
            status = "always wrong" if wrong and max(seen) == least else "blind"
            return Result(status, fault=least, odd=odd, by_distance=table)
        cycles = above[0]
        held = min((seen[d].warps for d in range(least + 1, cycles) if d in seen), default=0)
        tried = seen[cycles]
        whole = len(tried.hints) == (2 if cycles <= 11 else 1)
        reached = min(d for d, s in seen.items() if s.wrong or s.trials >= ENOUGH)
        if not wrong:
            status = "never failed" if whole and min(seen) == 1 else "unfinished"
            return Result(status, cycles, tried.trials, (0, 0), 0, held, odd, reached, table)
        # with a gap between what failed and what was right, the truth may lie in it: the larger one stands
        under = seen.get(cycles - 1, Seen())
        status = "measured" if whole else "unfinished"
        below = under.bad, under.counted
        return Result(status, cycles, tried.trials, below, least, held, odd, reached, table)
