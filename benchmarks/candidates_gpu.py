"""Approved candidates of divergent kernels, run cold on a GPU: writes candidates-gpu.json.

    python benchmarks/candidates_gpu.py --count 10000 --seconds 420       # one GPU, 16 processes

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, use_gpu, write
from mutants import cold
from mutants.pool import Event, Job, Pool, Say

SOURCE = Path(__file__).parent / "mutants" / "divergent.cu"
SPACES = ("blocks", "control", "renaming")
#: outcomes of a candidate that was approved and should not have been
WRONG = ("wrong", "crashed", "hung")
#: moves of a walk before it begins again; seconds that a process may be silent (opening a space, or hung);
#: rounds of tasks
WALK, HANG_S, ROUNDS = 80, 300.0, 5
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
class Task:
    """So many candidates of one kernel and space, and what has been drawn before."""

    kernel: str
    space: str
    quota: int
    seed: int
    seen: set[bytes] = field(default_factory=set)


def draw(job: Task, cubin: bytes, deadline: float) -> Any:
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


# -- in worker processes ------------------------------------------------------------------------------------

_bench: list[Any] = []


def _setup(folder: str) -> None:
    use_gpu(0)
    _bench[:] = [cold.Cold(Path(folder))]


def prepare(say: Say, path: str) -> str:
    """Keep what an original leaves; ``""``, or why its kernel is left out."""
    return str(_bench[0].prepare(Path(path).stem, Path(path).read_bytes()))


def serve(say: Say, job: Task, folder: str, every: int, deadline: float) -> tuple[Row, set[bytes]]:
    """Draw and run a task's candidates; says which one it is about to run before it does."""
    place, bench = Path(folder), _bench[0]
    cubin = (place / f"{job.kernel}.cubin").read_bytes()
    bench.open(job.kernel)
    facts: Row = {}
    number = 0
    for candidate, verdict in draw(job, cubin, deadline):
        if isinstance(candidate, dict):
            facts |= candidate
            continue
        path = place / f"{job.kernel}-{job.space}-{job.seed}-{number}.cubin"
        path.write_bytes(candidate)
        say(("run", str(path), verdict))
        right = bench.right(candidate)
        if right and number % every:
            path.unlink()
        say(("right" if right else "wrong", str(path), verdict))
        number += 1
    return facts, job.seen


# -- the parent ---------------------------------------------------------------------------------------------


