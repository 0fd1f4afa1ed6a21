"""Worker processes, one a GPU: watched, replaced when they die or hang, resumed from their journals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from sassafras.core import DeviceError

from ..build.cubins import build
from ..configs.registry import INSTANCES, Instance
from ..problem.shape import Shape
from .faults import FaultyConfig
from .journal import Journal
from .journal import read as read_journal
from .worker_client import STALL
from .worker_client import environment as _inherited

#: how often the workers of a GPU may die, with nobody found guilty, before the run is given up
_DEATHS = 25
Say = Callable[[str], None]


class Executor(Protocol):
    """Who works shapes off, and on how many GPUs: this host's own, or a cluster's."""

    def environment(self) -> dict[str, Any] | None:
        """What the machines that measure say of themselves; None where it is this one."""
        ...

    def prepare(self, cache: Path | None, say: Say, instances: Sequence[Instance] = INSTANCES) -> None:
        """Have these kernels of ours compiled where they will be needed.

        Raises:
            DeviceError: there is no GPU.
            CompileError, ToolMissing: they cannot be built.
        """
        ...

    def work(
        self, folder: Path, jobs: Sequence[tuple[str, dict[str, Any]]], shapes: Sequence[str], say: Say
    ) -> None:
        """Have every shape in some journal of every job's stem, or the deadline passed.

        Args:
            jobs: (stem, plan) pairs; see `work`.

        Raises:
            DeviceError: workers die again and again.
            SassafrasError: a journal was written under other conditions.
        """
        ...


class Local:
    """The GPUs of this host, a process on each.

    Args:
        gpus: how many.
    """

    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus

    def environment(self) -> None:
        """See `Executor.environment`."""

    def prepare(self, cache: Path | None, say: Say, instances: Sequence[Instance] = INSTANCES) -> None:
        """See `Executor.prepare`."""
        from sassafras.cuda.environment import available

        found, reason = available()
        if not found:
            raise DeviceError(f"the benchmark needs a GPU: {reason}", hint="--dry-run rehearses without one")
        begin = time.perf_counter()
        build(instances, cache)
        say(f"{len(instances)} kernels built or found in {time.perf_counter() - begin:.1f} s")

    def work(
        self, folder: Path, jobs: Sequence[tuple[str, dict[str, Any]]], shapes: Sequence[str], say: Say
    ) -> None:
        """See `Executor.work`; one job after the other."""
        for stem, plan in jobs:
            work(folder, stem, plan, shapes, self.gpus, say)


def records(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    """shape -> its record, from all journals of a stem (``hgemm-select``), whoever wrote them."""
    found: dict[str, dict[str, Any]] = {}
    for path in journals(folder, stem):
        found |= {r["shape"]: r for r in read_journal(path)[1:] if "begun" not in r}
    return found


def journals(folder: Path, stem: str) -> list[Path]:
    """The journals of a stem, one a GPU that ever worked on it."""
    return sorted(folder.glob(f"{stem}.gpu*.jsonl"))


def work(folder: Path, stem: str, plan: dict[str, Any], shapes: Sequence[str], gpus: int, say: Say) -> None:
    """Have every shape in some journal of the stem, or the deadline passed.

    Args:
        plan: what all workers share (mode, options, ...).
        gpus: workers, each on a GPU of its own.

    Raises:
        DeviceError: workers die again and again.
        SassafrasError: a journal was written under other conditions.
    """
    done = records(folder, stem)
    left = [shape for shape in shapes if shape not in done]
    # longest first, dealt out: equal work for all
    left.sort(key=lambda text: -Shape.parse(text).flop)
    parts = [left[index::gpus] for index in range(gpus)]
    with ThreadPoolExecutor(gpus) as threads:
        jobs = [
            threads.submit(
                _work, folder / f"{stem}.gpu{index}.jsonl", {**plan, "shapes": part}, index, gpus, say
            )
            for index, part in enumerate(parts)
            if part
        ]
        for job in jobs:
            job.result()


def _work(path: Path, plan: dict[str, Any], index: int, gpus: int, say: Say) -> None:
    """Run workers on one GPU until its shapes are in the journal."""
    plan = {**plan, "journal": str(path)}
    plan_path = path.with_suffix(".plan.json")
    careful: set[str] = set()
    deaths = 0
    while deaths < _DEATHS:
        guilty = [asdict(g) for g in _guilty(path)]
        plan_path.write_text(json.dumps({**plan, "careful": sorted(careful), "guilty": guilty}))
        status = _watched(plan_path, path, _environment(index, gpus))
        if status == 0:
            plan_path.unlink(missing_ok=True)
            return
        if not path.exists():
            break
        journal = Journal(path, read_journal(path)[0]["header"])
        lost = journal.interrupted()
        found = [_blamed(journal, shape, status, careful, plan["mode"] == "select") for shape in lost]
        deaths += not any(found)
        for name in filter(None, found):
            say(f"{name} lost the context: its instance is not tried again")
        say(f"a worker ended with status {status}" + (f" in {', '.join(lost)}" if lost else ""))
        if not lost and status == 1:
            break
    raise DeviceError(f"the {plan['mode']} worker cannot finish; its messages are above", where=path.name)


def _blamed(journal: Journal, shape: str, status: int, careful: set[str], selecting: bool) -> str:
    """Decide about a shape that a worker died in; the guilty candidate's name, "" when nobody was found.

    A selection goes on with the shape: with care when nobody is known to be guilty, without the guilty one
    when somebody is. What dies nevertheless has its failure on record.
    """
    why = f"the worker ended with status {status}"
    if said := journal.last(shape, "lost"):
        why += f": {said}"
    name = journal.last(shape, "trying") if selecting else ""
    if name:
        journal.note(shape, guilty=name, why=why)
    elif selecting and shape not in careful:
        careful.add(shape)
    else:
        journal.finish({"shape": shape, "band": Shape.parse(shape).band, "error": why})
    return name


def _guilty(path: Path) -> list[FaultyConfig]:
    """Who has lost a context, by all journals of this one's stem."""
    stem = path.name.split(".gpu")[0]
    lines = [r for file in journals(path.parent, stem) for r in read_journal(file)[1:] if "guilty" in r]
    return [FaultyConfig(r["guilty"], r["begun"], r["why"]) for r in lines]


def _watched(plan: Path, journal: Path, environment: dict[str, str]) -> int:
    """Exit status of one worker; it is killed when its journal stops growing."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sassafras.gemm.bench.worker", str(plan)], env=environment
    )
    size, since = -1, time.monotonic()
    try:
        while True:
            try:
                return process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                pass
            now = journal.stat().st_size if journal.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > STALL:
                process.kill()
                return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _environment(index: int, gpus: int) -> dict[str, str]:
    environment = _inherited()
    if gpus > 1:
        visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        environment["CUDA_VISIBLE_DEVICES"] = visible[index] if index < len(visible) else str(index)
    return environment
