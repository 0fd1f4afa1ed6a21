"""The kernels of compiler-space.json again, on another day; writes compiler-space-again.json. Needs one GPU.

    python benchmarks/remeasure.py [--only rotary,...] [--targets captured.json:KERNEL ...] [--limit-s 300]
        [--dry-run]

Each row's kernel after settings and rewrites is made again from its recipe, by the release of ptxas that the
recipe names, and measured as it was the first time: over the frontend's own kernel, in fresh processes beside
the A/A control. `same_file`: the cubin has the digest of that day, line tables and paths included. Of the
schedules that were searched after that, rows hold digests alone. --targets: as `beyond.py --compiler` had
them. Each row is a line of compiler-space-again.rows.jsonl; the same command goes on with missing ones.
--dry-run only makes the kernels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from beyond import label, subjects
from common import RESULTS, Lines, command_line, ends, geomean, one_gpu, per_gpu, read_result, write

Row = dict[str, Any]
#: relative difference of two days that the summary counts as agreement
AGREES = 0.005


def measured(subject: str, stage: Row, options: argparse.Namespace) -> Row:
    """A row: one kernel then and now; an error is a row of its own."""
    from sassafras.core import CompileError, SassafrasError
    from sassafras.frontend import ptx
    from sassafras.jobs.opening import DEFAULT_ARCH, open_device
    from sassafras.targets import load

    recipe = stage["recipe"]
    row: Row = {"kernel": label(subject), "suite": subject.startswith("suite:"), "then": stage["ratio"]}
    row |= {"then_low": stage["interval"][0], "then_high": stage["interval"][1], "recipe": recipe}
    device = None if options.dry_run else open_device("cuda", None)
    try:
        workload = load(subject)
        case = workload.case()
        space = ptx.of(workload, case, DEFAULT_ARCH if device is None else str(device.arch))
        if (version := recipe["ptxas"]) not in space.tools:
            raise CompileError(f"ptxas {version} is not here; there are {', '.join(space.tools)}")
        winner = space.build(ptx.PtxState.from_json(recipe, space.tools[version]))
        row["same_file"] = winner.digest == stage["digest"]
        if device is not None:
            row["environment"] = device.environment()
            device.open(workload, case, space.kernel)
            found = device.remeasure(winner, processes=options.processes)
            if found.speedup is None or found.interval is None or found.null_interval is None:
                raise SassafrasError(f"{found.verdict}: {found.detail}")
            row |= {"now": found.speedup, **ends("now", found.interval), "null": found.null}
            row |= {**ends("null", found.null_interval), "difference": found.speedup / stage["ratio"] - 1}
    except SassafrasError as error:
        row["error"] = str(error)
    finally:
        if device is not None:
            device.close()
    print(row["kernel"], row["then"], row.get("now", row.get("error")), flush=True)
    return row


def summarise(rows: Sequence[Row]) -> Row:
    """Both days' geometric means, and how far single kernels differ."""
    good = [row for row in rows if "now" in row]
    return {
        "kernels": len(good),
        "same_file": sum(row["same_file"] for row in good),
        "geomean_then": geomean((row["then"] for row in good), 4),
        "geomean_now": geomean((row["now"] for row in good), 4),
        "agree": sum(abs(row["difference"]) <= AGREES for row in good),
        "largest_difference": max((abs(row["difference"]) for row in good), default=None),
        "failed": sum("error" in row for row in rows),
        "failed_rows": [f"{row['kernel']}: {row['error']}" for row in rows if "error" in row],
    }


def main() -> None:
    """Command line."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="kernels, comma-separated")
    parser.add_argument("--targets", nargs="+", default=[], help="captured kernels beside the suite's")
    parser.add_argument("--processes", type=int, default=5, help="fresh processes of a kernel")
    parser.add_argument("--limit-s", type=float, default=1e7, help="begin no kernel after so many seconds")
    parser.add_argument("--dry-run", action="store_true", help="make the kernels, without a GPU")
    parser.add_argument("--gpus", type=int, help="[default: all]")
    options = parser.parse_args()
    stages: dict[str, Row] = {}
    for row in read_result(RESULTS / "compiler-space.json", "environment")["rows"]:
        for part in row.get("stages", ()):
            if part["stage"] == "ptx" and part.get("interval"):
                stages[row["kernel"]] = part
    journal = Lines(options.out / "compiler-space-again.rows.jsonl")
    # no rows of an older compiler-space.json, and of rehearsals for rehearsals alone
    then = {name: part["ratio"] for name, part in stages.items()}
    kept = [row for row in journal.rows if options.dry_run or {"now", "error"} & set(row)]
    kept = [row for row in kept if row.get("then", then.get(row["kernel"])) == then.get(row["kernel"])]
    have = {row["kernel"] for row in kept if "error" not in row}
    only = [name for name in options.only.split(",") if name]
    names = [s for s in subjects(only, options.targets) if label(s) in stages and label(s) not in have]
    until = time.monotonic() + options.limit_s
    work = [(subject, stages[label(subject)], options) for subject in names]
    for index, found in per_gpu(measured, work, options.gpus, until=until):
        if isinstance(found, Exception):
            found = {"kernel": label(names[index]), "error": repr(found)}
        journal.add(found)
        kept.append(found)
    last_rows = {row["kernel"]: row for row in sorted(kept, key=lambda row: "error" not in row)}
    rows = [dict(last_rows[name]) for name in sorted(last_rows)]
    if not rows:
        parser.error("no kernel of compiler-space.json is named")
    environments = [row.pop("environment", None) for row in rows]
    if not options.dry_run and not any("now" in row for row in rows):
        parser.error(f"nothing was measured: {summarise(rows)['failed_rows'][0]}")
    if options.dry_run:
        print(summarise(rows))
    else:
        environment = one_gpu(environments)
        print(write("compiler-space-again", rows, summarise(rows), environment, out=options.out))


if __name__ == "__main__":
    main()
