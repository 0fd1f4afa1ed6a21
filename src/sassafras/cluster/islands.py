"""A search on a cluster: an independent search (island) for every worker, each with a seed of its own.

An island keeps to one worker, so that within it speed-ups are compared on one GPU only; where islands meet,
their leaders are measured again on one GPU, and those figures decide. An island that loses its worker walks
its record again elsewhere and goes on, as an interrupted search does.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sassafras.core import (
    Budget,
    Candidate,
    Case,
    Device,
    Evaluation,
    Kernel,
    Outcome,
    SearchError,
    Space,
    Workload,
)
from sassafras.evaluate.evaluator import ApprovedFailure
from sassafras.jobs.confirm import SELECTION_LEADERS
from sassafras.jobs.job import Job
from sassafras.search import Finished, Found, Progress, Recorded, Recorder, seconds_left

from .payload import JobSubject, describe
from .pool import Pool

#: leaders that an island sends home
HOME = 4
_OVER = object()
#: what an island says of each new outcome: its recipe, the outcome, seconds of the budget
Said = tuple[dict[str, Any], Outcome, float]


class Relay:
    """A search's record that lies elsewhere: known outcomes came along, new ones are sent.

    Args:
        known: by digest.
        send: takes what is new to the record.
    """

    def __init__(self, known: Mapping[str, Recorded], send: Callable[[Said], None]) -> None:
        self._known, self._send = known, send

    def known(self, digest: str) -> Recorded | None:
        """See `search.Recorder`."""
        return self._known.get(digest)

    def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
        """See `search.Recorder`."""
        self._send((dict(candidate.recipe), outcome, took))
        return Recorded(outcome, took)


def home(found: Finished[Any]) -> Finished[Any]:
    """What an island's search came to, without its states and with few leaders."""
    best, start, *leaders = (
        replace(one, state=None) for one in (found.best, found.baseline, *found.leaders[:HOME])
    )
    return replace(found, best=best, baseline=start, leaders=tuple(leaders))


# -- on the worker ------------------------------------------------------------------------------------------


def search_island(payload: Mapping[str, Any], device: Device, stop: threading.Event) -> Iterator[Any]:
    """One island, on a worker (`worker.Work`): yields `Said` of each new outcome, `ApprovedFailure`s, then a
    `Finished` unless it was stopped ahead of its first outcome."""
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with JobSubject(payload["subject"]) as subject:
        job = Job(
            subject.workload,
            subject.case,
            subject.baseline,
            payload["strategy"],
            payload["budget"],
            payload["seed"],
            device,
            payload["space"](subject.baseline),
            None,
            lambda text: None,
        )

        def walk() -> None:
            try:
                device.open(subject.workload, subject.case, subject.baseline)
                recorder = Relay(payload["known"], said.put)
                found = job.search(None, recorder=recorder, stop=stop.is_set)
                for failure in getattr(job.evaluator, "failures", ()):
                    said.put(failure)
                said.put(home(found))
            except BaseException as error:
                said.put(error)
            said.put(_OVER)

        threading.Thread(target=walk, daemon=True).start()
        while (event := said.get()) is not _OVER:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, BaseException) and stop.is_set():
                return  # before the baseline had a figure
            if isinstance(event, BaseException):
                raise SearchError(f"the island ended: {type(event).__name__}")
            yield event


# -- on the driver ------------------------------------------------------------------------------------------


class PoolDevice:
    """A worker's GPU, for the driver: `core.Device`, and what choosing and re-measuring need."""

    modelled = False

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.name, self.arch = str(pool.facts["name"]), str(pool.facts["arch"])
        self._what: dict[str, Any] | None = None
        #: which worker, once it has loaded the workload
        self._number: int | None = None

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Nothing yet: the worker opens the workload when it is asked for a figure."""
        self._what, self._number = describe(workload, case, baseline), None

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        if self._number is None:
            number = self._pool.ready()
            self._pool.ask(number, "load", self._what)
            self._number = number
        return self._pool.ask(self._number, method, *arguments, **named)

    def run(self, candidate: Candidate) -> Outcome:
        """See `core.Device`."""
        outcome: Outcome = self._ask("run", candidate)
        return outcome

    def remeasure(self, candidate: Candidate, **named: Any) -> Evaluation:
        """See `CudaDevice.remeasure`."""
        outcome: Evaluation = self._ask("remeasure", candidate, **named)
        return outcome

    def environment(self) -> dict[str, Any]:
        """The worker's."""
        return dict(self._pool.facts["environment"])

    def close(self) -> None:
        """Nothing: the pool is closed where it was made."""


@dataclass
class Island:
    """What the driver knows of one island."""

    seed: int
    budget: Budget
    run_id: int | None
    known: dict[str, Recorded] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    clock: float = 0.0
    best: Outcome | None = None
    found: Finished[Any] | None = None
    #: outcomes of earlier sittings
    replayed: int = 0

    @property
    def fraction(self) -> float:
        """Share of the budget spent, 0 to 1."""
        return self.budget.share(self.clock, len(self.known))

    def take(self, outcome: Outcome, took: float) -> bool:
        """Note an outcome; False for one that was known (a retry says again what was on its way)."""
        if outcome.digest in self.known:
            return False
        self.known[outcome.digest] = Recorded(outcome, took)
        self.clock += took
        self.verdicts["modelled" if outcome.verdict is None else outcome.verdict.value] += 1
        if outcome.cost is not None and outcome.cost < _cost(self.best):
            self.best = outcome
        return True


