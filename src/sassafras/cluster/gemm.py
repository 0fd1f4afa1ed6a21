"""The HGEMM benchmark and sweep on a cluster: a shape is the unit of work, one shape a GPU at a time.

All contestants of a shape are timed on one GPU, by every process that measures it. Kernels are compiled on
the cluster's CPUs and sent to the nodes; records come home into one journal a stage. A shape whose worker is
lost is done again elsewhere, from its beginning, so that no row mixes two GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError, SassafrasError
from sassafras.core.files import write_whole
from sassafras.cuda.worker_process import Stopped
from sassafras.gemm.bench.journal import Journal
from sassafras.gemm.bench.report import brief
from sassafras.gemm.bench.runner import ShapeJobs
from sassafras.gemm.bench.worker_client import WorkerClient
from sassafras.gemm.build.cubins import cached_path, cubin, with_companions
from sassafras.gemm.configs.registry import INSTANCES, Instance, parse_instance

from .pool import Pool, Task
from .worker import Context

Say = Callable[[str], None]
#: processes that may die, a GPU, before the run is given up
_DEATHS = 25

# -- on the worker ------------------------------------------------------------------------------------------

#: this actor's processes on its GPU, by their plan, kept from shape to shape
_children: dict[str, WorkerClient] = {}
#: cubins that were written into this node's cache by this actor
_written: set[str] = set()


def work_shape(payload: Mapping[str, Any], context: Context) -> Iterator[Any]:
    """One shape, by every plan in turn; yields ``(number of the plan, header, record)`` each."""
    if payload["shape"] is None:  # known, or time is up
        return
    _receive(payload["cubins"])
    plans = {json.dumps(plan, sort_keys=True): plan for plan in payload["plans"]}
    for key in set(_children) - set(plans):
        _children.pop(key).close()
    question = {"shape": payload["shape"], "selection": payload["selection"]}
    where = place()
    for number, (key, plan) in enumerate(plans.items()):
        child = _children.setdefault(key, WorkerClient(plan, context.stop.is_set))
        try:
            record = child.ask(question)
        except Stopped:
            return
        except DeviceError as error:
            raise DeviceError(error.what, where=where, hint=error.hint) from error
        yield number, child.header, {**record, "on": where}


def place() -> str:
    """Which GPU this is, in words: host and number; the process where there is none."""
    import ray

    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU") or []
    return f"{socket.gethostname()} " + (f"GPU {gpus[0]}" if gpus else f"process {os.getpid()}")


def _receive(cubins: Any) -> None:
    """Write the kernels that were compiled elsewhere into this node's cache, once."""
    if cubins is None or cubins.hex() in _written:
        return
    import ray

    for name, data in ray.get(cubins).items():
        if not (path := cached_path(parse_instance(name))).is_file():
            write_whole(path, data)
    _written.add(cubins.hex())


def compiled(name: str) -> bytes:
    """The cubin of an instance by its name, on whichever CPU this runs."""
    return cubin(parse_instance(name))


# -- on the driver ------------------------------------------------------------------------------------------


class ClusterCrew:
    """A `gemm.bench.runner.Executor` on a pool of workers.

    Args:
        pool: the workers; a ``model`` pool rehearses on the modelled clock (``dry``).
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cubins: Any = None

    def environment(self) -> dict[str, Any]:
        """A worker's: all have the same kind of GPU."""
        return dict(self._pool.facts["environment"])

    def prepare(self, cache: Path | None, say: Say, instances: Sequence[Instance] = INSTANCES) -> None:
        """Compile on the cluster's CPUs what the driver's cache lacks; see `Executor.prepare`."""
        begin = time.perf_counter()
        every = with_companions(instances)
        missing = [i for i in every if not cached_path(i, cache).is_file()]
        for instance, data in zip(missing, self._pool.map(compiled, [i.name for i in missing]), strict=True):
            write_whole(cached_path(instance, cache), data)
        self._cubins = self._pool.share({i.name: cached_path(i, cache).read_bytes() for i in every})
        say(
            f"{len(missing)} kernels compiled on the cluster, {len(every) - len(missing)} found, "
            f"in {time.perf_counter() - begin:.1f} s"
        )

    def work(self, work: ShapeJobs) -> None:
        """See `Executor.work`; one shape is on one GPU for all jobs.

        Raises:
            KeyboardInterrupt: it was interrupted; what was measured is in the journals.
        """
        run = _Run(work, self._cubins, _DEATHS * self._pool.size)
        tasks = [
            Task(text, "sassafras.cluster.gemm:work_shape", lambda text=text: run.payload(text))  # type: ignore[misc]
            for text in run.left
        ]

        def lost(task: Task, why: str) -> None:
            work.say(f"{task.name} lost its worker and is done again elsewhere: {why}")

        if not self._pool.run(tasks, run.hear, on_lost=lost):
            work.say("interrupted: the same command goes on")
            raise KeyboardInterrupt
        if run.late:
            work.say(f"time is up: {len(run.late)} of {len(run.left)} shapes are left")


