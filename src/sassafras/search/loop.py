"""The loop around a strategy: budget, clock, record, resumption, interruption, progress.

Resumption. Every outcome is recorded before the strategy sees it. The same search started again walks the
same path, because strategies draw chance from the seed alone, see time only through `Session.progress`, and
get recorded outcomes where there are any; once the record ends, evaluation goes on. A resumed search is
therefore indistinguishable from one that was never interrupted, and what was paid for is never paid twice.
"""

from __future__ import annotations

import signal
import threading
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from sassafras.core import Budget, Candidate, Evaluator, Outcome, SearchError, Space

from .contract import Found, Recorded, Recorder, Strategy

State = TypeVar("State")

#: turns in a row without anything new after which a space counts as exhausted
IDLE_TURNS = 20_000


@dataclass(frozen=True, slots=True)
class Progress:
    """How a search stands, after each new outcome.

    Attributes:
        elapsed: seconds of the budget spent, earlier sittings included.
        evaluations: outcomes so far, earlier sittings included.
        replayed: how many of them came from the record.
        rate: new evaluations a second in this sitting.
        verdicts: outcomes by verdict (``modelled`` for an accepted modelled one).
        best: the best outcome so far.
        fraction: share of the budget spent, 0 to 1.
        left: seconds to the end, by the clock or by the rate of evaluations; None where neither tells.
    """

    elapsed: float
    evaluations: int
    replayed: int
    rate: float
    verdicts: Mapping[str, int]
    best: Outcome
    fraction: float
    left: float | None = None


@dataclass(frozen=True, slots=True)
class Finished(Generic[State]):
    """What came of a search.

    Attributes:
        best: the best state found; the baseline when nothing was better.
        baseline: the unmodified start.
        leaders: the few best distinct states, best first.
        evaluations: outcomes, earlier sittings included.
        replayed: how many of them came from the record.
        seconds: seconds of the budget spent, earlier sittings included.
        verdicts: outcomes by verdict.
        reason: ``budget``, ``exhausted``, ``returned`` (the strategy ended by itself) or ``interrupted``.
    """

    best: Found[State]
    baseline: Found[State]
    leaders: tuple[Found[State], ...]
    evaluations: int
    replayed: int
    seconds: float
    verdicts: Mapping[str, int]
    reason: str


class _Over(BaseException):
    """The search is over; raised through a strategy that did not ask, past its `except Exception`."""


@dataclass
class _Session(Generic[State]):
    """The running search. See `contract.Session` for what strategies may use of it."""

    space: Space[State, Any]
    evaluator: Evaluator
    budget: Budget
    rng: np.random.Generator
    recorder: Recorder | None
    report: Callable[[Progress], None] | None
    keep: int
    stop: Callable[[], bool] | None = None
    seen: dict[str, Outcome] = field(default_factory=dict)
    leaders: list[Found[State]] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    baseline: Found[State] | None = None
    clock: float = 0.0
    replayed: int = 0
    idle: int = 0
    reason: str = ""
    begun: float = field(default_factory=time.monotonic)
    mark: float = field(default_factory=time.monotonic)

    @property
    def best(self) -> Found[State]:
        return self.leaders[0]

    @property
    def progress(self) -> float:
        return self.budget.share(self.clock, len(self.seen))

    def more(self) -> bool:
        self.idle += 1
        if not self.reason:
            if self.stop is not None and self.stop():
                self.reason = "interrupted"
            elif self._spent():
                self.reason = "budget"
            elif self.idle > IDLE_TURNS:
                self.reason = "exhausted"
        return not self.reason

    def _spent(self) -> bool:
        evaluations, seconds = self.budget.evaluations, self.budget.seconds
        if evaluations is not None and len(self.seen) >= evaluations:
            return True
        return seconds is not None and self.clock + (time.monotonic() - self.mark) >= seconds

    def evaluate(self, state: State) -> Outcome:
        if not self.more():
            raise _Over
        candidate = self.space.candidate(state)
        digest = candidate.digest
        if (outcome := self.seen.get(digest)) is not None:
            return outcome
        recorded = self.recorder.known(digest) if self.recorder else None
        if recorded is not None:
            self.replayed += 1
        else:
            recorded = self._judge(candidate)
        self.mark, self.idle = time.monotonic(), 0
        self.clock += recorded.took
        self.seen[digest] = outcome = recorded.outcome
        self.verdicts["modelled" if outcome.verdict is None else outcome.verdict.value] += 1
        if outcome.cost is not None:
            self._rank(Found(state, candidate, outcome, outcome.cost))
        if self.report is not None and self.leaders:
            self.report(self.standing())
        return outcome

    def _judge(self, candidate: Candidate) -> Recorded:
        outcome = self._closer(candidate, self.evaluator.evaluate(candidate))
        took = time.monotonic() - self.mark
        return self.recorder.record(candidate, outcome, took) if self.recorder else Recorded(outcome, took)

    def _closer(self, candidate: Candidate, outcome: Outcome) -> Outcome:
        """What would be the best is looked at again, closer each time, until it no longer is.

        Where figures depend on chance, the lowest of many is the luckiest; a long look at every candidate
        would cost most of the budget.
        """
        look: Callable[[Candidate, int], Outcome | None] | None = getattr(self.evaluator, "closer", None)
        level = 1
        while look is not None and self.leaders and outcome.cost is not None:
            if outcome.cost >= self.best.cost or (nearer := look(candidate, level)) is None:
                break
            outcome, level = nearer, level + 1
        return outcome

    def _rank(self, found: Found[State]) -> None:
        """Keep the few best; among equals the first found stays ahead."""
        insort(self.leaders, found, key=lambda one: one.cost)
        del self.leaders[self.keep :]

    def standing(self) -> Progress:
        new, sitting = len(self.seen) - self.replayed, time.monotonic() - self.begun
        rate = new / sitting if sitting > 0 else 0.0
        return Progress(
            self.clock,
            len(self.seen),
            self.replayed,
            rate,
            dict(self.verdicts),
            self.best.outcome,
            self.progress,
            seconds_left(self.budget, self.clock, len(self.seen), rate),
        )


