"""`Pool`: tasks on the workers of a Ray cluster, one worker a GPU, retried elsewhere when a worker is lost.

Ray places the actors, moves the bytes and notices dead nodes. What is here: which tasks are still to do, what
the driver has heard of each, and that a task whose worker is lost starts again from there.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sassafras import __version__
from sassafras.core import DeviceError

from .remote import (
    DONE,
    EVENT,
    FAILED,
    LOST,
    TRIES,
    Helper,
    WorkerLost,
    answered,
    connect,
    interruptible,
    short,
)
from .worker import ClusterWorker

#: seconds between looks at whether the run is to stop
_TICK = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one worker.

    Attributes:
        name: unique within a `Pool.run`, for messages.
        function: ``"module:function"``, called on the worker as ``function(payload, context)`` (see
            `worker.Context`); an iterator of events (plain data), which reach the driver in order.
        payload: makes the argument of each try, so that a retry begins with what is known by then.
    """

    name: str
    function: str
    payload: Callable[[], Mapping[str, Any]] = field(repr=False)


class Pool:
    """The workers of a cluster. A context manager.

    Args:
        address: ``"auto"`` (the cluster that this machine belongs to, or that ``RAY_ADDRESS`` names; a local
            one of this machine's GPUs where there is none), or ``HOST:PORT`` of a head node.
        device: ``"cuda"`` (a worker for every GPU) or ``"model"`` (a worker for every CPU: no GPU needed).
        workers: how many workers; None for as many as the cluster has room for now.
        programs: see `worker.ClusterWorker`.

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
        programs: bool = False,
    ) -> None:
        if device not in ("cuda", "model"):
            raise DeviceError(f"a cluster has no device {device!r}", hint="cuda or model")
        if workers is not None and workers < 1:
            raise DeviceError(f"a pool needs at least one worker, not {workers}")
        self.device, self._programs = device, programs
        self._helpers: list[Helper] = []
        self._ray, self._started = connect(address)
        self._resources = {"num_gpus": 1, "num_cpus": 1} if device == "cuda" else {"num_cpus": 1}
        room = int(self._ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 0))
        if room < 1:
            self.close()
            raise DeviceError(
                "the cluster has no GPU" if device == "cuda" else "the cluster has no CPU to spare",
                where=address,
                hint="start nodes with `ray start --address=HEAD:6379`, or (where taken) --device model",
            )
        self.size = min(workers or room, room)
        self._actors: list[Any] = [self._actor() for _ in range(self.size)]
        #: workers that were lost so far, whatever the cause
        self.lost = 0
        try:
            self.facts: dict[str, Any] = self._agree()
        except BaseException:
            self.close()
            raise

    def _actor(self) -> Any:
        options = {
            **self._resources,
            "max_concurrency": 2,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        return self._ray.remote(ClusterWorker).options(**options).remote(self.device, self._programs)

    def _agree(self) -> dict[str, Any]:
        """Every worker's facts, which must agree: figures of unlike GPUs must not meet in one search."""
        try:
            found = self._ray.get([actor.facts.remote() for actor in self._actors])
        except self._ray.exceptions.RayError as error:
            raise DeviceError(f"a worker of the cluster does not start: {short(error)}") from error
        for facts in found:
            if facts["sassafras"] != __version__:
                raise DeviceError(
                    f"a node has Sassafras {facts['sassafras']}, this machine {__version__}",
                    where=facts["host"],
                    hint="install the same version everywhere",
                )
            if facts["name"] != found[0]["name"]:
                raise DeviceError(
                    f"the cluster mixes {found[0]['name']} and {facts['name']}",
                    where=facts["host"],
                    hint="speed-ups of unlike GPUs cannot be compared; start a cluster of one kind",
                )
        return dict(found[0])

    # -- running ------------------------------------------------------------------------------------------

    def run(
        self,
        tasks: Iterable[Task],
        on_event: Callable[[Task, Any], None],
        *,
        on_lost: Callable[[Task, str], None] | None = None,
    ) -> bool:
        """Run every task to its end, each on one worker at a time; events are handled in this thread.

        A task whose worker is lost (node killed, process dead) is started again on another, with a fresh
        payload. Ctrl-C asks the tasks to stop and hears them out.

        Args:
            on_event: called with the task and what its function yielded; what it raises stops all tasks.
            on_lost: called when a task lost its worker.

        Returns:
            True when everything ran to its end, False when it was interrupted.

        Raises:
            SassafrasError: a task's function raised, or `on_event`; the others are stopped first.
            DeviceError: a task lost its worker `TRIES` times.
        """
        waiting: queue.SimpleQueue[tuple[Task, int]] = queue.SimpleQueue()
        news: queue.SimpleQueue[tuple[str, Task, int, Any]] = queue.SimpleQueue()
        left = 0
        for task in tasks:
            waiting.put((task, 1))
            left += 1
        over = threading.Event()
        threads = [
            threading.Thread(target=self._serve, args=(place, waiting, news, over), daemon=True)
            for place in range(self.size)
        ]
        for thread in threads:
            thread.start()
        interrupted = False
        failure: Exception | None = None
        try:
            with interruptible():
                while left:
                    try:
                        kind, task, tries, value = news.get(timeout=_TICK)
                        if kind == LOST and tries < TRIES and failure is None and not interrupted:
                            if on_lost is not None:
                                on_lost(task, value)
                            waiting.put((task, tries + 1))
                            continue
                        if kind == EVENT:
                            try:
                                on_event(task, value)
                                continue
                            except Exception as error:
                                value = error
                        else:
                            left -= 1
                        if kind == LOST:
                            value = DeviceError(
                                f"{tries} workers were lost running this; the last: {value}",
                                where=task.name,
                                hint="the task may be the cause: look at that node's memory and GPU log",
                            )
                        given_up = kind == DONE or (kind == LOST and interrupted)
                        if not given_up and failure is None:
                            failure = value
                            left -= self._stop(waiting)
                    except queue.Empty:
                        continue
                    except KeyboardInterrupt:
                        interrupted = True
                        left -= self._stop(waiting)
        finally:
            over.set()
        for thread in threads:
            thread.join(timeout=10 * _TICK)
        if failure is not None:
            raise failure
        return not interrupted

    def _stop(self, waiting: queue.SimpleQueue[tuple[Task, int]]) -> int:
        """Ask running tasks to end; returns how many were waiting and now never start."""
        dropped = 0
        while not waiting.empty():
            waiting.get()
            dropped += 1
        for actor in self._actors:
            actor.stop.remote()
        return dropped

    def _serve(
        self,
        place: int,
        waiting: queue.SimpleQueue[tuple[Task, int]],
        news: queue.SimpleQueue[tuple[str, Task, int, Any]],
        over: threading.Event,
    ) -> None:
        """One thread a worker: take a task, pass on what it says, replace the worker when it is lost."""
        ready = False
        while not over.is_set():
            # a lost worker may not have found a place yet: it must not hold a task
            if not ready and not (ready := self.answers(place, math.inf, over)):
                return
            try:
                task, tries = waiting.get(timeout=_TICK)
            except queue.Empty:
                continue
            try:
                payload = dict(task.payload())
            except Exception as error:
                news.put((FAILED, task, tries, error))
                continue
            actor = self._actors[place]
            answer: tuple[str, Any] = (LOST, "the worker's answer broke off")
            try:
                for reference in actor.run.options(num_returns="streaming").remote(task.function, payload):
                    kind, value = self._ray.get(reference)
                    if kind == EVENT:
                        news.put((EVENT, task, tries, value))
                    else:
                        answer = kind, value
            except self._ray.exceptions.RayError as error:
                answer = (LOST, short(error))
            if answer[0] == LOST:
                self.replace(place, actor)
                ready = False
            news.put((answer[0], task, tries, answer[1]))

    def actor(self, number: int) -> Any:
        """The actor that is this worker now."""
        return self._actors[number]

    def replace(self, number: int, lost: Any) -> None:
        """Another actor in place of one that was lost, wherever Ray finds room, now or when a node joins."""
        if self._actors[number] is lost:
            self.lost += 1
            # it may be cut off rather than dead: what it still does must not go on beside the retry
            self._ray.kill(lost, no_restart=True)
            self._actors[number] = self._actor()

    def answers(self, number: int, seconds: float, over: threading.Event) -> bool:
        """Whether a worker answers within so long; a lost one may wait for a node. False also when `over`
        was set."""
        asked = self._actors[number].facts.remote()
        until = time.monotonic() + seconds
        while not over.is_set():
            if self._ray.wait([asked], timeout=min(_TICK, seconds))[0]:
                try:
                    self._ray.get(asked)
                except self._ray.exceptions.RayError:
                    self.replace(number, self._actors[number])
                    asked = self._actors[number].facts.remote()
                    continue
                return True
            if time.monotonic() > until:
                return False
        return False

    def helper(self, made: Callable[..., Any], *arguments: Any) -> Helper:
        """An actor of that class on some CPU of the cluster, and another when its node is lost.

        Where no CPU is left beside those of the workers it shares theirs.
        """
        room = 1 if self.spare_cpus() > len(self._helpers) else 0
        remote = self._ray.remote(made).options(num_cpus=room, scheduling_strategy="SPREAD")
        self._helpers.append(Helper(self._ray, lambda: remote.remote(*arguments)))
        return self._helpers[-1]

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

    # -- the rest -----------------------------------------------------------------------------------------

    def ask(self, number: int, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of a worker's device; see `worker.ClusterWorker.device_call` and `ready`.

        Raises:
            WorkerLost: the worker was lost.
            DeviceError: the device says so.
        """
        try:
            kind, value = self._ray.get(self._actors[number].device_call.remote(method, arguments, named))
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(f"the cluster's worker was lost: {short(error)}", where=method) from error
        if kind == FAILED:
            raise value
        return value

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """`function` of every item on the cluster's CPUs, in order: for compilation. Ray retries lost ones.

        Without a CPU beside those of the workers it happens here.

        Args:
            function: of a module that every node has.

        Raises:
            SassafrasError: an item failed; what the function raised.
            DeviceError: a node that cannot be replaced was lost.
        """
        if self.spare_cpus() < 1:
            return [function(item) for item in items]
        remote = self._ray.remote(answered).options(num_cpus=1, max_retries=3)
        try:
            answers = self._ray.get([remote.remote(function, item) for item in items])
        except self._ray.exceptions.RayError as error:
            raise DeviceError(f"work on the cluster's CPUs failed: {short(error)}") from error
        for kind, value in answers:
            if kind == FAILED:
                raise value
        return [value for _, value in answers]

    def spare_cpus(self) -> int:
        """CPUs of the cluster that no worker holds."""
        return int(self._ray.cluster_resources().get("CPU", 0)) - self.size

    def share(self, value: Any) -> Any:
        """A reference to a value that workers get with ``ray.get``, sent to each node once."""
        return self._ray.put(value)

    def close(self) -> None:
        """Give the workers back; a cluster that we started ends. Safe to call twice."""
        if self._ray is None:
            return
        for actor in [*getattr(self, "_actors", []), *(helper.actor for helper in self._helpers)]:
            self._ray.kill(actor, no_restart=True)
        self._actors, self._helpers = [], []
        if self._started:
            self._ray.shutdown()
        self._ray = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
