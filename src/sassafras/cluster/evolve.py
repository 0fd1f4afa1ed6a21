"""`evolve` on a cluster: islands whose strategy, proposer, caps and record are the driver's.

An island is a thread of the driver. Its proposals are built on the cluster's CPUs and judged on one worker's
GPU. When that worker is lost, the candidate in flight is judged by its replacement, or by another worker
between that one's candidates where there is no room for a replacement; nothing is judged twice.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sassafras import search
from sassafras.core import DeviceError, SassafrasError
from sassafras.evaluate.source import Built, Source, SourceEvaluator, build
from sassafras.llm.evolve import Evolve
from sassafras.llm.job import SourceJob
from sassafras.llm.source_space import SourceSpace
from sassafras.search import Finished, Progress, Recorder

from .islands import Island, Islands, PoolDevice, Relay, Said, home
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
        #: what the driver's thread, which holds the store, is to do for the islands
        errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        failed: list[BaseException] = []
        running = len(islands)

        def ended(error: BaseException | None) -> None:
            nonlocal running
            running -= 1
            if error is not None:
                failed.append(error)
                self._over.set()

        def note(island: Island, said: Said, kept: threading.Event) -> None:
            try:
                self._note(islands, island, said, progress)
            finally:
                kept.set()

        def walk(island: Island, strategy: Evolve) -> None:
            def send(said: Said) -> None:
                kept = threading.Event()
                errands.put(partial(note, island, said, kept))
                kept.wait()  # an outcome is in the store before its strategy sees it

            def say(text: str) -> None:
                errands.put(partial(self.say, text))

            try:
                island.found = self._search(island, strategy, described, send, say)
                errands.put(partial(ended, None))
            except BaseException as error:
                errands.put(partial(ended, error))

        for island, strategy in zip(islands, strategies, strict=True):
            threading.Thread(target=walk, args=(island, strategy), daemon=True).start()
        interrupted = False
        with interruptible():
            while running:
                try:
                    if stop is not None and stop():
                        interrupted = True
                        self._over.set()
                    errands.get(timeout=_TICK)()
                except queue.Empty:
                    continue
                except KeyboardInterrupt:
                    interrupted = True
                    self._over.set()
        self.strategy.take(strategies)
        if failed and not (interrupted and isinstance(failed[0], (KeyboardInterrupt, WorkerLost))):
            if isinstance(failed[0], SassafrasError):
                raise failed[0]
            raise DeviceError(f"an island ended: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
        return self._merge(islands, not interrupted)

    def _search(
        self,
        island: Island,
        strategy: Evolve,
        described: Mapping[str, Any],
        send: Callable[[Said], None],
        say: Callable[[str], None],
    ) -> Finished[Any]:
        """One island, in a thread of its own."""
        assert self.pool is not None
        pool = self.pool
        builder = pool.helper(RemoteBuilder, described)

        def build(source: Source, fp32: bool) -> Built:
            made: Built = builder.ask("build", source, fp32)
            return made

        device = IslandDevice(pool, self.device.modelled, island.index, self._turns, self._over, say)
        device.open(self.workload, self.case, self.baseline)
        judge = SourceEvaluator(device, self.workload, self.case, self.baseline, builder=build)
        space = SourceSpace(self.workload, self.case, self.baseline, judge, whole=self.whole)
        return home(
            search.run(
                strategy,
                space,
                space,
                island.budget,
                seed=island.seed,
                recorder=Relay(island.known, send),
                stop=self._over.is_set,
            )
        )
