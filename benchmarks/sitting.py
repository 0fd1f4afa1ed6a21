"""Many GPU jobs in one sitting on a lent machine: `python benchmarks/sitting.py PLAN.toml --seconds 560`.

A plan lists jobs in the order of their worth:

    [[job]]
    name = "tests"                      # its folder below the work folder; $OUT for its command
    command = "python -m pytest tests/gpu -m alone -v"   # $LEFT_S: seconds until it is killed
    seconds = 200                       # it is killed then, with all its children
    gpus = 1                            # GPUs for itself; 0: none; "all": nothing else runs meanwhile
    after = ["build"]                   # jobs that must have ended first
    least = 60                          # not begun with less time left (default: seconds)

Each GPU takes the first job that it may and that can end in time, and sets CUDA_VISIBLE_DEVICES for it. What
the jobs write is packed every 20 seconds into sitting.tgz of the output folder, so that a sitting that is cut
off loses no more than that. Nothing here needs a GPU: ``--gpus 2`` on any machine tries a plan.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tarfile
import threading
import time
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, gpu_count

PACK_S = 20.0
#: seconds between SIGTERM and SIGKILL
GRACE_S = 5.0
#: what may come back in one file
PACKED_BYTES = 15 << 20


@dataclass
class Job:
    """One command; what became of it is filled in as it runs."""

    name: str
    command: str
    seconds: float
    gpus: int | str = 1
    after: list[str] = field(default_factory=list)
    least: float | None = None
    state: str = "waiting"
    gpu: str = ""
    began: float | None = None
    took: float | None = None
    status: int | None = None


def read(path: Path) -> list[Job]:
    """The plan's jobs. Raises ValueError, naming what is wrong with it."""
    try:
        jobs = [Job(**row) for row in tomllib.loads(path.read_text())["job"]]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    names = [job.name for job in jobs]
    for n, job in enumerate(jobs):
        if job.name in names[:n] or "/" in job.name:
            raise ValueError(f"{path}: job {n + 1} needs a name of its own, not {job.name!r}")
        if unknown := set(job.after) - set(names):
            raise ValueError(f"{path}: {job.name} comes after {sorted(unknown)}, which are no jobs")
        if job.gpus not in (0, 1, "all"):
            raise ValueError(f"{path}: {job.name} wants {job.gpus!r} GPUs: 0, 1 or 'all'")
    return jobs


