"""HGEMM on a GPU: the stages of a sitting, by `sassafras tune --products` and `sassafras gemm bench`.

    python benchmarks/hgemm.py sweep    [--gpus 4] [--minutes 5]      dataset and table of winners
    python benchmarks/hgemm.py sweep    --only-configs REGEX          re-tune, merged over what is shipped
    python benchmarks/hgemm.py offline  [--gpus 4] [--processes 5]    hgemm-offline.json
    python benchmarks/hgemm.py server   [--gpus 4] [--rate 1000]      hgemm-server.json
    python benchmarks/hgemm.py server   --rate 100 --shapes 200       hgemm-server-100.json
    python benchmarks/hgemm.py off-grid [--mode offline]              hgemm-judge-1.json
    python benchmarks/hgemm.py off-grid --grid judge-5                shapes that nothing has learnt from
    python benchmarks/hgemm.py off-grid --grid judge-7                rows that are no multiple of 16 bytes
    python benchmarks/hgemm.py sweep    --grid learn-1 --out FOLDER   shapes to learn from: choosers.py
    python benchmarks/hgemm.py sweep    --grid backward --layouts nt,tt   gradients of weights

Beside --grid, options are those of the two commands (`--help` there). What differs here: all GPUs (--gpus),
blocks that follow each other unless --apart, journals and results in --out ($OUT, or benchmarks/results),
and a sweep's table is not installed. Sweep, offline and server share the selection journals in --out: after
a sweep the others only measure. The same command resumes. --dry-run rehearses all of it on a modelled clock.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from common import RESULTS, commit, gpu_count

STAGES = ("sweep", "offline", "server", "off-grid")


def words(given: list[str]) -> list[str]:
    """The package's command of a stage and its options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--grid", help="another one: judge-5, judge-6, learn-1, ...")
    parser.add_argument("--mode", default="offline", help="of off-grid: offline or server")
    parser.add_argument("--gpus", type=int, help="default: all")
    parser.add_argument("--apart", action="store_true", help="see `sassafras gemm bench --help`")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, on a modelled clock")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or RESULTS))
    own, more = parser.parse_known_args(given)
    grid = own.grid or ("judge-1" if own.stage == "off-grid" else "cuda-l2")
    mode = own.mode if own.stage == "off-grid" else own.stage
    command = ["gemm", "bench", "--mode", mode, "--grid", grid]
    if own.stage == "sweep":
        command = ["tune", "--no-install", "--products", grid]
    gpus = own.gpus or (2 if own.dry_run else gpu_count()) or 1
    command += ["--gpus", str(gpus), "--out", str(own.out), "--apart" if own.apart else "--no-apart"]
    return [*command, *(["--dry-run"] if own.dry_run else []), *more]


if __name__ == "__main__":
    from sassafras.cli.app import app

    os.environ.setdefault("SASSAFRAS_COMMIT", commit() or "")
    app(words(sys.argv[1:]))
