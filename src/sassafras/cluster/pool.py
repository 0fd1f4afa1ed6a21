"""`Pool`: tasks on the workers of a Ray cluster, one worker a GPU, retried elsewhere when a worker is lost.

Ray places the actors, moves the bytes and notices dead nodes. What is here: which tasks are still to do, what
the driver has heard of each, and that a task whose worker is lost starts again from there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sassafras import __version__
from sassafras.core import DeviceError

from .remote import EVENT, FAILED, LOST, WorkerLost, connect, interruptible, short
from .worker import ClusterWorker, Work

#: workers that one task may lose before it is taken for the cause
TRIES = 4
#: seconds that workers may take to start before their absence is said
START_S = 30.0
#: seconds between looks at whether the run is to stop
_TICK = 0.2
#: seconds that a thread has to notice that its worker was killed
_END_S = 10.0
#: a task that is to be done, by name, and which try it is
_Waiting = queue.SimpleQueue[tuple[str, int]]
#: kind of news, task, try, and the event, the error or the reason
_News = queue.SimpleQueue[tuple[str, str, int, Any]]
#: what makes a try's payload, by task
Payloads = Mapping[str, Callable[[], Mapping[str, Any]]]


@dataclass
class _Turn:
    """One `Pool.run`.

    Attributes:
        token: names it to the workers, which a stop may reach ahead of the task that it is for.
        over: set when its threads are to end.
        why: why the last worker cannot be replaced.
    """

    work: Work
    payloads: Payloads
    waiting: _Waiting = field(default_factory=_Waiting)
    news: _News = field(default_factory=_News)
    over: threading.Event = field(default_factory=threading.Event)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    why: Exception = field(default_factory=lambda: DeviceError("all workers of the cluster were lost"))


def _like(facts: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Raises DeviceError unless a worker has our version, and the GPU of the first worker."""
    if facts["sassafras"] != __version__:
        raise DeviceError(
            f"a node has Sassafras {facts['sassafras']}, this machine {__version__}",
            where=facts["host"],
            hint="install the same version everywhere",
        )
    if facts["name"] != first["name"]:
        raise DeviceError(
            f"the cluster mixes {first['name']} and {facts['name']}",
            where=facts["host"],
            hint="speed-ups of unlike GPUs cannot be compared; start a cluster of one kind",
        )