class Run:
    """All candidates of all spaces: hands out tasks, counts, goes on behind processes that die."""

    def __init__(self, options: argparse.Namespace, folder: Path, kernels: list[str]) -> None:
        self.options, self.folder, self.kernels = options, folder, kernels
        self.rows: dict[tuple[str, str], Row] = {}
        self.seen: dict[tuple[str, str], set[bytes]] = {}
        self.running: dict[tuple[str, str], tuple[str, str]] = {}
        self.bad: list[tuple[str, str, str, str]] = []
        self.begin = time.monotonic()
        self.every = max(1, 3 * options.count // max(1, options.fresh))
        self.seed = options.seed

    def go(self) -> None:
        """Rounds of tasks until every space has its candidates, or the time is over."""
        until = time.time() + self.options.seconds
        for _ in range(ROUNDS):
            jobs = self._jobs()
            if not jobs or time.time() > until:
                return
            pool = Pool(self.options.workers, _setup, (str(self.folder),))
            for event in pool.run(lambda jobs=jobs: jobs.pop(0) if jobs else None, until + 15):
                if event.kind != "tick":
                    self._hear(event)
            print(f"{time.monotonic() - self.begin:.0f} s: {dict(self.total())}", flush=True)

    def total(self) -> Counter[str]:
        """Candidates that ran, by space."""
        found: Counter[str] = Counter()
        for (_, space), row in self.rows.items():
            found[space] += row["run"]
        return found

    def _jobs(self) -> list[Job]:
        """What is missing, spread over the kernels that still have candidates."""
        jobs, total = [], self.total()
        left = self.options.seconds - (time.monotonic() - self.begin)
        for space in SPACES:
            missing = self.options.count - total[space]
            able = [k for k in self.kernels if not self.rows.get((k, space), {}).get("dry")]
            if missing <= 0 or not able:
                continue
            self.seed += 1
            for kernel in able:
                seen = self.seen.get((kernel, space), set())
                task = Task(kernel, space, -(-missing // len(able)), self.seed, seen)
                given = (task, str(self.folder), self.every, time.monotonic() + left)
                jobs.append(Job((kernel, space), serve, given, HANG_S))
        return jobs

    def _row(self, key: tuple[str, str]) -> Row:
        empty = dict.fromkeys(("run", "right", *WRONG, "lost", "second_equal", "second_different"), 0)
        return self.rows.setdefault(key, {"kernel": key[0], "space": key[1], **empty})

    def _hear(self, event: Event) -> None:
        row = self._row(event.key)
        if event.kind == "said" and event.value[0] == "run":
            self.running[event.key] = event.value[1:]
        elif event.kind == "said":
            self._count(event.key, event.value[0])
        elif event.kind == "done":
            facts, self.seen[event.key] = event.value
            refused = row.get("refused", 0) + facts.pop("refused", 0)
            wanted = facts.pop("distinct", 0)
            row |= facts | {"refused": refused, "dry": wanted == 0 or "why" in facts}
        elif event.key in self.running:  # a candidate took the process
            self._count(event.key, "hung" if event.kind == "killed" else "crashed")
        else:
            row["lost"] += 1
            row["dry"] = row["lost"] >= 3
            print(f"{' '.join(event.key)}: a worker was lost between candidates: {event.value}", flush=True)

    def _count(self, key: tuple[str, str], what: str) -> None:
        path, verdict = self.running.pop(key)
        row = self._row(key)
        row["run"] += 1
        row[what] += 1
        if verdict in ("equal", "different"):
            row[f"second_{verdict}"] += 1
        if what != "right":
            self.bad.append((*key, path, what))


def fresh(options: argparse.Namespace, folder: Path, jobs: list[tuple[str, Path]]) -> dict[str, str]:
    """Run candidates in processes of their own; outcome by path."""
    until, count = options.fresh_seconds, min(options.workers, max(1, len(jobs)))
    given = [(folder, jobs[n::count], time.monotonic() + until) for n in range(count)]
    queue = [Job(n, cold.fresh, arguments, 40.0) for n, arguments in enumerate(given)]
    found: dict[str, str] = {}
    for event in Pool(count).run(lambda: queue.pop() if queue else None, time.time() + until + 40):
        if event.kind == "said":
            found[event.value[0]] = event.value[1]
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


def main() -> int:
    """See the module; 0 when all candidates ran and none is wrong, 1 if one is, 2 if some are missing."""
    parser = command_line(__doc__, out=".")
    parser.add_argument("--count", type=int, default=10_000, help="candidates of each space")
    parser.add_argument("--fresh", type=int, default=900, help="about so many again, each in its own process")
    parser.add_argument("--seconds", type=float, default=420.0, help="for the candidates; stop then")
    parser.add_argument("--fresh-seconds", type=float, default=100.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--only", default="", help="kernels, comma-separated")
    parser.add_argument("--seed", type=int, default=0)
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
    jobs = [Job(name, prepare, (str(folder / f"{name}.cubin"),), 60.0) for name in names]
    pool = Pool(1, _setup, (str(folder),))
    left_out |= dict.fromkeys(names, "its inputs were not prepared")
    for event in pool.run(lambda: jobs.pop(0) if jobs else None, time.time() + 300):
        if event.kind in ("done", "failed", "killed"):
            left_out[event.key] = str(event.value)
    left_out = {name: why for name, why in left_out.items() if why}
    names = [n for n in names if n not in left_out]
    print(f"{len(names)} kernels; left out: {left_out}", flush=True)
    run = Run(options, folder, names)
    run.go()
    bad = [(kernel, Path(path)) for kernel, _, path, _ in run.bad if Path(path).exists()]
    kept = sorted(folder.glob("*-*-*-*.cubin"))
    sample = [(path.name.split("-")[0], path) for path in kept if all(path != p for _, p in bad)]
    print(
        f"{dict(run.total())} in {time.monotonic() - run.begin:.0f} s; {len(sample)} again, fresh", flush=True
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
    suspects = {str(path) for _, path in bad}
    sampled = Counter(what for path, what in again.items() if path not in suspects)
    summary: Row = {
        space: {
            "candidates": sum(r["run"] for r in rows if r["space"] == space),
            "kernels": sum(r["run"] > 0 for r in rows if r["space"] == space),
            **{what: sum(r[what] for r in rows if r["space"] == space) for what in ("right", *WRONG)},
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
        "approved_but_wrong": sum(r[what] for r in rows for what in WRONG) + sum(sampled[w] for w in WRONG),
        "fresh_processes": {"run": sum(sampled.values()), **{w: sampled[w] for w in ("right", *WRONG)}},
        "short": short,
        "lost_processes": sum(r["lost"] for r in rows),
        "left_out": left_out,
        "seconds": round(time.monotonic() - run.begin, 1),
        "how": HOW,
    }
    fresh_wrong = [
        (*Path(path).name.split("-")[:2], path, what)
        for path, what in again.items()
        if what != "right" and path not in suspects
    ]
    counterexamples = [
        {"kernel": kernel, "space": space, "outcome": how, "again_fresh": again.get(path)}
        | {"cubin": base64.b64encode(zlib.compress(Path(path).read_bytes())).decode()}
        for kernel, space, path, how in [*run.bad, *fresh_wrong][:40]
        if Path(path).exists()
    ]
    from sassafras.cuda.environment import environment

    summary["counterexamples"] = counterexamples
    path = write("candidates-gpu", rows, summary, environment(), seed=options.seed, out=options.out)
    print(json.dumps({k: v for k, v in summary.items() if k != "counterexamples"}, indent=1))
    print(f"wrote {path}")
    if summary["short"]:
        print("NOT COMPLETE: " + "; ".join(summary["short"]))
    if summary["approved_but_wrong"]:
        return 1
    return 2 if summary["short"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
