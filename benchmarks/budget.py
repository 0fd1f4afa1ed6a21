"""Wall time of `sassafras optimize` against its budget, one command a kernel: writes budget.json.

    python benchmarks/budget.py --seconds 10 [--only softmax,attention] [--device auto|cuda|model]
                                [--targets FILE.py ...] [--with budget.json]

Wall time is from the start of the command to its end. A short search comes first: on a new machine it
compiles our loops (``first_use_s``); Triton's compilation of each kernel is part of its row. Rows are kept
in budget.rows.jsonl, and not measured a second time. ``--with`` adds those of another result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, Lines, command_line, one_gpu, python_path, read_result, write

Row = dict[str, Any]
#: budgets above this may take a third more, those below 10 s more
LONG_S = 60.0
KEY = ("kernel", "budget_s", "modelled")


def command(target: str, budget: str, device: str, folder: str) -> tuple[float, Row]:
    """Seconds of a command, and what it answered (or its error)."""
    words = [sys.executable, "-m", "sassafras", "optimize", target, "--budget", budget, "--device", device]
    words += ["--store", f"{folder}/store.sqlite", "--out", f"{folder}/out", "--fresh", "--json"]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    began = time.monotonic()
    run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    wall = time.monotonic() - began
    said = run.stderr.splitlines()[-1:] or run.returncode
    return wall, {"error": said} if run.returncode else json.loads(run.stdout)


def named(target: str) -> str:
    """What a row calls a target."""
    return Path(target.removeprefix("suite:")).stem


def one(target: str, seconds: float, device: str, modelled: bool) -> tuple[Row, Row]:
    """A row, and the environment that it was measured in."""
    with tempfile.TemporaryDirectory() as folder:
        wall, found = command(target, f"{seconds:g}s", device, folder)
    row: Row = {"kernel": named(target), "budget_s": seconds, "modelled": modelled, "wall_s": round(wall, 2)}
    row["excess_s"] = round(wall - seconds, 2)
    if "error" in found:
        return row | {"error": str(found["error"])}, {}
    row |= {key: found[key] for key in ("case", "device", "evaluations", "improved", "reason", "notes")}
    row |= {"search_s": round(found["seconds"], 2), "processes": len(found["facts"].get("processes", ()))}
    row["evaluations_per_second"] = round(found["evaluations"] / max(found["seconds"], 1e-9), 1)
    return row, found["environment"]


def summarise(rows: list[Row]) -> Row:
    """The worst excess of short budgets (of files apart, whose imports count), and the worst ratio of long
    ones, by device."""
    from sassafras import suite

    ours = set(suite.names())
    out: Row = {"rows": len(rows), "failed": [row["kernel"] for row in rows if "error" in row]}
    for kind, modelled in (("", False), ("modelled_", True)):
        good = [row for row in rows if "error" not in row and row["modelled"] is modelled]
        short = [row for row in good if row["budget_s"] <= LONG_S]
        long = [row for row in good if row["budget_s"] > LONG_S]
        for name, among in (("", True), ("of_files_", False)):
            if found := [row["excess_s"] for row in short if (row["kernel"] in ours) is among]:
                out[f"{kind}worst_excess_{name}s"] = max(found)
        if short:
            out[f"{kind}least_search_share"] = min(row["search_s"] / row["budget_s"] for row in short)
        if long:
            out[f"{kind}worst_ratio_long"] = max(row["wall_s"] / row["budget_s"] for row in long)
        if processes := [row["processes"] for row in good if row["processes"]]:
            out[f"{kind}least_processes"] = min(processes)
    return out


def main() -> None:
    """Measure what is not in the journal, and write the result."""
    from sassafras import suite

    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="", help="kernels of the suite, by commas; by default all")
    parser.add_argument("--targets", nargs="*", default=[], help="other targets, instead of the suite's")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "model"))
    parser.add_argument("--with", dest="others", type=Path, help="a result whose other rows are added")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - set(suite.names()):
        raise SystemExit(f"error: no kernel of the suite: {', '.join(sorted(unknown))}")
    other = read_result(options.others, "environment", of="budget") if options.others else {}
    others = other.get("rows", [])
    journal = Lines(options.out / "budget.rows.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        first_use, found = command("suite:kv_append", "5e", options.device, folder)
    if "error" in found:
        raise SystemExit(f"error: the first search failed: {found['error']}")
    known = {tuple(line["row"][key] for key in KEY) for line in journal.rows if "error" not in line["row"]}
    for target in options.targets or [f"suite:{name}" for name in names or suite.names()]:
        if (named(target), options.seconds, found["modelled"]) in known:
            continue
        row, environment = one(target, options.seconds, options.device, found["modelled"])
        print({key: row.get(key) for key in ("kernel", "wall_s", "search_s", "evaluations", "error")})
        journal.add({"row": row, "environment": environment})
    rows = {tuple(row[key] for key in KEY): row for row in (*others, *(line["row"] for line in journal.rows))}
    summary = {**summarise(list(rows.values())), "first_use_s": round(first_use, 2)}
    environment = one_gpu([*(line["environment"] for line in journal.rows[::-1]), other.get("environment")])
    environment["command"] = " ".join(["budget.py", *sys.argv[1:]])  # not that of the last row
    print(write("budget", list(rows.values()), summary, environment, out=options.out))


if __name__ == "__main__":
    main()