class _Run:
    """What the driver knows of one stage: journals, and records of shapes that are under way."""

    def __init__(self, work: ShapeJobs, cubins: Any, deaths: int) -> None:
        self._work, self._cubins, self._deaths = work, cubins, deaths
        # nodes keep kernels in a cache of their own
        self._plans = [{**plan, "cache": None} for _, plan in work.jobs]
        self._journals: list[Journal | None] = [None] * len(work.jobs)
        self._headers: list[dict[str, Any]] = [{}] * len(work.jobs)
        self._under_way: dict[str, dict[int, dict[str, Any]]] = {}
        self.left = work.left()
        self._open = set(self.left)
        #: shapes that were not begun, since time was up
        self.late: set[str] = set()

    def payload(self, text: str) -> dict[str, Any]:
        """What a worker needs for a shape; records of a worker that was lost in it are forgotten."""
        self._under_way[text] = {}
        nothing = text not in self._open
        if not nothing and self._work.late():
            self.late.add(text)
            nothing = True
        return {
            "shape": None if nothing else text,
            "plans": self._plans,
            "cubins": self._cubins,
            "selection": self._work.selections.get(text),
        }

    def hear(self, task: Task, event: Any) -> None:
        """Keep a record until its shape's are complete; then all go into the journals.

        Raises:
            DeviceError: workers disagree on the conditions, or too many processes died.
        """
        number, header, record = event
        self._agree(number, header, record["on"])
        say = self._work.say
        if record.pop("lost", False):
            self._deaths -= 1
            say(f"{record['on']}: {record['error']} in {task.name}")
            if self._deaths < 0:
                raise DeviceError("processes that measure die again and again", where=record["on"])
        under_way = self._under_way[task.name]
        under_way[number] = record
        if len(under_way) < len(self._plans) or task.name not in self._open:
            return
        for index, (stem, _) in enumerate(self._work.jobs):
            journal = self._journals[index]
            if journal is None:
                path = self._work.folder / f"{stem}.gpu_cluster.jsonl"
                journal = self._journals[index] = Journal(path, self._headers[index])
            journal.add(under_way[index])
        self._open.discard(task.name)
        if self._work.progress and len(self._open) % self._work.progress == 0:
            say(f"{self._work.mode} {task.name} on {record['on']} {brief(record)}, {len(self._open)} left")

    def _agree(self, number: int, header: dict[str, Any], where: str) -> None:
        known = self._headers[number]
        if not known:
            self._headers[number] = header
        elif known != header:
            keys = [key for key in sorted({*known, *header}) if known.get(key) != header.get(key)]
            raise DeviceError(
                "its figures belong to other conditions than those of the other nodes: "
                + ", ".join(f"{key} {header.get(key)}, not {known.get(key)}" for key in keys),
                where=where,
                hint="install the same versions on every node",
            )


@contextlib.contextmanager
def crew(cluster: str | None, workers: int | None, gpus: int, dry: bool) -> Iterator[ClusterCrew | None]:
    """The crew that a command asks for; None for this host's own GPUs.

    Raises:
        SassafrasError: options that contradict each other.
        ToolMissing, DeviceError: see `Pool`.
    """
    if cluster is None:
        if workers is not None:
            raise SassafrasError("--workers is for --cluster", hint="--gpus N on this host alone")
        yield None
        return
    if gpus != 1:
        raise SassafrasError("--gpus is for this host alone", hint="with --cluster: --workers N")
    with Pool(cluster, device="model" if dry else "cuda", workers=workers) as pool:
        yield ClusterCrew(pool)