class Pool:
    """The workers of a cluster. A context manager.

    Args:
        address: ``"auto"`` (the cluster that this machine belongs to, or that ``RAY_ADDRESS`` names; a local
            one of this machine's GPUs where there is none), or ``HOST:PORT`` of a head node.
        device: ``"cuda"`` (a worker for every GPU) or ``"model"`` (a worker for every CPU: no GPU needed).
        workers: how many workers; None for as many as the cluster has room for.
        say: called with a line of text where there are fewer workers, or they wait for other work.

    Raises:
        ToolMissing: Ray is not installed here.
        DeviceError: no such cluster, it has no room for a worker, or a worker runs another version of
            Sassafras or has another GPU than the rest.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        device: str = "cuda",
        workers: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        if device not in ("cuda", "model"):
            raise DeviceError(f"a cluster has no device {device!r}", hint="cuda or model")
        if workers is not None and workers < 1:
            raise DeviceError(f"a pool needs at least one worker, not {workers}")
        self.device = device
        self._actors: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._ray, self._started = connect(address)
        try:
            room = int(self._ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 0))
            if room < 1:
                raise DeviceError(
                    "the cluster has no GPU" if device == "cuda" else "the cluster has no CPU to spare",
                    where=address,
                    hint="start nodes with `ray start --address=HEAD:6379`, or (where taken) --device model",
                )
            self.size = min(workers or room, room)
            if self.size < (workers or 0):
                say(f"{self.size} workers, not {workers}: the cluster has room for no more")
            self._actors = [self._actor() for _ in range(self.size)]
            self.facts: dict[str, Any] = self._agree(say)
        except BaseException:
            self.close()
            raise

    def _actor(self) -> Any:
        options = {"num_cpus": 1, "max_concurrency": 2, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        if self.device == "cuda":
            options["num_gpus"] = 1
        return self._ray.remote(ClusterWorker).options(**options).remote(self.device)

    def _agree(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Every worker's facts, which must agree: figures of unlike GPUs must not meet in one search."""
        try:
            asked = [actor.facts.remote() for actor in self._actors]
            _, absent = self._ray.wait(asked, num_returns=len(asked), timeout=START_S)
            if absent:
                say(
                    f"waiting for {len(absent)} of {len(asked)} workers: other work may hold the cluster "
                    "(see `ray status`; --workers N takes fewer)"
                )
            found = self._ray.get(asked)
        except self._ray.exceptions.RayError as error:
            raise DeviceError(f"a worker of the cluster does not start: {short(error)}") from error
        for facts in found:
            _like(facts, found[0])
        return dict(found[0])

    # -- running ------------------------------------------------------------------------------------------

    def run(
        self,
        work: Work,
        payloads: Payloads,
        hear: Callable[[str, Any], None],
        *,
        on_lost: Callable[[str, str], None],
    ) -> bool:
        """Run every task to its end, each on one worker at a time; events are handled in this thread.

        A task whose worker is lost (node killed, process dead) is started again on another, with a fresh
        payload. Ctrl-C asks the tasks to stop and hears them out; a second one acts as it always did.

        Args:
            work: a function of a module that every node has.
            payloads: by the task's name, what makes the payload of each try.
            hear: called with the task and what `work` yielded; what it raises stops all tasks.
            on_lost: called with a task that lost its worker, and why.

        Returns:
            True when everything ran to its end, False when it was interrupted.

        Raises:
            SassafrasError: `work` raised, or `hear`; the other tasks are stopped first.
            DeviceError: a task lost its worker `TRIES` times, or all workers are lost for good.
        """
        turn = _Turn(work, payloads)
        for name in payloads:
            turn.waiting.put((name, 1))
        left = set(payloads)
        threads = self._threads = [
            threading.Thread(target=self._serve, args=(number, turn), daemon=True)
            for number in range(self.size)
        ]
        for thread in threads:
            thread.start()
        failure: Exception | None = None
        stopped = False
        try:
            with interruptible() as asked:
                while left:
                    if (asked.is_set() or failure is not None) and not stopped:
                        stopped, dropped = True, self._stop(turn)
                        left -= dropped
                        continue
                    try:
                        kind, name, tries, value = turn.news.get(timeout=_TICK)
                    except queue.Empty:
                        if not any(thread.is_alive() for thread in threads) and turn.news.empty():
                            raise failure or turn.why from None
                        continue
                    try:
                        if kind == EVENT:
                            hear(name, value)
                        elif kind != LOST or stopped:
                            left.discard(name)
                        elif tries < TRIES:
                            turn.waiting.put((name, tries + 1))
                            on_lost(name, value)
                        else:
                            left.discard(name)
                            kind = FAILED
                            value = DeviceError(
                                f"{tries} workers were lost running this; the last: {value}",
                                where=name,
                                hint="the task may be the cause: look at that node's memory and GPU log",
                            )
                        if kind == FAILED:
                            failure = failure or value
                    except KeyboardInterrupt:  # raised by what hears, or a second signal
                        if asked.is_set():
                            raise
                        asked.set()
                    except Exception as error:
                        failure = failure or error
                interrupted = asked.is_set()
        finally:
            turn.over.set()
        for thread in threads:
            thread.join(timeout=10 * _TICK)
        if failure is not None:
            raise failure
        return not interrupted

    def _stop(self, turn: _Turn) -> set[str]:
        """Ask running tasks to end; returns which were waiting and now never start."""
        dropped = set()
        with contextlib.suppress(queue.Empty):
            while True:
                dropped.add(turn.waiting.get_nowait()[0])
        for actor in self._actors:
            actor.stop.remote(turn.token)
        return dropped

    def _serve(self, number: int, turn: _Turn) -> None:
        """One thread a worker: take a task, pass on what it says, replace the worker when it is lost."""
        try:
            # a lost worker may not have found a place yet: it must not hold a task
            while not turn.over.is_set() and self._comes(number, turn.over):
                if not self._work(number, turn):
                    return
        except Exception as error:
            turn.why = error

    def _work(self, number: int, turn: _Turn) -> bool:
        """Tasks until the worker is lost; False where all are over."""
        ray = self._ray
        while not turn.over.is_set():
            try:
                name, tries = turn.waiting.get(timeout=_TICK)
            except queue.Empty:
                continue
            answer: tuple[str, Any] = (LOST, "the worker's answer broke off")
            try:
                payload = dict(turn.payloads[name]())
                run = self._actors[number].run.options(num_returns="streaming")
                for reference in run.remote(turn.work, payload, turn.token):
                    kind, value = ray.get(reference)
                    if kind == EVENT:
                        turn.news.put((EVENT, name, tries, value))
                    else:
                        answer = kind, value
            except ray.exceptions.RayError as error:
                answer = (LOST, short(error))
            except Exception as error:  # the payload cannot be made, or cannot travel
                answer = (FAILED, error)
            lost = answer[0] == LOST
            try:
                if lost and not turn.over.is_set():
                    self._replace(number)
            finally:
                turn.news.put((answer[0], name, tries, answer[1]))
            if lost:
                return True
        return False

    def _replace(self, number: int) -> None:
        """Another actor in place of a lost one, wherever Ray finds room, now or when a node joins."""
        # it may be cut off rather than dead: what it still does must not go on beside the retry
        self._ray.kill(self._actors[number], no_restart=True)
        self._actors[number] = self._actor()

    def _comes(self, number: int, over: threading.Event) -> bool:
        """Wait until a worker answers that is like the others; a lost one may wait for a node. False once
        `over` is set.

        Raises:
            DeviceError: none of `TRIES` workers that came can take its place.
        """
        tries = 1
        asked = self._actors[number].facts.remote()
        while not over.is_set():
            if self._ray.wait([asked], timeout=_TICK)[0]:
                try:
                    _like(self._ray.get(asked), self.facts)
                    return True
                except (self._ray.exceptions.RayError, DeviceError) as error:
                    if tries == TRIES:
                        why = f"no worker takes the place of a lost one: {short(error)}"
                        raise DeviceError(why, hint="the same command resumes") from error
                    tries += 1
                    self._replace(number)
                    asked = self._actors[number].facts.remote()
        return False

    # -- one worker's device ------------------------------------------------------------------------------

    def ready(self) -> int:
        """The number of a worker that answers; of lost ones some may wait for a node for ever.

        Raises:
            DeviceError: all are lost.
        """
        asked = {actor.facts.remote(): number for number, actor in enumerate(self._actors)}
        while asked:
            (first,), _ = self._ray.wait(list(asked), num_returns=1)
            number = asked.pop(first)
            try:
                self._ray.get(first)
            except self._ray.exceptions.RayError:
                continue
            return number
        raise DeviceError("all workers of the cluster were lost", hint="the same command resumes")

    def ask(self, number: int, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of a worker's device; see `worker.ClusterWorker.device_call` and `ready`.

        Raises:
            WorkerLost: the worker was lost.
            DeviceError: the device says so.
        """
        try:
            kind, value = self._ray.get(self._actors[number].device_call.remote(method, arguments, named))
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(
                f"the cluster's worker was lost: {short(error)}",
                where=method,
                hint="the same command resumes",
            ) from error
        if kind == FAILED:
            raise value
        return value

    def close(self) -> None:
        """Give the workers back; a cluster that we started ends. Safe to call twice."""
        if self._ray is None:
            return
        for actor in self._actors:
            self._ray.kill(actor, no_restart=True)
        for thread in self._threads:  # of a run that was broken off: its calls would start Ray again
            thread.join(timeout=_END_S)
        self._actors = []
        if self._started:
            self._ray.shutdown()
        self._ray = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