def seconds_left(budget: Budget, spent: float, evaluations: int, rate: float) -> float | None:
    """Seconds to the end of a budget of which `spent` seconds and these evaluations are gone."""
    ends = []
    if budget.seconds is not None:
        ends.append(budget.seconds - spent)
    if budget.evaluations is not None and rate > 0:
        ends.append((budget.evaluations - evaluations) / rate)
    return max(min(ends), 0.0) if ends else None


def run(
    strategy: Strategy,
    space: Space[State, Any],
    evaluator: Evaluator,
    budget: Budget,
    *,
    seed: int = 0,
    recorder: Recorder | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep: int = 8,
    stop: Callable[[], bool] | None = None,
) -> Finished[State]:
    """Let `strategy` search `space` until the budget is spent, or SIGINT or SIGTERM asks it to stop.

    Args:
        strategy: how to look.
        space: what can be changed.
        evaluator: what a candidate is worth.
        budget: the baseline's evaluation counts.
        seed: of everything random in the search.
        recorder: where outcomes are kept; a search with the same record goes on where it stopped.
        progress: called after each new outcome; must be quick.
        keep: how many leaders to keep.
        stop: asked before every turn; True ends the search as SIGINT does (for searches outside the main
            thread, which signals do not reach).

    Raises:
        SearchError: the baseline itself is unusable, or the budget ends before it has a figure.
        KeyboardInterrupt: the search was asked to stop before that.
    """
    session: _Session[State] = _Session(
        space, evaluator, budget, np.random.default_rng(seed), recorder, progress, max(keep, 1), stop
    )
    start = space.start()
    with _interruptible(session):
        try:
            outcome = session.evaluate(start)
        except _Over:
            if session.reason == "interrupted":  # before the first evaluation
                raise KeyboardInterrupt from None
            raise SearchError(
                f"the budget {budget} ended before the unmodified kernel had a figure", hint="a larger budget"
            ) from None
        if outcome.cost is None:
            verdict = outcome.verdict.value if outcome.verdict else "unusable"
            raise SearchError(
                f"the unmodified kernel itself is {verdict}: {outcome.detail or 'no detail given'}",
                hint="nothing can be compared with it; check the workload",
            )
        session.baseline = session.leaders[0]
        with suppress(_Over):
            strategy.search(space, session.evaluate, session)
    return Finished(
        session.best,
        session.baseline,
        tuple(session.leaders),
        len(session.seen),
        session.replayed,
        session.clock,
        dict(session.verdicts),
        session.reason or "returned",
    )


@contextmanager
def _interruptible(session: _Session[Any]) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into a clean end; a second one acts as it always did."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        session.reason = "interrupted"
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()
