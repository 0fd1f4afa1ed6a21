"""Measured latencies: the smallest safe distance of each pair of instructions; writes latencies.json.

    nice python benchmarks/latencies.py plan --folder plans/latencies            # CPU, a minute
    python benchmarks/latencies.py run --folder plans/latencies --seconds 90     # one GPU

A *pair* is a producer and a consumer of one register (``raw``), a reader and the writer behind it (``war``),
or two writers (``waw``), keyed as the mined tables are. Each pair stands alone in a loop of its own, between
idle instructions, and its producer's stall count is lowered until results change: see `latency/frame.py` for
what is compared with what, `latency/cases.py` for the pairs. Every distance from 15 cycles down (from 40
where the tensor cores or FP64 take part) is tried with both yield hints, with one warp a multiprocessor,
one a scheduler and a full multiprocessor, each from a module loaded a moment before. Then the smallest
right distances are run again until the time is up.

``run`` writes a line a kernel and distance to ``latencies-journal.jsonl`` beside the result and goes on where
it stopped when called again. It ends with status 1 when a pair that is known to be too close was not caught
(``known_too_short``), or when a pair was wrong at every distance that ptxas emits.
``report`` makes the result from a journal again, ``publish`` what is kept of it in ``benchmarks/results/``:
``latencies.json`` with the summary and the pairs pooled by class, and ``latencies-pairs.json.xz`` with a row
a pair. ``--pretend`` runs without a GPU, with made-up latencies.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.common import command_line, read_result, write  # noqa: E402
from benchmarks.latency import plan as plans  # noqa: E402
from benchmarks.latency import report  # noqa: E402
from benchmarks.latency.analysis import Tally  # noqa: E402
from benchmarks.latency.run import Runner  # noqa: E402
from sassafras.core import SassafrasError  # noqa: E402

#: columns that are not published
DROPPED = ("distances", "first", "second", "probe", "bound", "shortest", "odd", "below")


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = command_line(__doc__, out=".")
    parser.add_argument("step", choices=("plan", "run", "report", "publish"))
    parser.add_argument("result", nargs="?", type=Path, help="publish: latencies.json of a run")
    parser.add_argument("--folder", type=Path, default=Path("plans/latencies"))
    parser.add_argument("--seconds", type=float, default=90.0, help="run: stop then")
    parser.add_argument("--turns", type=int, default=99, help="run: confirm so many times at most")
    parser.add_argument("--pairs", type=int, help="plan: at most so many, spread over all")
    parser.add_argument("--only", default="", help="plan: opcode keys, comma-separated; both must begin so")
    parser.add_argument("--pretend", action="store_true", help="run: no GPU, made-up latencies")
    parser.add_argument("--fault", default="", help="run --pretend: consumers that hang and crash")
    options = parser.parse_args(arguments)
    try:
        if options.step == "plan":
            return make(options)
        if options.step == "publish":
            return publish(options)
        return run(options)
    except SassafrasError as error:
        print(error)
        return 2


def make(options: argparse.Namespace) -> int:
    """Write a plan."""
    prefixes = tuple(name for name in options.only.split(",") if name)
    only = (lambda row: row[1].startswith(prefixes) and row[3].startswith(prefixes)) if prefixes else None
    made = plans.make(options.folder, options.pairs, only, datetime.now(UTC).strftime("%Y-%m-%d"))
    size = sum(f.stat().st_size for f in options.folder.iterdir()) / 2**20
    print(f"{made.pairs} pairs in {len(made.batches)} kernels, {size:.1f} MiB in {options.folder}")
    reasons = sorted({why for *_, why in made.refused})
    if not prefixes:
        print(f"{len(made.refused)} pairs cannot be measured:", *reasons, sep="\n  ")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run a plan, or read its journal; write what there is."""
    plan = plans.load(options.folder)
    out = options.out
    folder, name = (out.parent, out.stem) if out.suffix == ".json" else (out, "latencies")
    journal = folder / f"{name}-journal.jsonl"
    environment: dict[str, Any] = {"gpu": "pretended"}
    command = None
    if options.step == "run":
        runner = Runner(plan, journal, options.seconds, options.pretend, options.fault, options.turns)
        done = runner.run()
        tally, restarts = runner.tally, runner.restarts
        if not options.pretend:
            from sassafras.cuda.environment import environment as found

            environment = found()
    else:
        tally, done, restarts = Tally(plan), False, 0
        tally.read(journal)
        known = folder / f"{name}.json"
        if known.exists():
            before = json.loads(known.read_text())
            environment, command = before["environment"], before.get("command")
            done = bool(before.get("summary", {}).get("swept"))
    rows, summary = report.rows(plan, tally)
    summary |= {"swept": done, "restarts": restarts, "plan": plan.digest, "planned": plan.date}
    print(report.text(rows, summary))
    path = write(name, rows, summary, environment, out=folder, command=command)
    print(f"written to {path}")
    return 0 if summary["sound"] else 1


def publish(options: argparse.Namespace) -> int:
    """Write what is kept of a result."""
    if options.result is None:
        raise SassafrasError("which result is to be published?", hint="publish latencies.json --out FOLDER")
    made = read_result(options.result, of="latencies")
    folder = options.out
    rows = [{k: v for k, v in r.items() if k not in DROPPED} for r in made["rows"]]
    pairs = folder / "latencies-pairs.json.xz"
    folder.mkdir(parents=True, exist_ok=True)
    pairs.write_bytes(lzma.compress(json.dumps({**made, "rows": rows}).encode(), preset=9))
    head = json.dumps({k: v for k, v in made.items() if k != "rows"}, indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(r) for r in report.classes(made["rows"]))
    (folder / "latencies.json").write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n')
    print(f"written to {folder}: latencies.json and {pairs.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
