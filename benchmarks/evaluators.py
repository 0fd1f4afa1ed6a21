"""Evaluators of GPU kernels against cheats and honest candidates: writes evaluators.json. Needs one GPU.

    python benchmarks/evaluators.py --folder CHECKOUTS --seconds 540      # again, to go on
    python benchmarks/evaluators.py --folder CHECKOUTS --collect          # no GPU: what would be judged

CHECKOUTS holds ``KernelBench``, ``flashinfer-bench`` and ``robust-kbench``, fetched by you:

    git clone https://github.com/ScalingIntelligence/KernelBench          # 423217d9fda9
    git clone https://github.com/flashinfer-ai/flashinfer-bench           # 40e6ca7844b5
    git clone https://github.com/SakanaAI/robust-kbench                   # 078f5bab2993

flashinfer-bench times by ``flashinfer.testing``: install flashinfer-python, or put its package folder
``flashinfer`` (0.6.4) beside the checkouts. Nothing of them is part of this repository.

Every evaluator judges every candidate with its own functions and default tolerances, in a process with a
time limit. A cheat is missed if it is accepted; one that does right, and has no gain, only if it is accepted
with a speed-up above 1.3. An honest candidate that is refused is a false alarm. Most cheats were written by
us, and our evaluator was built against them: `summary.bias` says so beside the counts.

Each answer is a line of evaluators.jsonl before the next begins; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import Lines, command_line, commit, gpu_count, without_folders, write
from harnesses import Case, Said, cases
from harnesses.theirs import HARNESSES, SOURCES
from harnesses.worker import FAILED, Make, Worker

Row = dict[str, Any]
#: a speed-up up to which a cheat has gained nothing
MOST = 1.3
OURS = "sassafras"
#: timed rounds of ours, fewer than by default
ROUNDS = 4
BIAS = (
    "Cheats of origin 'ours' were written by the authors of sassafras, whose evaluator was built against "
    "them; those of origin 'KernelBench' are its own samples. Attacks on one harness and what can only be "
    "contained (files, processes, hangs) are left out. robust-kbench takes CUDA files alone: its functions "
    "get modules here."
)


def sassafras() -> Callable[[Case], Said]:
    """`sassafras.Judge`, as the command ``sassafras judge`` calls it."""
    from sassafras import Judge
    from sassafras.core import SassafrasError

    judges: dict[str, Judge] = {}

    def judge(case: Case) -> Said:
        try:
            if case.problem not in judges:
                while judges:  # their processes hold contexts on the GPU
                    judges.popitem()[1].close()
                path = Path("problem.py").resolve()
                path.write_text(case.problem, encoding="utf-8")
                judges[case.problem] = Judge(path, device="cuda", rounds=ROUNDS, call_s=60.0, store=False)
            made = judges[case.problem]
            found = made(made.problem.solution(case.candidate, case.name))
        except SassafrasError as error:  # never for the candidate's fault
            return Said(False, None, f"{FAILED}{error}"[:300])
        (outcome,) = found.outcomes.values()
        return Said(found.verdict.ok, outcome.speedup, f"{found.verdict}: {outcome.detail}"[:300])

    return judge


def is_right(kind: str, said: Said) -> bool:
    """Whether an answer is what such a case demands."""
    if kind == "honest":
        return said.accepted
    gained = said.speedup is None or said.speedup > MOST
    return not said.accepted or (kind == "speed" and not gained)


def compiling(given: Sequence[Case], folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """nvcc at work ahead, by case: every evaluator but ours finds the library that it would build itself."""
    started = {}
    for case in given:
        place = folder / case.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "candidate.py").write_text(case.candidate, encoding="utf-8")
        environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(place)}
        call = [sys.executable, "candidate.py"]
        with (place / "log").open("wb") as log:
            started[case.name] = subprocess.Popen(call, cwd=place, env=environment, stdout=log, stderr=log)
    return started


def judged(options: argparse.Namespace, given: Sequence[Case], done: set[tuple[str, str]]) -> Iterator[Row]:
    """A row for each evaluator and case that is not done, while there is time."""
    begin = time.monotonic()
    until = begin + options.seconds
    makes: dict[str, Make] = {name: partial(make, options.folder) for name, make in HARNESSES.items()}
    makes = {OURS: sassafras, **makes}
    left = [
        (case, name)
        for case in sorted(given, key=lambda case: case.compiles)
        for name in options.evaluators
        if (name, case.name) not in done
    ]
    with ExitStack() as stack:
        built = Path(stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
        wanted = {case.name: case for case, _ in left if case.compiles}
        builds = compiling(list(wanted.values()), built)
        for process in builds.values():
            stack.callback(process.kill)
        standing: Worker | None = None  # ours has processes of its own for each candidate
        for case, name in left:
            limit = min(options.limit * (2 if case.compiles else 1), until - time.monotonic())
            if limit < 20.0:
                return
            environment = {
                "TORCH_EXTENSIONS_DIR": str(built / case.name),
                "FIB_CACHE_PATH": str(built / "flashinfer"),
                "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
            }
            if case.compiles and name != OURS:
                try:
                    builds[case.name].wait(limit)
                except subprocess.TimeoutExpired:
                    continue
                if builds[case.name].returncode:
                    text = (built / case.name / "log").read_text(errors="replace")[-250:]
                    yield _row(name, case, Said(False, None, f"{FAILED}nvcc: {text}"), 0.0)
                    continue
            started = time.monotonic()
            log = options.out / "evaluators.log"
            if name == OURS:
                if standing is None or not standing.alive:
                    standing = Worker(makes[name], environment, log)
                    stack.callback(standing.close)
                said = standing.ask(case, limit)
            else:
                worker = Worker(makes[name], environment, log)
                try:
                    said = worker.ask(case, limit)
                finally:
                    worker.close()
            if "no answer" in said.text and limit < options.limit:
                return  # for want of time: asked again when the same command goes on
            yield _row(name, case, said, time.monotonic() - started)


def _row(evaluator: str, case: Case, said: Said, seconds: float) -> Row:
    failed = said.text.startswith(FAILED)
    found: Row = {"evaluator": evaluator, "case": case.name, "origin": case.origin, "kind": case.kind}
    found |= {
        "title": case.title,
        "accepted": said.accepted,
        "speedup": said.speedup and round(said.speedup, 3),
    }
    found |= {"commit": commit()} if evaluator == OURS else {}
    found |= {"said": without_folders(said.text), "ok": None if failed else is_right(case.kind, said)}
    return found | {"seconds": round(seconds, 1)}


def _commits(rows: Sequence[Row]) -> str | None:
    """Of our evaluator, as the rows say; rows of a journal before they did are of this tree's."""
    return " and ".join(dict.fromkeys(str(row.get("commit", commit())) for row in rows)) or None


