"""Three whole programs before and after `sassafras tune --space compiler -- COMMAND`, beside an A/A control.

Each program (benchmarks/programs/) runs once unmeasured, which compiles and autotunes, then through the
command: recorded, its heaviest Triton kernels tuned, run without, with and again without tuned code. The
times are the steps that the program prints. Rows of programs that --only leaves out stay as they were.

    python benchmarks/whole_programs.py --sources FOLDER      # all: writes benchmarks/results/programs.json

FOLDER holds liger_kernel/ and mamba_ssm/ at the commits of results/third-party.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, command_line, commit, one_gpu, python_path, read_result, write

METRIC = r"step ([0-9.]+) us"
#: program -> whether it needs the sources
PROGRAMS = {"decoder_step": False, "liger_step": True, "mamba_layer": True}


def command(name: str, sources: Path | None) -> list[str]:
    """The program's."""
    words = [sys.executable, str(ROOT / "benchmarks" / "programs" / f"{name}.py")]
    return [*words, "--sources", str(sources)] if PROGRAMS[name] else words


def tuned(name: str, sources: Path | None, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The report of `sassafras tune`. Raises RuntimeError with what it said."""
    words = [sys.executable, "-m", "sassafras", "tune", "--space", "compiler", "--runner-ups", "0"]
    words += ["--kernels", str(options.kernels), "--budget", options.budget, "--rounds", str(options.rounds)]
    words += ["--metric", METRIC, "--store", str(place / "store.sqlite"), "--out", str(place / "tune")]
    words += ["--json", "--", *command(name, sources)]
    place.mkdir(parents=True, exist_ok=True)
    with (place / "log.txt").open("w") as log:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {(place / 'log.txt').read_text().strip()[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(name: str, found: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Of a program, from its report."""
    kernels, program = found["kernels"], found["program"]
    made: dict[str, Any] = {
        "program": name,
        "why": found["why"],
        "expected": kernels["expected"] and round(kernels["expected"], 4),
        "expected_cold": kernels["expected_cold"] and round(kernels["expected_cold"], 4),
        "conclusion": kernels["conclusion"],
        "captured": len(kernels["rows"]),
        "seconds": round(seconds, 1),
        "kernels": [
            {
                "kernel": each["label"],
                "share": round(each["share"], 4),
                "launches": each["launches"],
                "speedup": each["ratio"] and round(each["ratio"], 4),
                "cold": each["cold"] and round(each["cold"], 4),
                "interval": each["interval"] and [round(each["interval"][end], 4) for end in ("low", "high")],
                "improved": each["improved"],
                "detail": each["detail"],
            }
            for each in kernels["rows"]
        ],
    }
    if program is not None:
        for column, key in (("speedup", "interval"), ("null", "null_interval")):
            made[column] = round(program[column], 4)
            made |= {f"{column}_{end}": round(program[key][end], 4) for end in ("low", "high")}
        first, last = program["last"]
        made |= {"rounds": program["rounds"], "deployed": program["deployed"], "same_bytes": first == last}
    return made


def main() -> int:
    """Measure, write."""
    parser = command_line(__doc__, out=None)
    parser.add_argument("--sources", type=Path, help="folder with the sources of other projects")
    parser.add_argument("--only", default="", help="programs, separated by commas")
    parser.add_argument("--budget", default="90s", help="search of a program's kernels together")
    parser.add_argument("--kernels", type=int, default=5, help="kernels tuned of a program")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of three runs")
    parser.add_argument("--work", type=Path, default=Path("programs-work"), help="folder to work in")
    parser.add_argument(
        "--limit-s", type=float, default=86400.0, help="start no program after this many seconds"
    )
    parser.add_argument("--out", type=Path, help="folder of the result")
    options = parser.parse_args()
    begin = time.perf_counter()
    names = [name for name in PROGRAMS if name in options.only.split(",") or not options.only]
    if not names or (any(PROGRAMS[name] for name in names) and options.sources is None):
        parser.error("no such program, or --sources is missing")
    from sassafras.cuda.environment import environment

    path = (options.out or RESULTS) / "programs.json"
    kept = read_result(path, "environment") if path.is_file() else {"rows": []}
    here = environment()
    rows = {each["program"]: each for each in kept["rows"]}
    if rows.keys() - set(names):
        one_gpu([here, kept["environment"]])
    os.environ["PYTHONPATH"] = python_path()
    for name in names:
        if time.perf_counter() - begin > options.limit_s:
            print(f"{name}: no time is left")
            continue
        started = time.perf_counter()
        subprocess.run(command(name, options.sources), check=True, stdout=subprocess.DEVNULL)
        found = tuned(name, options.sources, options.work / name, options)
        rows[name] = {**row(name, found, time.perf_counter() - started), "commit": commit()}
        shown = {key: value for key, value in rows[name].items() if key not in ("kernels", "rounds")}
        print(json.dumps(shown), flush=True)
        in_order = [rows[each] for each in PROGRAMS if each in rows]
        commits = "; ".join(dict.fromkeys(str(each["commit"]) for each in in_order if "commit" in each))
        write("programs", in_order, {"programs": len(in_order)}, here, out=options.out, commits=commits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
