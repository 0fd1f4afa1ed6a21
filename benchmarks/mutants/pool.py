"""Worker processes whose jobs report on the way and end at a time, by themselves or killed.

`concurrent.futures` waits for a job however long it takes, and a job that was killed has said nothing. Here a
job sends what it has so far, and whatever is running at the end is killed by its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

Say = Callable[[Any], None]


@dataclass
class Job:
    """``function(say, *arguments)`` in a worker process; what it says is the parent's at once.

    Attributes:
        key: the parent's name for it.
        function: a module's function; what it returns is said last.
        limit_s: the job is killed when it has said nothing for so long.
    """

    key: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    limit_s: float


@dataclass
class Event:
    """What became known of a job: `kind` is "said", "done", "failed", "killed" or, of no job, "tick"."""

    kind: str
    key: Any = None
    value: Any = None


class _Worker:
    def __init__(self, setup: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, setup, arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.heard = 0.0

    def begin(self, job: Job) -> None:
        self.job, self.heard = job, time.monotonic()
        self.pipe.send((job.function, job.arguments))

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Pool:
    """So many worker processes.

    Args:
        workers: how many.
        setup, arguments: called in each worker before its first job.
    """

    def __init__(
        self, workers: int, setup: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
    ) -> None:
        self._setup = (setup, arguments)
        self._workers = [_Worker(*self._setup) for _ in range(workers)]

    def run(self, following: Callable[[], Job | None], until: float) -> Iterator[Event]:
        """Run jobs until there are no more or until `until` (``time.time()``), then kill what still runs.

        Args:
            following: gives the next job, None where there is none; called when a worker is free.

        Yields: what jobs say, in the order in which it is heard, and ticks, one a second or more.
        """
        try:
            yield from self._run(following, until)
        finally:
            self.close()

    def _run(self, following: Callable[[], Job | None], until: float) -> Iterator[Event]:
        more = True
        while True:
            for worker in self._workers:
                if more and worker.job is None and time.time() < until:
                    job = following()
                    more = job is not None
                    if job is not None:
                        worker.begin(job)
            busy = {w.pipe: w for w in self._workers if w.job is not None}
            if not busy or time.time() >= until:
                break
            ready = wait(list(busy), timeout=min(1.0, max(0.0, until - time.time())))
            for pipe in ready:
                yield self._heard(busy[pipe])  # type: ignore[index]
            for worker in busy.values():
                if worker.job is not None and time.monotonic() - worker.heard > worker.job.limit_s:
                    yield self._replaced(worker, "killed", "time")
            yield Event("tick")
        for worker in self._workers:
            if worker.job is not None:
                yield Event("killed", worker.job.key, "time")

    def _heard(self, worker: _Worker) -> Event:
        assert worker.job is not None
        key = worker.job.key
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            return self._replaced(worker, "failed", "its process died")
        worker.heard = time.monotonic()
        if kind != "said":
            worker.job = None
        return Event(kind, key, value)

    def _replaced(self, worker: _Worker, kind: str, why: str) -> Event:
        assert worker.job is not None
        key = worker.job.key
        worker.kill()
        self._workers[self._workers.index(worker)] = _Worker(*self._setup)
        return Event(kind, key, why)

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
        self._workers = []


def _serve(pipe: Connection, setup: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    """A worker's life: it ends with its parent."""
    try:
        if setup is not None:
            setup(*arguments)
        while True:
            function, given = pipe.recv()
            try:
                made = ("done", function(lambda value: pipe.send(("said", value)), *given))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:  # one job's trouble must not cost the others
                made = ("failed", f"{type(error).__name__}: {error}"[:300])
            pipe.send(made)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