class Sitting:
    """Runs a plan's jobs on so many GPUs until `ends` (a `time.time`)."""

    def __init__(self, jobs: list[Job], gpus: int, ends: float, work: Path) -> None:
        self.jobs, self.ends, self.work = jobs, ends, work.resolve()  # jobs run in another folder
        self.free = set(range(gpus))
        self.gpus = gpus
        self.changed = threading.Condition()
        self.processes: set[Any] = set()

    def stop(self) -> None:
        """Start nothing more, and kill what runs: jobs are sessions of their own and would outlive us."""
        with self.changed:
            self.ends = 0.0
            for process in self.processes:
                self._signal(process, signal.SIGKILL)

    def run(self, say: Any = print) -> None:
        """Start what can start until nothing can any more."""
        threads: list[threading.Thread] = []
        with self.changed:
            while True:
                self._drop(say)
                while (taken := self._take()) is not None:
                    thread = threading.Thread(target=self._run, args=(*taken, say))
                    threads.append(thread)
                    thread.start()
                if not any(job.state in ("waiting", "running") for job in self.jobs):
                    break
                self.changed.wait(1.0)
        for thread in threads:
            thread.join()

    def _over(self, name: str) -> bool:
        return next(job for job in self.jobs if job.name == name).state not in ("waiting", "running")

    def _drop(self, say: Any) -> None:
        left = self.ends - time.time()
        for job in self.jobs:
            if job.state == "waiting" and left < (job.seconds if job.least is None else job.least):
                job.state = "no time left"
                say(f"-- {job.name}: no time left")

    def _take(self) -> tuple[Job, list[int]] | None:
        """The next job that may start now, and its GPUs."""
        for job in self.jobs:
            if job.state != "waiting" or not all(map(self._over, job.after)):
                continue
            if job.gpus == 0:
                mine: list[int] = []
            elif job.gpus == 1 and self.free:
                mine = [min(self.free)]
            elif job.gpus == "all" and len(self.free) == self.gpus:
                mine = sorted(self.free)
            elif job.gpus == "all":
                return None  # GPUs that become free wait for it
            else:
                continue
            job.state = "running"
            self.free -= set(mine)
            return job, mine
        return None

    def _run(self, job: Job, mine: list[int], say: Any) -> None:
        folder = self.work / job.name
        folder.mkdir(parents=True, exist_ok=True)
        job.gpu, job.began = ",".join(map(str, mine)), time.time()
        left = max(1.0, min(job.seconds, self.ends - time.time()))
        environment = {
            **os.environ, "OUT": str(folder), "CUDA_VISIBLE_DEVICES": job.gpu, "LEFT_S": f"{left:.0f}",
        }  # fmt: skip
        with (folder / "log.txt").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-c", job.command], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            with self.changed:
                self.processes.add(process)
                if not self.ends:  # stopped while it started
                    self._signal(process, signal.SIGKILL)
            try:
                job.status = process.wait(timeout=left)
                state = "ended" if job.status == 0 else "failed"
            except subprocess.TimeoutExpired:
                state = "stopped"
                self._signal(process, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.status = process.wait(timeout=GRACE_S)
            self._signal(process, signal.SIGKILL)  # children that it left behind, too
            process.wait()
        with self.changed:
            self.processes.discard(process)
            job.state, job.took = state, time.time() - job.began
            self.free |= set(mine)
            self.changed.notify_all()
        say(f"-- {job.name}: {state} after {job.took:.0f} s on GPU {job.gpu or '-'}: {self._last(folder)}")

    @staticmethod
    def _signal(process: Any, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    @staticmethod
    def _last(folder: Path) -> str:
        lines = (folder / "log.txt").read_text(errors="replace").splitlines()
        return next((line.strip()[:160] for line in reversed(lines) if line.strip()), "(said nothing)")


def pack(work: Path, target: Path) -> None:
    """All files of the work folder in one archive, less the largest where it would be too large to travel."""
    files = sorted((p for p in work.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    while True:
        with tarfile.open(target.with_suffix(".part"), "w:gz") as archive:
            for path in files:
                try:
                    archive.add(path, str(path.relative_to(work)))
                except OSError:  # it is being written, or gone
                    continue
        if target.with_suffix(".part").stat().st_size <= PACKED_BYTES or not files:
            break
        # a quarter at a time: one by one, thousands of small files took longer than the sitting
        del files[-max(1, len(files) // 4) :]
    target.with_suffix(".part").replace(target)


def main(arguments: list[str] | None = None) -> int:
    """Run a plan; 0 when every job ended well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seconds", type=float, default=560.0, help="of the sitting")
    parser.add_argument("--began", type=float, help="when it began (date +%%s), if that was before this call")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--work", type=Path, default=Path("/tmp/sitting"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    options = parser.parse_args(arguments)
    jobs = read(options.plan)
    began = options.began or time.time()
    gpus = options.gpus or gpu_count()
    sitting = Sitting(jobs, gpus, began + options.seconds, options.work)
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    over = threading.Event()

    def keep() -> None:
        while not over.wait(PACK_S):
            pack(options.work, options.out / "sitting.tgz")

    keeper = threading.Thread(target=keep)
    keeper.start()

    def say(text: str) -> None:
        print(f"{time.time() - began:5.0f} s {text}", flush=True)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # `timeout` sends the first; the second is ignored in what a shell put into the background, and meant here
    stops = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, interrupt) for number in stops]
    try:
        sitting.run(say)
    finally:
        for number, handler in zip(stops, before, strict=True):
            signal.signal(number, handler)
        sitting.stop()
        over.set()
        keeper.join()
        (options.work / "sitting.json").write_text(json.dumps([asdict(job) for job in jobs], indent=1) + "\n")
        pack(options.work, options.out / "sitting.tgz")
    return 0 if all(job.state == "ended" for job in jobs) else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
