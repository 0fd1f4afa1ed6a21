"""Works shapes off: one worker process for each GPU, replaced when it dies, records in journals."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError, SassafrasError
from sassafras.cuda.environment import available

from ..build.cubins import build
from ..configs.fields import from_fields
from ..configs.registry import Instance
from ..problem.shape import Shape
from .faults import FaultyConfig
from .journal import Journal, faulty, records
from .report import brief
from .worker_client import WorkerClient

#: how often the workers of a GPU may die, with no candidate at fault, before the run is given up
_DEATHS = 25
Say = Callable[[str], None]


@dataclass(frozen=True)
class ShapeJob:
    """Shapes, each of which has to be in some journal of a stem.

    Attributes:
        folder, stem: of the journals.
        plan: see `worker.ShapeWorker`.
        shapes: names of shapes.
        say: is told how it goes.
        selections: shape -> what was selected for it, for a measurement.
        deadline: ``time.monotonic()`` after which no shape is begun.
        progress: say every so many shapes, 0 for never.
        in_order: shapes are begun in their order, not the longest first: a deadline cuts off a sample's end.
    """

    folder: Path
    stem: str
    plan: dict[str, Any]
    shapes: Sequence[str]
    say: Say
    selections: Mapping[str, dict[str, Any]]
    deadline: float | None
    progress: int
    in_order: bool

    @property
    def mode(self) -> str:
        """``select`` or ``measure``."""
        return str(self.plan["mode"])

    def left(self) -> list[str]:
        """Shapes that the journals lack, longest first unless in order: the last to end should be short."""
        found = records(self.folder, self.stem)
        missing = [text for text in self.shapes if text not in found]
        return missing if self.in_order else sorted(missing, key=lambda text: -Shape.parse(text).flop)

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


def prepare(cache: Path | None, say: Say, instances: Sequence[Instance]) -> None:
    """Have these kernels of ours compiled.

    Raises:
        DeviceError: there is no GPU.
        CompileError, ToolMissing: they cannot be built.
    """
    found, reason = available()
    if not found:
        raise DeviceError(f"the benchmark needs a GPU: {reason}", hint="--dry-run rehearses without one")
    begin = time.perf_counter()
    build(instances, cache)
    say(f"{len(instances)} kernels built or found in {time.perf_counter() - begin:.1f} s")


def work(job: ShapeJob, gpus: int) -> None:
    """Get a job done, or have its deadline passed; its shapes are dealt out to so many GPUs of this host.

    An interrupt, or an error of one GPU, ends the others after the shapes that they are at.

    Raises:
        DeviceError: workers die again and again.
        SassafrasError: a journal was written under other conditions.
    """
    left, faults, stop = job.left(), faulty(job.folder, job.stem), threading.Event()
    with ThreadPoolExecutor(gpus) as threads:
        runs = [_GpuRun(job, faults, index, gpus, stop) for index in range(min(gpus, len(left)))]
        try:
            list(threads.map(_GpuRun.work, runs, (left[index::gpus] for index in range(len(runs)))))
        finally:
            stop.set()


class _GpuRun:
    """A job on one GPU of several, which share what is found at fault (`faults`), and `stop`."""

    def __init__(
        self, job: ShapeJob, faults: dict[str, dict[str, Any]], index: int, gpus: int, stop: threading.Event
    ) -> None:
        self._run, self._faults, self._stop = job, faults, stop
        self._path = job.folder / f"{job.stem}.gpu{index}.jsonl"
        self._client = WorkerClient(job.plan, environment=_visible(index, gpus))
        self._journal: Journal | None = None

    def work(self, shapes: Sequence[str]) -> None:
        """Get the shapes done, or have the deadline passed. Errors as `work`."""
        run, begin = self._run, time.perf_counter()
        try:
            for number, text in enumerate(shapes, 1):
                if self._stop.is_set():
                    return
                if run.late():
                    run.say(f"{run.mode}: time is up after {number - 1} of {len(shapes)} shapes")
                    return
                record = self._record(text)
                self._add(record)
                if run.progress and number % run.progress == 0:
                    spent = time.perf_counter() - begin
                    run.say(f"{run.mode} {number}/{len(shapes)} {text} {brief(record)} {spent:.1f} s")
        except BaseException:
            self._stop.set()
            raise
        finally:
            self._client.close()

    def _add(self, line: dict[str, Any]) -> None:
        if self._journal is None:
            self._journal = Journal(self._path, self._client.header)
        self._journal.add(line)

    def _record(self, text: str) -> dict[str, Any]:
        """A shape's record. A selection that lost its worker is repeated, each candidate alone."""
        client, run = self._client, self._run
        trying = self._path.with_suffix(".trying")
        question: dict[str, Any] = {"shape": text, "selection": run.selections.get(text)}
        while True:
            record = client.ask({**question, "faulty": list(self._faults.values())})
            if not record.pop("lost", False):
                break
            why = record["error"]
            if self._stop.is_set():  # nothing is known of the shape: no record
                raise DeviceError(f"stopped in {text}: {why}", where=self._path.name)
            run.say(f"a worker was lost in {text}: {why}")
            if tried := trying.read_text() if "trying" in question else "":
                client.deaths -= 1
                config = json.loads(tried)
                self._faults[tried] = asdict(FaultyConfig(config, text, why))
                self._add(self._faults[tried])
                run.say(f"{from_fields(config).name} lost the context: its instance is not tried again")
            elif client.deaths > _DEATHS:
                raise DeviceError(f"the {run.mode} worker cannot finish: {why}", where=self._path.name)
            elif run.mode != "select" or "trying" in question:
                break
            trying.write_text("")
            question["trying"] = str(trying)
        trying.unlink(missing_ok=True)
        return record


def _visible(index: int, gpus: int) -> dict[str, str]:
    """The environment of the worker on one of several GPUs. Raises SassafrasError: fewer are visible."""
    if gpus == 1:
        return {}
    visible = list(filter(None, dict.fromkeys(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    if 0 < len(visible) < gpus:  # two workers on one GPU would be in each other's times
        what = f"{gpus} GPUs are asked for, CUDA_VISIBLE_DEVICES names {len(visible)}"
        raise SassafrasError(what, hint="--gpus takes as many as there are")
    return {"CUDA_VISIBLE_DEVICES": visible[index] if visible else str(index)}