def version(folder: Path) -> str | None:
    """The commit of a checkout, by git or by its file COMMIT."""
    if (folder / "COMMIT").is_file():
        return (folder / "COMMIT").read_text(encoding="utf-8").strip()
    call = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    run = subprocess.run(call, capture_output=True, text=True, check=False)
    return run.stdout.strip() or None


def summarise(rows: Sequence[Row], folder: Path, cases_in_all: int) -> Row:
    """Counts by evaluator."""
    found: Row = {"bias": BIAS, "gained_nothing_up_to": MOST, "cases": cases_in_all, "evaluators": {}}
    for name in dict.fromkeys(row["evaluator"] for row in rows):
        own = [row for row in rows if row["evaluator"] == name and row["ok"] is not None]
        cheats = [row for row in own if row["kind"] != "honest"]
        theirs = [row for row in cheats if row["origin"] != "ours"]
        honest = [row for row in own if row["kind"] == "honest"]
        checkout = name.removesuffix("-static")
        found["evaluators"][name] = {
            "source": SOURCES.get(checkout),
            "commit": version(folder / checkout) if checkout in SOURCES else _commits(own),
            "cheats": len(cheats),
            "caught": sum(row["ok"] for row in cheats),
            "published_cheats": len(theirs),
            "published_caught": sum(row["ok"] for row in theirs),
            "honest": len(honest),
            "flagged": sum(not row["ok"] for row in honest),
            "missed": [row["case"] for row in cheats if not row["ok"]],
            "false_alarms": [row["case"] for row in honest if not row["ok"]],
            "failed": [row["case"] for row in rows if row["evaluator"] == name and row["ok"] is None],
        }
    return found


def main() -> int:
    """See the module; 0 when all is judged, 1 when something is left."""
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the checkouts")
    parser.add_argument("--only", default="", help="cases, comma-separated")
    parser.add_argument("--evaluators", default=",".join((OURS, *HARNESSES)), help="comma-separated")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin nothing that cannot end by then")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of one answer, twice with nvcc")
    parser.add_argument("--collect", action="store_true", help="print the cases")
    parser.add_argument("--resume", type=Path, help="journal of an earlier run to go on with")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.evaluators = [name for name in options.evaluators.split(",") if name]
    if unknown := set(options.evaluators) - {OURS, *HARNESSES}:
        parser.error(f"there is no evaluator {unknown.pop()!r}: {', '.join((OURS, *HARNESSES))}")
    every = [*cases.ours(), *cases.kernelbench(options.folder)]
    chosen = [case for case in every if not options.only or case.name in options.only.split(",")]
    if options.collect:
        for case in chosen:
            print(f"{case.kind:7} {case.origin:12} {case.name}: {case.title}")
        return 0
    if not gpu_count():
        print("no GPU here")
        return 2
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    import torch  # noqa: F401  (once, for all that are forked)

    journal = Lines(options.out / "evaluators.jsonl", options.resume)
    done = {(row["evaluator"], row["case"]) for row in journal.rows if row["ok"] is not None}
    for row in judged(options, chosen, done):
        journal.add(row)
        mark = {True: "ok  ", False: "MISS", None: "FAIL"}[row["ok"]]
        print(f"{mark} {row['evaluator']} {row['case']}: {row['said'][:120]} {row['speedup']}", flush=True)
    from sassafras.cuda.environment import environment

    found = {(row["evaluator"], row["case"]): row for row in journal.rows}
    last = [
        found[name, case.name] for case in every for name in (OURS, *HARNESSES) if (name, case.name) in found
    ]
    summary = summarise(last, options.folder, len(every))
    summary["complete"] = sum(row["ok"] is not None for row in last) == len(every) * (1 + len(HARNESSES))
    write("evaluators", last, summary, environment(), out=options.out)
    print(json.dumps(summary["evaluators"], indent=1))
    return 0 if summary["complete"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
