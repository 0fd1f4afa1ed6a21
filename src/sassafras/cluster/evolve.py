"""`evolve` on a cluster: islands whose strategy, proposer, caps and record are the driver's.

An island is a thread of the driver. Its proposals are built on the cluster's CPUs and judged on one worker's
GPU. When that worker is lost, the candidate in flight is judged by its replacement, or by another worker
between that one's candidates where there is no room for a replacement; nothing is judged twice.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sassafras import search
from sassafras.core import Candidate, DeviceError, Outcome, SassafrasError
from sassafras.llm.evolve import Evolve
from sassafras.llm.job import SourceJob
from sassafras.llm.proposer import Proposer, Reply, Request
from sassafras.llm.source_space import SourceSpace
from sassafras.search import Finished, Progress, Recorded, Recorder
from sassafras.store.records import outcome_row, row_outcome

from .islands import Island, Islands, PoolDevice, pack, standing
from .payload import JobSubject, describe
from .pool import Pool
from .remote import DONE, FAILED, TRIES, WorkerLost, failure, interruptible

_TICK = 0.2
#: seconds that an island waits for its lost worker's replacement before it moves to another worker
PATIENCE = 30.0


class RemoteBuilder:
    """Builds sources, confined, on some CPU of the cluster; see `Pool.helper`."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._subject = JobSubject(described).__enter__()

    def build(self, source: Any, fp32: bool) -> tuple[str, Any]:
        """See `evaluate.source.build`."""
        from sassafras.evaluate.source import build

        subject = self._subject
        try:
            return DONE, build(source, subject.case, subject.baseline.arch, fp32_accumulation=fp32)
        except Exception as error:
            return FAILED, failure(error)