def _cost(outcome: Outcome | None) -> float:
    return float("inf") if outcome is None or outcome.cost is None else outcome.cost


@dataclass
class IslandsJob(Job):
    """A `Job` whose search is an island for every worker: their runs in the store, and one result of them.

    Attributes:
        pool: the workers.
        make_space: makes the space from the baseline on a worker.
    """

    pool: Pool | None = None
    make_space: Callable[[Kernel], Space[Any, Any]] | None = None
    _fresh: bool = False

    def spec(self) -> dict[str, Any]:
        """See `Job.spec`; how many islands there are is part of what makes two searches the same."""
        assert self.pool is not None
        return {**super().spec(), "islands": self.pool.size}

    def begin(self, fresh: bool) -> None:
        """See `Job.begin`; islands start over with it."""
        self._fresh = fresh
        super().begin(fresh)

    def search(
        self,
        progress: Callable[[Progress], None] | None,
        *,
        recorder: Recorder | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Finished[Any]:
        """All islands, to the end of their budgets."""
        assert self.pool is not None and self.make_space is not None
        islands = {f"island {index}": self._island(index) for index in range(self.pool.size)}
        subject = describe(self.workload, self.case, self.baseline)
        self.say(f"searching {self.budget} with {self.strategy.name} on {len(islands)} x {self.device.name}")
        begun, replayed = time.monotonic(), sum(island.replayed for island in islands.values())
        self.evaluator = kept = self._evaluator()

        def payload(island: Island) -> dict[str, Any]:
            return {
                "subject": subject,
                "strategy": self.strategy,
                "budget": island.budget,
                "seed": island.seed,
                "space": self.make_space,
                "known": dict(island.known),
            }

        def hear(name: str, event: Any) -> None:
            island = islands[name]
            if isinstance(event, Finished):
                island.found = event
                return
            if isinstance(event, ApprovedFailure):
                kept.failures.append(event)  # type: ignore[attr-defined]
                return
            recipe, outcome, took = event
            if not island.take(outcome, took):
                return
            if self.store is not None and island.run_id is not None:
                self.store.append(island.run_id, recipe, outcome, took)
            if progress is not None and island.best is not None:
                progress(standing(list(islands.values()), replayed, time.monotonic() - begun))

        complete = self.pool.run(
            search_island,
            {name: partial(payload, island) for name, island in islands.items()},
            hear,
            on_lost=lambda name, why: self.say(f"{name} lost its worker and waits for another: {why}"),
        )
        return self._merge(list(islands.values()), complete)

    def _island(self, index: int) -> Island:
        """An island with what the store holds of it."""
        assert self.pool is not None
        seed = int(np.random.SeedSequence([self.seed, index]).generate_state(1)[0])
        spec = {**self.spec(), "seed": seed, "island": index, "of": self.seed}
        island = Island(seed, share(self.budget, index, self.pool.size), self._begin(spec, seed, self._fresh))
        if self.store is not None and island.run_id is not None:
            for outcome, took in self.store.recorded(island.run_id):
                island.take(outcome, took)
        island.replayed = len(island.known)
        return island

    def _merge(self, islands: Sequence[Island], complete: bool) -> Finished[Any]:
        """One result. Islands take turns in it: their figures come from GPUs that may differ a little."""
        founds = [island.found for island in islands if island.found is not None]
        if not founds:
            raise SearchError(
                "the search was interrupted before any island could report", hint="run it again"
            )
        leaders: list[Found[Any]] = []
        for rank in range(HOME):
            leaders += [found.leaders[rank] for found in founds if rank < len(found.leaders)]
        if self.device.modelled:  # one model, so that figures may be compared as they are
            leaders.sort(key=lambda leader: (leader.cost, leader.candidate.digest))
        firsts = dict[str, Found[Any]]()
        for leader in leaders:
            firsts.setdefault(leader.candidate.digest, leader)
        distinct = list(firsts.values())
        reasons = {found.reason for found in founds}
        return Finished(
            distinct[0],
            founds[0].baseline,
            tuple(distinct[: max(SELECTION_LEADERS, len(founds))]),
            sum(found.evaluations for found in founds),
            # an island that moved walked its record of this sitting too
            sum(min(i.replayed, i.found.replayed) for i in islands if i.found is not None),
            max(found.seconds for found in founds),
            dict(sum((Counter(found.verdicts) for found in founds), Counter())),
            "interrupted" if not complete or "interrupted" in reasons else min(reasons),
        )


def share(budget: Budget, index: int, count: int) -> Budget:
    """An island's part of a budget: all of the seconds, an equal part of the evaluations (two at least: the
    baseline's is one)."""
    if budget.evaluations is None:
        return budget
    part = budget.evaluations // count + (1 if index < budget.evaluations % count else 0)
    return replace(budget, evaluations=max(part, 2))


def standing(islands: Sequence[Island], replayed: int, sitting: float) -> Progress:
    """How all islands together stand, `sitting` seconds after they began with `replayed` outcomes; some
    outcome is there."""
    total = sum(len(island.known) for island in islands)
    best = min((island.best for island in islands), key=_cost)
    assert best is not None
    rate = (total - replayed) / sitting if sitting > 0 else 0.0
    left = [seconds_left(i.budget, i.clock, len(i.known), rate / len(islands)) for i in islands]
    return Progress(
        max(island.clock for island in islands),
        total,
        replayed,
        rate,
        dict(sum((island.verdicts for island in islands), Counter())),
        best,
        sum(island.fraction for island in islands) / len(islands),
        max((seconds for seconds in left if seconds is not None), default=None),
    )
