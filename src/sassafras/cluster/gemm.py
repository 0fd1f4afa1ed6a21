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
from sassafras.gemm.bench.journal import Journal
from sassafras.gemm.bench.journal import read as read_journal
from sassafras.gemm.bench.runner import records
from sassafras.gemm.bench.worker import brief
from sassafras.gemm.bench.worker_client import Stopped, WorkerClient
from sassafras.gemm.build.cubins import cached_path, cubin, with_companions
from sassafras.gemm.configs.registry import INSTANCES, Instance, parse_instance
from sassafras.gemm.problem.shape import Shape

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
        if "error" in record:
            record.setdefault("band", Shape.parse(payload["shape"]).band)
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
    """A `gemm.pool.Crew` on a pool of workers.

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
        """Compile on the cluster's CPUs what the driver's cache lacks; see `Crew.prepare`."""
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

    def work(
        self, folder: Path, jobs: Sequence[tuple[str, dict[str, Any]]], shapes: Sequence[str], say: Say
    ) -> None:
        """See `Crew.work`; one shape is on one GPU for all jobs.

        Raises:
            KeyboardInterrupt: it was interrupted; what was measured is in the journals.
        """
        run = _Run(folder, jobs, self._cubins, say, _DEATHS * self._pool.size)
        left = run.left(shapes)
        tasks = [
            Task(text, "sassafras.cluster.gemm:work_shape", lambda text=text: run.payload(text))  # type: ignore[misc]
            for text in left
        ]

        def lost(task: Task, why: str) -> None:
            say(f"{task.name} lost its worker and is done again elsewhere: {why}")

        if not self._pool.run(tasks, run.hear, on_lost=lost):
            say("interrupted: the same command goes on")
            raise KeyboardInterrupt
        if run.late:
            say(f"time is up: {len(run.late)} of {len(left)} shapes are left")


class _Run:
    """What the driver knows of one stage: journals, and records of shapes that are under way."""

    def __init__(
        self, folder: Path, jobs: Sequence[tuple[str, dict[str, Any]]], cubins: Any, say: Say, deaths: int
    ) -> None:
        self._folder, self._cubins, self._say, self._deaths = folder, cubins, say, deaths
        self._stems = [stem for stem, _ in jobs]
        first = jobs[0][1]
        self._deadline, self._every = first.get("deadline"), first.get("progress")
        self._mode = first["mode"]
        # nodes keep kernels in a cache of their own, and learn what was selected with the shape
        ours = ("deadline", "progress", "selections", "cache")
        self._plans = [
            {**{k: v for k, v in plan.items() if k not in ours}, "cache": None} for _, plan in jobs
        ]
        self._selections: dict[str, Any] = {}
        for file in first.get("selections", []):
            self._selections |= {r["shape"]: r for r in read_journal(Path(file))[1:] if "begun" not in r}
        self._journals: list[Journal | None] = [None] * len(jobs)
        self._headers: list[dict[str, Any]] = [{}] * len(jobs)
        self._under_way: dict[str, dict[int, dict[str, Any]]] = {}
        self._done: set[str] = set()
        self._total = 0
        #: shapes that were not begun, since time was up
        self.late: set[str] = set()

    def left(self, shapes: Sequence[str]) -> list[str]:
        """Shapes that some journal lacks, longest first: the last to end should be short."""
        known = [records(self._folder, stem) for stem in self._stems]
        self._done = {text for text in shapes if all(text in found for found in known)}
        left = [text for text in shapes if text not in self._done]
        self._total = len(left)
        return sorted(left, key=lambda text: -Shape.parse(text).flop)

    def payload(self, text: str) -> dict[str, Any]:
        """What a worker needs for a shape; records of a worker that was lost in it are forgotten."""
        self._under_way[text] = {}
        nothing = text in self._done
        if not nothing and self._deadline and time.time() > self._deadline:
            self.late.add(text)
            nothing = True
        return {
            "shape": None if nothing else text,
            "plans": self._plans,
            "cubins": self._cubins,
            "selection": self._selections.get(text),
        }

    def hear(self, task: Task, event: Any) -> None:
        """Keep a record until its shape's are complete; then all go into the journals.

        Raises:
            DeviceError: workers disagree on the conditions, or too many processes died.
        """
        number, header, record = event
        self._agree(number, header, record["on"])
        if str(record.get("error", "")).startswith("the worker ended"):
            self._deaths -= 1
            self._say(f"{record['on']}: {record['error']} in {task.name}")
            if self._deaths < 0:
                raise DeviceError("processes that measure die again and again", where=record["on"])
        under_way = self._under_way[task.name]
        under_way[number] = record
        if len(under_way) < len(self._stems) or task.name in self._done:
            return
        for index, stem in enumerate(self._stems):
            if self._journals[index] is None:
                path = self._folder / f"{stem}.gpu_cluster.jsonl"
                self._journals[index] = Journal(path, self._headers[index])
            journal = self._journals[index]
            assert journal is not None
            journal.finish(under_way[index])
        self._done.add(task.name)
        self._total -= 1
        if self._every and self._total % self._every == 0:
            self._say(f"{self._mode} {task.name} on {record['on']} {brief(record)}, {self._total} left")

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
