"""`Pool`: tasks on the workers of a Ray cluster, one worker a GPU, retried elsewhere when a worker is lost.

Ray places the actors, moves the bytes and notices dead nodes. What is here: which tasks are still to do, what
the driver has heard of each, and that a task whose worker is lost starts again from there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sassafras import __version__
from sassafras.core import DeviceError

from .remote import DONE, EVENT, FAILED, LOST, WorkerLost, connect, interruptible, short
from .worker import ClusterWorker, Work

#: workers that one task may lose before it is taken for the cause
TRIES = 4
#: seconds between looks at whether the run is to stop
_TICK = 0.2
#: a task that is to be done, by name, and which try it is
_Waiting = queue.SimpleQueue[tuple[str, int]]
#: kind of news, task, try, and the event, the error or the reason
_News = queue.SimpleQueue[tuple[str, str, int, Any]]
#: what makes a try's payload, by task
Payloads = Mapping[str, Callable[[], Mapping[str, Any]]]


class Pool:
    """The workers of a cluster. A context manager.

    Args:
        address: ``"auto"`` (the cluster that this machine belongs to, or that ``RAY_ADDRESS`` names; a local
            one of this machine's GPUs where there is none), or ``HOST:PORT`` of a head node.
        device: ``"cuda"`` (a worker for every GPU) or ``"model"`` (a worker for every CPU: no GPU needed).
        workers: how many workers; None for as many as the cluster has room for now.

    Raises:
        ToolMissing: Ray is not installed here.
        DeviceError: no such cluster, it has no room for a worker, or a worker runs another version of
            Sassafras or has another GPU than the rest.
    """

    def __init__(self, address: str = "auto", *, device: str = "cuda", workers: int | None = None) -> None:
        if device not in ("cuda", "model"):
            raise DeviceError(f"a cluster has no device {device!r}", hint="cuda or model")
        if workers is not None and workers < 1:
            raise DeviceError(f"a pool needs at least one worker, not {workers}")
        self.device = device
        self._actors: list[Any] = []
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
            self._actors = [self._actor() for _ in range(self.size)]
            self.facts: dict[str, Any] = self._agree()
        except BaseException:
            self.close()
            raise

    def _actor(self) -> Any:
        options = {"num_cpus": 1, "max_concurrency": 2, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        if self.device == "cuda":
            options["num_gpus"] = 1
        return self._ray.remote(ClusterWorker).options(**options).remote(self.device)

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
        work: Work,
        payloads: Payloads,
        hear: Callable[[str, Any], None],
        *,
        on_lost: Callable[[str, str], None],
    ) -> bool:
        """Run every task to its end, each on one worker at a time; events are handled in this thread.

        A task whose worker is lost (node killed, process dead) is started again on another, with a fresh
        payload. Ctrl-C asks the tasks to stop and hears them out.

        Args:
            work: a function of a module that every node has.
            payloads: by the task's name, what makes the payload of each try.
            hear: called with the task and what `work` yielded; what it raises stops all tasks.
            on_lost: called with a task that lost its worker, and why.

        Returns:
            True when everything ran to its end, False when it was interrupted.

        Raises:
            SassafrasError: `work` raised, or `hear`; the other tasks are stopped first.
            DeviceError: a task lost its worker `TRIES` times.
        """
        waiting, news, over = _Waiting(), _News(), threading.Event()
        for name in payloads:
            waiting.put((name, 1))
        left = len(payloads)
        common = (work, payloads, waiting, news, over)
        threads = [
            threading.Thread(target=self._serve, args=(number, *common), daemon=True)
            for number in range(self.size)
        ]
        for thread in threads:
            thread.start()
        interrupted = False
        failure: Exception | None = None
        try:
            with interruptible():
                while left:
                    try:
                        kind, name, tries, value = news.get(timeout=_TICK)
                        stopping = interrupted or failure is not None
                        if kind == EVENT:
                            try:
                                hear(name, value)
                                continue
                            except Exception as error:
                                kind, value = FAILED, error
                                left += 1  # the task itself has still to end
                        elif kind == LOST and tries < TRIES and not stopping:
                            on_lost(name, value)
                            waiting.put((name, tries + 1))
                            continue
                        elif kind == LOST:
                            kind = DONE if stopping else FAILED
                            value = DeviceError(
                                f"{tries} workers were lost running this; the last: {value}",
                                where=name,
                                hint="the task may be the cause: look at that node's memory and GPU log",
                            )
                        left -= 1
                        if kind == FAILED and failure is None:
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

    def _stop(self, waiting: _Waiting) -> int:
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
        number: int,
        work: Work,
        payloads: Payloads,
        waiting: _Waiting,
        news: _News,
        over: threading.Event,
    ) -> None:
        """One thread a worker: take a task, pass on what it says, replace the worker when it is lost."""
        ready = False
        while not over.is_set():
            # a lost worker may not have found a place yet: it must not hold a task
            if not ready and not (ready := self._comes(number, over)):
                return
            try:
                name, tries = waiting.get(timeout=_TICK)
            except queue.Empty:
                continue
            answer: tuple[str, Any] = (LOST, "the worker's answer broke off")
            try:
                payload = dict(payloads[name]())
                run = self._actors[number].run.options(num_returns="streaming")
                for reference in run.remote(work, payload):
                    kind, value = self._ray.get(reference)
                    if kind == EVENT:
                        news.put((EVENT, name, tries, value))
                    else:
                        answer = kind, value
            except self._ray.exceptions.RayError as error:
                answer = (LOST, short(error))
            except Exception as error:  # the payload cannot be made, or cannot travel
                answer = (FAILED, error)
            if answer[0] == LOST:
                self._replace(number)
                ready = False
            news.put((answer[0], name, tries, answer[1]))

    def _replace(self, number: int) -> None:
        """Another actor in place of a lost one, wherever Ray finds room, now or when a node joins."""
        # it may be cut off rather than dead: what it still does must not go on beside the retry
        self._ray.kill(self._actors[number], no_restart=True)
        self._actors[number] = self._actor()

    def _comes(self, number: int, over: threading.Event) -> bool:
        """Wait until a worker answers; a lost one may wait for a node. False once `over` is set."""
        asked = self._actors[number].facts.remote()
        while not over.is_set():
            if self._ray.wait([asked], timeout=_TICK)[0]:
                try:
                    self._ray.get(asked)
                    return True
                except self._ray.exceptions.RayError:
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
            raise WorkerLost(f"the cluster's worker was lost: {short(error)}", where=method) from error
        if kind == FAILED:
            raise value
        return value

    def close(self) -> None:
        """Give the workers back; a cluster that we started ends. Safe to call twice."""
        if self._ray is None:
            return
        for actor in self._actors:
            self._ray.kill(actor, no_restart=True)
        self._actors = []
        if self._started:
            self._ray.shutdown()
        self._ray = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
