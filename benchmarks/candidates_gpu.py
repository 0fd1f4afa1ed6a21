"""Approved candidates of divergent kernels, run cold on a GPU: writes candidates-gpu.json.

    python benchmarks/candidates_gpu.py --count 10000 --seconds 420       # one GPU, 16 processes
    python benchmarks/candidates_gpu.py --count 300 --pretend             # no GPU: all but the launches

The kernels of mutants/divergent.cu diverge, vote, shuffle, reduce and multiply matrices under guards. Of each
of the spaces ``blocks``, ``control`` and ``renaming``, as ``sassafras optimize --space`` opens them,
`--count` distinct candidates are drawn by random walks and approved by the validator; the second model
(`second_model`) judges them, too. Every one runs as the first launch of a module of its own, on scrubbed
registers and shared memory, with poisoned outputs, and on two more input sets (`mutants/cold.py` says what
exactly is scrubbed and compared); the processes serve many candidates. A sample, spread over kernels and
spaces, runs again in processes of their own, forked for one candidate each. What is wrong, crashes or hangs
is run again in a process of its own, and its bytes are kept in the result.

Approved and wrong must be zero.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import use_gpu, write
from mutants import cold

SOURCE = Path(__file__).parent / "mutants" / "divergent.cu"
SPACES = ("blocks", "control", "renaming")
#: moves of a walk before it begins again, and seconds that a candidate may take on the GPU
WALK, HANG_S = 80, 20.0
Row = dict[str, Any]
HOW = (
    "Each candidate: the first launch of a module loaded for it, by processes that serve many candidates; "
    "registers, shared memory and outputs scrubbed before each launch; three input sets; the arena compared "
    "bitwise with what the original left. fresh_processes: a sample of them again, each in a "
    "process forked for it."
)


def sources() -> dict[str, str]:
    """The kernels by name, each a source of its own."""
    parts = SOURCE.read_text().split("//--- ")[1:]
    return {part.partition(":")[0]: "// " + part for part in parts}


@dataclass
class Job:
    """So many candidates of one kernel and space, and what has been drawn before."""

    kernel: str
    space: str
    quota: int
    seed: int
    seen: set[bytes] = field(default_factory=set)


def draw(job: Job, cubin: bytes, deadline: float) -> Any:
    """Approved candidates as (cubin, the second model's verdict); first a row of facts on the space."""
    from second_model import SecondModel, Unread

    from sassafras.core import Kernel, SassafrasError
    from sassafras.schedule import spaces
    from sassafras.validate import Validator

    kernel = Kernel(cubin, job.kernel, "sm_90a", cold.THREADS)
    try:
        space = spaces.space_of(job.space, Validator)(kernel)
    except SassafrasError as error:
        yield {"why": str(error)}, None
        return
    validator = Validator(cubin, job.kernel)
    facts: Row = {"instructions": len(space.function), "copies": len(space.via)}
    if job.space != "control" and not space.via:
        yield {**facts, "why": "no copy was proved"}, None
        return
    if not all(validator.via(copy).ok for copy in space.via):
        yield {**facts, "why": "the validator refuses its copy"}, None
        return
    second: SecondModel | None = None
    try:
        second = SecondModel(cubin, job.kernel)
        facts["second_on_copy"] = [second.via(copy).verdict for copy in space.via]
    except (Unread, OSError) as error:
        second, facts["second_on_copy"] = None, [f"none: {error}"]
    yield facts, None
    rng = np.random.default_rng([job.seed, sum(job.kernel.encode()), SPACES.index(job.space)])
    state, steps, made, tried, refused = space.start(), 0, 0, 0, 0
    while made < job.quota and tried < 12 * job.quota + 200 and time.monotonic() < deadline:
        move = space.sample(state, rng)
        if move is None:
            break
        state, steps, tried = space.apply(state, move), steps + 1, tried + 1
        candidate = space.emit(state)
        mark = hashlib.blake2b(candidate, digest_size=8).digest()
        if mark not in job.seen and candidate != cubin:
            job.seen.add(mark)
            if validator.check(candidate).ok:
                made += 1
                verdict = "" if second is None else second.judge(candidate).verdict
                yield candidate, verdict
            else:
                refused += 1
        if steps >= WALK:
            state, steps = space.start(), 0
    yield {"refused": refused, "distinct": made}, None


def serve(pipe: Any, folder: str, pretend: bool, every: int, deadline: float) -> None:
    """A worker: takes jobs, draws, runs; tells what it is about to run before it does."""
    use_gpu(0)
    place = Path(folder)
    try:
        bench: Any = (cold.Pretended if pretend else cold.Cold)(place)
        pipe.send(("ready",))
        while (job := pipe.recv()) is not None:
            cubin = (place / f"{job.kernel}.cubin").read_bytes()
            bench.open(job.kernel)
            counts: Counter[str] = Counter()
            facts: Row = {}
            for candidate, verdict in draw(job, cubin, deadline):
                if isinstance(candidate, dict):
                    facts |= candidate
                    continue
                number = counts["run"]
                path = place / f"{job.kernel}-{job.space}-{job.seed}-{number}.cubin"
                path.write_bytes(candidate)
                pipe.send(("run", str(path), verdict))
                right = bench.right(candidate)
                counts["run"] += 1
                counts[f"second_{verdict}"] += 1
                if right and number % every:
                    path.unlink()
                pipe.send(("done", str(path), right))
            pipe.send(("finished", dict(counts), facts, job.seen))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return


class Worker:
    """A worker process and what it is doing."""

    def __init__(self, folder: Path, pretend: bool, every: int, deadline: float) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, str(folder), pretend, every, deadline), daemon=True
        )
        self.process.start()
        theirs.close()
        self.ready, self.job = False, None
        self.running: tuple[str, str] | None = None
        self.told = time.monotonic()
        self.since = 0


