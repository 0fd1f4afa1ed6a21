"""Random mutants, judged by the validator, run cold on GPUs: writes validator-mutants.json.

    nice python benchmarks/mutants_gpu.py plan --folder plans/mutants            # CPU, some minutes
    python benchmarks/mutants_gpu.py run --folder plans/mutants --gpus 4 --seconds 420
    python benchmarks/mutants_gpu.py summary --folder plans/mutants --folder plans/near   # no GPU: journals

A mutant is a kernel of the suite with one to four random edits: neighbours swapped, an instruction moved
within its basic block, a stall count, a wait mask, a scoreboard or a reuse flag changed. With
``--edits near`` it has one edit, and nothing moves further than by one: nearer to the border between right
and wrong, and fewer of them fault, which costs seconds each. Nothing filters
them, except that branches stay where they are and `.nv.info` follows, so that every mutant loads. The
validator judges each beforehand (``plan``); ``run`` refuses plans of another validator. All are run, whatever
it said, approved ones first; see `mutants/lean.py` for what "cold" means. Outputs are poisoned and the whole
arena (outputs, inputs, guard bands) is compared bitwise with what the original leaves, on two input sets.
Crashes and hangs cost a process and count as wrong.

Approved and wrong must be zero. Refused and right is no fault: a mutant may break a rule and be lucky.

``run`` writes a line a mutant to journals beside the result, stops after ``--seconds``, and goes on where it
stopped when called again, or where the journals of ``--journals`` stop: those of earlier sittings are in
benchmarks/results/mutants. A mutant's outcome stays true when the validator changes: make the plans again,
and ``summary`` writes the table under today's verdicts. ``--pretend`` runs the harness without a GPU, with
invented outcomes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import ROOT, gpu_count, write
from mutants import plan, schedule

#: journals of earlier sittings, and sittings.json: on what, with what and when they ran
JOURNALS = ROOT / "benchmarks" / "results" / "mutants"


def main(arguments: list[str] | None = None) -> int:
    """See the module; 0 when nothing that was approved is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("plan", "run", "summary"))
    parser.add_argument("--folder", type=Path, action="append", help="of plans; summary: of each set")
    parser.add_argument("--mutants", type=int, default=20_400, help="plan: in all")
    parser.add_argument("--only", default="", help="kernels, comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edits", choices=tuple(plan.CHANCES), default="wide", help="plan: see below")
    parser.add_argument("--workers", type=int, default=2, help="plan: processes")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--seconds", type=float, default=420.0, help="run: stop then")
    parser.add_argument("--no-window", action="store_true", help="run: stale addresses may fault")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="run, summary: of earlier sittings")
    parser.add_argument("--pretend", action="store_true", help="run: no GPU, invented outcomes")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    options = parser.parse_args(arguments)
    only = [name for name in options.only.split(",") if name]
    options.folders = options.folder or [Path("plans/mutants")]
    options.folder = options.folders[0]
    try:
        return {"plan": make, "run": run, "summary": summarise}[options.step](options, only)
    except plan.NoPlan as error:
        parser.error(str(error))


def make(options: argparse.Namespace, only: list[str]) -> int:
    """Write the plans that are missing or stale."""
    from sassafras import suite

    names = only or list(suite.names())
    share = -(-options.mutants // len(names))
    options.folder.mkdir(parents=True, exist_ok=True)
    current = plan.validator_digest()
    jobs = {}
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for name in names:
            path = options.folder / f"{name}.xz"
            if path.exists():
                found = plan.read(path)
                as_asked = (current, options.seed, options.edits, share)
                if (found["validator"], found["seed"], found.get("edits", "wide"), len(found["mutants"])) == (
                    as_asked
                ):
                    continue
            jobs[pool.submit(plan.make, name, share, options.seed, str(path), options.edits)] = name
        failed = 0
        for job in as_completed(jobs):
            try:
                print(job.result(), flush=True)
            except Exception as error:
                failed += 1
                print(f"{jobs[job]}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


def run(options: argparse.Namespace, only: list[str]) -> int:
    """Run the plans; write what there is."""
    gpus = options.gpus or (2 if options.pretend else gpu_count())
    if not gpus:
        print("no GPU here (--pretend tries the harness without one)")
        return 2
    out = Path(options.out)
    summary = schedule.run(
        options.folder, out, gpus=gpus, seconds=options.seconds, only=only, window=not options.no_window,
        pretend=options.pretend, say=lambda text: print(text, flush=True),
        seen=None if options.pretend else options.journals,
    )  # fmt: skip
    environment: dict[str, Any] = {"gpu": "pretended"}
    if not options.pretend:
        from sassafras.cuda.environment import environment as found

        environment = found()
    rows = [{"kernel": name, **counts} for name, counts in summary.pop("kernels").items()]
    name = "validator-mutants-pretended" if options.pretend else "validator-mutants"
    write(name, rows, summary, environment, seed=options.seed, out=out)
    print(json.dumps(summary, indent=1))
    return 1 if summary["approved_but_wrong"] else 0


def summarise(options: argparse.Namespace, only: list[str]) -> int:
    """Write the table of what the journals hold under the plans' verdicts, by set and added up; no GPU."""
    counted: set[tuple[str, str]] = set()
    sets = [_set(folder, options.journals, only, counted) for folder in options.folders]
    added = (
        "mutants_planned", "mutants_run", "approved_run", "approved_planned", "approved_and_right",
        "approved_but_wrong", "refused_and_right", "refused_and_wrong",
    )  # fmt: skip
    summary: dict[str, Any] = {name: sum(one[name] for one in sets) for name in added}
    summary["counterexamples"] = [row for one in sets for row in one["counterexamples"]]
    old = [one["was_approved"] for one in sets]
    summary["was_approved"] = {
        "outcomes": dict(sum((Counter(one["outcomes"]) for one in old), Counter())),
        "wrong": [row for one in old for row in one["wrong"]],
    }
    summary["validator"] = plan.validator_digest()
    rows = [
        {"set": one["edits"], "kernel": name, **counts}
        for one in sets
        for name, counts in one.pop("kernels").items()
    ]
    summary["sets"] = sets
    sittings = json.loads((options.journals / "sittings.json").read_text())
    command = "python benchmarks/mutants_gpu.py summary, of the journals of: "
    command += "; ".join(sitting["command"] for sitting in sittings)
    write(
        "validator-mutants", rows, summary, {"sittings": sittings}, seed=options.seed, out=options.out,
        command=command,
    )  # fmt: skip
    print(json.dumps(summary, indent=1))
    return 1 if summary["approved_but_wrong"] else 0


def _set(folder: Path, journals: Path, only: list[str], counted: set[tuple[str, str]]) -> dict[str, Any]:
    """The table of one folder of plans, less the mutants that are counted already."""
    plans = schedule.current(folder, only)
    rows = schedule.journal_rows(journals, plans)
    rows = [row for row in rows if (row["kernel"], row["digest"]) not in counted]
    counted |= {(row["kernel"], row["digest"]) for row in rows}
    edits = {(found["seed"], found.get("edits", "wide")) for found in plans.values()}
    seeds, kinds = zip(*sorted(edits), strict=True)
    found = schedule.summarise(rows, plans, schedule.Work(plans, set()))
    return {"edits": ", ".join(kinds), "seed": seeds[0], **found}


if __name__ == "__main__":
    raise SystemExit(main())
