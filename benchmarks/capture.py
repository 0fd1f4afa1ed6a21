"""From a program to its tuned self, end to end: capture, tune all shapes, deploy, measure the whole program.

    python benchmarks/capture.py --budget 45s          # on a GPU machine: about six minutes
    python benchmarks/capture.py --dry-run             # anywhere: timing model, nothing is launched

``examples/serve_demo.py`` is recorded; `optimize --captured` tunes it; then processes without and with
`sassafras run` alternate, and the ratio of their own times stands beside what was expected. ``--work`` keeps
the work folder: the same command then goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, write

DEMO = ROOT / "examples" / "serve_demo.py"


def environment(work: Path) -> dict[str, str]:
    """Of every process: one Triton cache, one store, this tree."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(work / "cache"),
        "SASSAFRAS_STORE": str(work / "store.sqlite"),
    }  # fmt: skip


def run(work: Path, *command: str) -> str:
    """One process's output; raises with its errors."""
    done = subprocess.run(
        list(command), capture_output=True, text=True, env=environment(work), timeout=1500, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return done.stdout


def seconds(text: str) -> float:
    """What the program says of itself."""
    return float(
        json.loads(next(line for line in text.splitlines() if line.startswith('{"steps"')))["seconds"]
    )


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", default="45s", help="of each kernel")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of processes")
    parser.add_argument("--work", type=Path, default=None, help="folder to keep")
    parser.add_argument(
        "--width", type=int, default=2048, help="of the program's rows; not 2048: another file"
    )
    parser.add_argument("--rows", type=int, default=16384, help="tokens of a request")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = (options.work or Path(name)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        python, sassafras = sys.executable, [sys.executable, "-m", "sassafras"]
        program = [python, str(DEMO), "--steps", str(options.steps), "--width", str(options.width)]
        program += ["--rows", str(256 if options.dry_run else options.rows)]
        if options.dry_run:
            program = [python, "-m", "tests.capture.drive", *program[1:], "--device", "cpu"]
        folder = work / "captured"
        if not (folder / "captured.json").exists():
            print(run(work, *sassafras, "capture", "-o", str(folder), "--", *program))
        device = "model" if options.dry_run else "cuda"
        tuned = run(
            work, *sassafras, "optimize", "--captured", str(folder), "--device", device,
            "--budget", options.budget, "--out", str(work / "out"), "--quiet",
        )  # fmt: skip
        print(tuned)
        report = json.loads((work / "out" / "captured-report.json").read_text())
        ratios = []
        for pair in range(options.pairs):
            found: dict[bool, float] = {}
            for deployed in (False, True) if pair % 2 == 0 else (True, False):
                found[deployed] = seconds(
                    run(work, *([*sassafras, "run", "--"] if deployed else []), *program)
                )
            ratios.append(found[False] / found[True])
            print(f"pair {pair}: {ratios[-1]:.4f}x", flush=True)
    about: dict[str, Any] = {"gpu": None}
    if not options.dry_run:
        from sassafras.cuda.environment import environment as gpu_environment

        about = gpu_environment()
    summary = {
        "dry_run": options.dry_run, "modelled": report["modelled"], "expected": report["expected"],
        "expected_low": report["expected_low"], "expected_high": report["expected_high"],
        "saved_s": report["saved_s"], "end_to_end": statistics.median(ratios),
        "end_to_end_range": [min(ratios), max(ratios)], "pairs": options.pairs, "steps": options.steps,
        "width": options.width, "rows": options.rows,
    }  # fmt: skip
    print(report["conclusion"])
    name = "capture" if options.width == 2048 else f"capture-{options.width}"
    print("wrote", write(name, report["rows"], summary, about, out=options.out))


if __name__ == "__main__":
    main()