class Run:
    """All candidates of all spaces: hands out jobs, counts, replaces workers that die."""

    def __init__(self, options: argparse.Namespace, folder: Path, kernels: list[str]) -> None:
        self.options, self.folder, self.kernels = options, folder, kernels
        self.rows: dict[tuple[str, str], Row] = {}
        self.seen: dict[tuple[str, str], set[bytes]] = {}
        self.bad: list[tuple[str, str, str, str]] = []
        self.total: Counter[str] = Counter()
        self.begin = time.monotonic()
        self.deadline = self.begin + options.seconds
        self.every = max(1, 3 * options.count // max(1, options.fresh))
        self.seed = options.seed

    def go(self) -> None:
        """Rounds of jobs until every space has its candidates, or the time is over."""
        workers = [self._worker() for _ in range(self.options.workers)]
        for _ in range(5):
            jobs = self._jobs()
            if not jobs or time.monotonic() > self.deadline:
                break
            while jobs or any(w.job is not None for w in workers):
                self._step(workers, jobs)
                if time.monotonic() > self.deadline + 15:
                    break
        for worker in workers:
            worker.process.kill()

    def _worker(self) -> Worker:
        return Worker(self.folder, self.options.pretend, self.every, self.deadline)

    def _jobs(self) -> list[Job]:
        """What is missing, spread over the kernels that still have candidates."""
        jobs = []
        for space in SPACES:
            missing = self.options.count - self.total[space]
            able = [k for k in self.kernels if not self.rows.get((k, space), {}).get("dry")]
            if missing <= 0 or not able:
                continue
            share = -(-missing // len(able))
            self.seed += 1
            jobs += [Job(k, space, share, self.seed, self.seen.get((k, space), set())) for k in able]
        order = {name: n for n, name in enumerate(SPACES)}
        return sorted(jobs, key=lambda job: order[job.space])

    def _step(self, workers: list[Worker], jobs: list[Job]) -> None:
        for n, worker in enumerate(workers):
            if worker.ready and worker.job is None and jobs:
                worker.job = jobs.pop(0)
                worker.pipe.send(worker.job)
                worker.told = time.monotonic()
            lost = worker.running is not None and time.monotonic() - worker.told > HANG_S
            if lost or not worker.process.is_alive():
                worker.process.kill()
                self._lose(worker, "hung" if lost else "crashed", jobs)
                workers[n] = self._worker()
        pipes = {w.pipe: w for w in workers}
        for pipe in connection.wait(list(pipes), timeout=0.2):
            with suppress(EOFError, OSError):
                self._hear(pipes[pipe], pipe.recv())  # type: ignore[union-attr, index]

    def _lose(self, worker: Worker, how: str, jobs: list[Job]) -> None:
        if worker.job is None:
            return
        job = worker.job
        row = self._row(job)
        if worker.running is not None:
            path, _ = worker.running
            row[how] += 1
            row["run"] += 1
            self.total[job.space] += 1
            self.bad.append((job.kernel, job.space, path, how))
            left = job.quota - worker.since - 1
        else:
            row["lost"] += 1
            print(f"{job.kernel}, {job.space}: a worker died between candidates", flush=True)
            left = job.quota - worker.since if row["lost"] < 3 else 0
        if left > 0:
            jobs.append(
                Job(job.kernel, job.space, left, job.seed + 1000 * (1 + row["lost"] + row[how]), job.seen)
            )

    def _row(self, job: Job) -> Row:
        empty = {
            "kernel": job.kernel,
            "space": job.space,
            "run": 0,
            "right": 0,
            "wrong": 0,
            "crashed": 0,
            "hung": 0,
            "lost": 0,
            "second_equal": 0,
            "second_different": 0,
        }
        return self.rows.setdefault((job.kernel, job.space), empty)

    def _hear(self, worker: Worker, said: tuple[Any, ...]) -> None:
        worker.told = time.monotonic()
        if said[0] == "ready":
            worker.ready = True
        elif said[0] == "run":
            worker.running = (said[1], said[2])
        elif said[0] == "done":
            assert worker.job is not None and worker.running is not None
            row = self._row(worker.job)
            row["run"] += 1
            row["right" if said[2] else "wrong"] += 1
            if worker.running[1] in ("equal", "different"):
                row[f"second_{worker.running[1]}"] += 1
            if not said[2]:
                self.bad.append((worker.job.kernel, worker.job.space, said[1], "wrong"))
            self.total[worker.job.space] += 1
            worker.running, worker.since = None, worker.since + 1
        elif said[0] == "finished":
            assert worker.job is not None
            row = self._row(worker.job)
            row |= {k: v for k, v in said[2].items() if k not in ("distinct", "refused")}
            row["refused"] = row.get("refused", 0) + said[2].get("refused", 0)
            row["dry"] = said[2].get("distinct", 0) < worker.job.quota
            self.seen[worker.job.kernel, worker.job.space] = said[3]
            worker.job, worker.running, worker.since = None, None, 0
            if time.monotonic() - self.begin > 5:
                print(f"{time.monotonic() - self.begin:.0f} s: {dict(self.total)}", flush=True)


def fresh(options: argparse.Namespace, folder: Path, jobs: list[tuple[str, Path]]) -> dict[str, str]:
    """Run candidates in processes of their own; outcome by path."""
    context = get_context("spawn")
    until = time.monotonic() + options.fresh_seconds
    parents = []
    for n in range(min(options.workers, max(1, len(jobs)))):
        pipe, theirs = context.Pipe(duplex=False)
        part = jobs[n :: options.workers]
        process = context.Process(target=cold.fresh, args=(folder, part, options.pretend, until, theirs))
        process.start()
        theirs.close()
        parents.append((process, pipe))
    found: dict[str, str] = {}
    for process, pipe in parents:
        try:
            while (said := pipe.recv()) is not None:
                found[said[0]] = said[1]
        except EOFError:
            pass
        process.join(5)
        if process.is_alive():
            process.kill()
    return found


def _compile(folder: Path) -> dict[str, str]:
    """Cubins of all kernels; why one is left out."""
    from sassafras.core import SassafrasError
    from sassafras.cuda.compile import compile_cuda

    def one(name: str, text: str) -> str:
        try:
            (folder / f"{name}.cubin").write_bytes(compile_cuda(text, "sm_90a", name=f"{name}.cu"))
        except SassafrasError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        asked = {name: pool.submit(one, name, text) for name, text in sources().items()}
        return {name: job.result() for name, job in asked.items()}


def _prepare(pipe: Any, folder: str, names: list[str], pretend: bool) -> None:
    use_gpu(0)
    bench = (cold.Pretended if pretend else cold.Cold)(Path(folder))
    for name in names:
        try:
            pipe.send((name, bench.prepare(name, (Path(folder) / f"{name}.cubin").read_bytes())))
        except Exception as error:
            pipe.send((name, f"{type(error).__name__}: {error}"))
            return


def main() -> int:
    """See the module; 0 when all candidates ran and none is wrong, 1 if one is, 2 if some are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="candidates of each space")
    parser.add_argument(
        "--fresh", type=int, default=900, help="of them again in processes of their own, about"
    )
    parser.add_argument("--seconds", type=float, default=420.0, help="for the candidates; stop then")
    parser.add_argument("--fresh-seconds", type=float, default=100.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--only", default="", help="kernels, comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretend", action="store_true", help="no GPU: every launch is right")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    options = parser.parse_args()
    folder = Path(
        tempfile.mkdtemp(prefix="candidates-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    try:
        return _main(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _main(options: argparse.Namespace, folder: Path) -> int:
    left_out = {name: why for name, why in _compile(folder).items() if why}
    cold.tools(folder)
    names = [n for n in sources() if n not in left_out and (not options.only or n in options.only.split(","))]
    pipe, theirs = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(
        target=_prepare, args=(theirs, str(folder), names, options.pretend)
    )
    process.start()
    theirs.close()
    try:
        for _ in names:
            name, why = pipe.recv()
            left_out |= {name: why} if why else {}
    except EOFError:
        left_out |= {"*": "the process that prepares inputs ended"}
    process.join(10)
    names = [n for n in names if n not in left_out]
    print(f"{len(names)} kernels; left out: {left_out}", flush=True)
    run = Run(options, folder, names)
    run.go()
    bad = [(kernel, Path(path)) for kernel, _, path, _ in run.bad if Path(path).exists()]
    kept = sorted(folder.glob("*-*-*-*.cubin"))
    sample = [(path.name.split("-")[0], path) for path in kept if all(path != p for _, p in bad)]
    print(
        f"{dict(run.total)} in {time.monotonic() - run.begin:.0f} s; {len(sample)} again, fresh", flush=True
    )
    again = fresh(options, folder, bad + sample)
    return _write(options, run, again, bad, left_out)


def _write(
    options: argparse.Namespace,
    run: Run,
    again: dict[str, str],
    bad: list[tuple[str, Path]],
    left_out: dict[str, str],
) -> int:
    rows = [run.rows[key] for key in sorted(run.rows, key=lambda k: (SPACES.index(k[1]), k[0]))]
    wrong = ("wrong", "crashed", "hung")
    suspects = {str(path) for _, path in bad}
    sampled = Counter(what for path, what in again.items() if path not in suspects)
    summary: Row = {
        space: {
            "candidates": sum(r["run"] for r in rows if r["space"] == space),
            "kernels": sum(r["run"] > 0 for r in rows if r["space"] == space),
            **{what: sum(r[what] for r in rows if r["space"] == space) for what in ("right", *wrong)},
            "second_different": sum(r["second_different"] for r in rows if r["space"] == space),
        }
        for space in SPACES
    }
    short = [
        f"{space}: {summary[space]['candidates']} of {options.count} candidates, "
        f"{summary[space]['kernels']} kernels"
        for space in SPACES
        if summary[space]["candidates"] < options.count
        or summary[space]["kernels"] < min(15, len(run.kernels))
    ]
    if options.fresh and not sampled:
        short.append("no candidate ran in a process of its own")
    summary |= {
        "approved_but_wrong": sum(r[what] for r in rows for what in wrong) + sum(sampled[w] for w in wrong),
        "fresh_processes": {"run": sum(sampled.values()), **{w: sampled[w] for w in ("right", *wrong)}},
        "short": short,
        "lost_processes": sum(r["lost"] for r in rows),
        "left_out": left_out,
        "seconds": round(time.monotonic() - run.begin, 1),
        "how": HOW,
    }
    fresh_wrong = [
        (path.split("/")[-1].split("-")[0], path.split("/")[-1].split("-")[1], path, what)
        for path, what in again.items()
        if what != "right" and path not in suspects
    ]
    counterexamples = [
        {
            "kernel": kernel,
            "space": space,
            "outcome": how,
            "again_fresh": again.get(path),
            "cubin": base64.b64encode(zlib.compress(Path(path).read_bytes())).decode(),
        }
        for kernel, space, path, how in [*run.bad, *fresh_wrong][:40]
        if Path(path).exists()
    ]
    environment: Row = {"gpu": "pretended"}
    if not options.pretend:
        from sassafras.cuda.environment import environment as found

        environment = found()
    name = "candidates-gpu-pretended" if options.pretend else "candidates-gpu"
    summary["counterexamples"] = counterexamples
    path = write(name, rows, summary, environment, seed=options.seed, out=options.out)
    print(json.dumps({k: v for k, v in summary.items() if k != "counterexamples"}, indent=1))
    print(f"wrote {path}")
    if summary["short"]:
        print("NOT COMPLETE: " + "; ".join(summary["short"]))
    if summary["approved_but_wrong"]:
        return 1
    return 2 if summary["short"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