class IslandDevice(PoolDevice):
    """One worker's device, for the thread of one island; a lost worker's candidate is judged again.

    Args:
        pool, modelled: see `PoolDevice`.
        number: the worker.
        turns: a lock for every worker: a GPU judges one candidate at a time.
        over: set when the search is to end.
        say: told when the worker was lost, or does not answer, and where the island goes on.
    """

    def __init__(
        self,
        pool: Pool,
        modelled: bool,
        number: int,
        turns: Sequence[threading.Lock],
        over: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(pool)
        self.modelled = modelled
        self._mine, self._turns, self._over, self._say = number, turns, over, say
        self._loaded: Any = None

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        for _ in range(TRIES):
            number = self._answering(self._mine)
            if number != self._mine:
                self._say(f"worker {self._mine} does not answer, its island goes on with worker {number}")
                self._mine = number
            with self._turns[number]:
                try:
                    actor = self._pool.actor(number)
                    if self._loaded is not actor:
                        self._pool.ask(number, "load", self._what)
                        self._loaded = actor
                    return self._pool.ask(number, method, *arguments, **named)
                except WorkerLost as error:
                    self._pool.replace(number, actor)
                    last = error.what
                    self._say(f"worker {number} was lost: {last}")
        raise DeviceError(
            f"{TRIES} workers were lost running this; the last: {last}",
            where=f"island {self._mine}",
            hint="the candidate may be the cause: look at that node's memory and GPU log",
        )

    def _answering(self, number: int) -> int:
        """This worker once it answers, or after `PATIENCE` seconds any that does."""
        if not self._pool.answers(number, PATIENCE, self._over):
            while not self._over.is_set():
                for other in range(self._pool.size):
                    if self._pool.answers(other, _TICK, self._over):
                        return other
            raise WorkerLost("the search ended while its worker was lost", where=f"island {number}")
        return number


class OneAtATime:
    """A proposer that was not made for several threads, behind a lock."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer, self._lock = proposer, threading.Lock()

    @property
    def name(self) -> str:
        """The proposer's own name."""
        return self._proposer.name

    def propose(self, request: Request) -> Reply:
        """See `Proposer.propose`."""
        with self._lock:
            return self._proposer.propose(request)


class _Relay:
    """An island's record: what is known, and a way to the thread that holds the store."""

    def __init__(self, island: Island, say: Callable[[Any], None]) -> None:
        self._island, self._say = island, say

    def known(self, digest: str) -> Recorded | None:
        found = self._island.known.get(digest)
        return None if found is None else Recorded(row_outcome(found[0]), found[1])

    def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
        kept = threading.Event()
        self._say((self._island, dict(candidate.recipe), outcome, took, kept))
        kept.wait()  # an outcome is in the store before its strategy sees it
        return Recorded(outcome, took)


#: makes an island's strategy from its seed
MakeStrategy = Callable[[int], Evolve]


@dataclass
class SourceIslands(Islands, SourceJob):
    """A `SourceJob` whose search is an island for every worker of a pool.

    Attributes:
        make_strategy: an island's strategy, from its seed.
        whole: see `SourceSpace`.
    """

    make_strategy: MakeStrategy | None = None
    whole: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _turns: tuple[threading.Lock, ...] = ()

    def search(
        self,
        progress: Callable[[Progress], None] | None,
        *,
        recorder: Recorder | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Finished[Any]:
        """All islands, to the end of their budgets."""
        assert self.pool is not None and self.make_strategy is not None
        islands = self._islands()
        self._turns = tuple(threading.Lock() for _ in islands)
        self.say(f"searching {self.budget} with {self.strategy.name} on {len(islands)} x {self.device.name}")
        described = describe(self.workload, self.case, self.baseline)
        strategies = [self.make_strategy(island.seed) for island in islands]
        news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=self._walk, args=(island, strategy, described, news), daemon=True)
            for island, strategy in zip(islands, strategies, strict=True)
        ]
        for thread in threads:
            thread.start()
        complete = self._hear(islands, news, progress, stop)
        mine = self.strategy
        assert isinstance(mine, Evolve)
        mine.take(strategies)
        return self._merge(islands, complete)

    def _walk(
        self, island: Island, strategy: Evolve, described: Mapping[str, Any], news: queue.SimpleQueue[Any]
    ) -> None:
        """One island, in a thread of its own; the last thing it says is its result or its error."""
        from sassafras.evaluate.source import Built, SourceEvaluator

        assert self.pool is not None
        pool = self.pool
        try:
            builder = pool.helper(RemoteBuilder, described)

            def build(source: Any, fp32: bool) -> Built:
                made: Built = builder.ask("build", source, fp32)
                return made

            device = IslandDevice(
                pool,
                self.device.modelled,
                island.index,
                self._turns,
                self._over,
                lambda text: news.put((island, text)),
            )
            device.open(self.workload, self.case, self.baseline)
            judge = SourceEvaluator(device, self.workload, self.case, self.baseline, builder=build)
            space = SourceSpace(self.workload, self.case, self.baseline, judge, whole=self.whole)
            found = search.run(
                strategy,
                space,
                space,
                island.budget,
                seed=island.seed,
                recorder=_Relay(island, news.put),
                stop=self._over.is_set,
            )
            news.put((island, pack(found)))
        except BaseException as error:
            news.put((island, error))

    def _hear(
        self,
        islands: Sequence[Island],
        news: queue.SimpleQueue[Any],
        progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool] | None,
    ) -> bool:
        """Keep what islands say until all have ended; False when they were interrupted.

        Raises:
            SassafrasError: an island's error; the others were stopped first.
        """
        begun, new, running = time.monotonic(), 0, len(islands)
        failed: BaseException | None = None
        interrupted = False
        with interruptible():
            while running:
                try:
                    if stop is not None and stop():
                        interrupted = True
                        self._over.set()
                    island, *said = news.get(timeout=_TICK)
                    if len(said) == 4:
                        recipe, outcome, took, kept = said
                        if island.take(outcome_row(outcome), took) is not None:
                            new += 1
                            if self.store is not None and island.run_id is not None:
                                self.store.append(island.run_id, recipe, outcome, took)
                        if progress is not None and island.best is not None:
                            progress(standing(islands, new, time.monotonic() - begun))
                        kept.set()
                        continue
                    if isinstance(said[0], str):
                        self.say(said[0])
                        continue
                    running -= 1
                    if isinstance(said[0], BaseException):
                        failed = failed or said[0]
                        self._over.set()
                    else:
                        (island.found,) = said
                except queue.Empty:
                    continue
                except KeyboardInterrupt:
                    interrupted = True
                    self._over.set()
        if failed is not None and not (interrupted and isinstance(failed, (KeyboardInterrupt, WorkerLost))):
            if isinstance(failed, SassafrasError):
                raise failed
            raise DeviceError(f"an island ended: {type(failed).__name__}: {failed}") from failed
        return not interrupted
