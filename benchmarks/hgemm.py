"""HGEMM on a GPU: sweep, benchmark; one command for each sitting.

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

Sweep, offline and server share the selection journals in --out ($OUT, or benchmarks/results): after a sweep
the others only measure. The same command resumes. --dry-run rehearses all of it on a modelled clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from common import ROOT, commit, gpu_count

STAGES = ("sweep", "offline", "server", "off-grid")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--grid", help="another one: judge-5, judge-6, learn-1, ...")
    parser.add_argument("--layouts", default="nn,tn", help="of a sweep: of nn and tn, or of nt and tt")
    parser.add_argument("--bands", help="only these bands, for example '<1e8,1e8-1e9'")
    parser.add_argument("--shapes", type=int, help="only a stratified sample of so many")
    parser.add_argument("--configs", type=int, help="screened a shape and layout (128; --only-configs: 24)")
    parser.add_argument("--only-configs", default="", help="regular expression: re-tune only these, see docs")
    parser.add_argument("--recorded", type=int, default=4, help="with it: the dataset's best, a layout")
    parser.add_argument(
        "--known", action="store_true", help="server: choose among the dataset's, by isolated calls"
    )
    parser.add_argument("--seconds", type=float, default=0.1, help="GPU time of a shape's measurement")
    parser.add_argument("--processes", type=int, default=1, help="fresh processes that measure")
    parser.add_argument("--gpus", type=int, help="default: all")
    parser.add_argument("--minutes", type=float, help="start no shape after so long")
    parser.add_argument("--mode", default="offline", help="of off-grid: offline or server")
    parser.add_argument("--rate", type=float, default=1000.0, help="server: calls a second")
    parser.add_argument("--calls", type=int, default=30, help="server: calls of each contestant")
    parser.add_argument(
        "--apart", action="store_true", help="the L2 emptied and one untimed call ahead of each block"
    )
    parser.add_argument("--exclude", default="", help="regular expression: configurations not to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    parser.add_argument("--fresh", action="store_true", help="start over instead of resuming")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, on a modelled clock")
    return parser.parse_args()


def main() -> int:
    """Run a stage; 1 when a kernel of ours was wrong anywhere or a shape failed."""
    given = arguments()
    from sassafras.cli import files
    from sassafras.cuda.environment import available
    from sassafras.gemm.bench import runs
    from sassafras.gemm.bench.grids import choose_shapes, file_name, judges
    from sassafras.gemm.bench.options import Options, of_known, retuning
    from sassafras.gemm.bench.report import table
    from sassafras.gemm.bench.runs import benchmark, save_sweep

    if not given.dry_run:
        usable, reason = available()
        print(reason, flush=True)
        if not usable:
            return 2
    os.environ.setdefault("SASSAFRAS_COMMIT", commit() or "")
    files.folder(given.out)
    begin = time.perf_counter()
    grid = given.grid or ("judge-1" if given.stage == "off-grid" else "cuda-l2")
    shapes = choose_shapes(grid, given.bands, given.shapes, given.seed)
    options = Options(
        configs=given.configs or 128,
        seconds=given.seconds,
        seed=given.seed,
        rate=given.rate,
        calls=given.calls,
        tuned=not judges(grid),
        exclude=given.exclude,
        layouts=tuple(given.layouts.split(",")),
        apart=given.apart,
    )
    if given.only_configs:
        options = retuning(options, given.only_configs, given.recorded, given.configs)
    if given.known:
        options = of_known(options, given.recorded)
    gpus = given.gpus or (gpu_count() if not given.dry_run else 2) or 1
    settings = runs.RunSettings(
        given.out, options, gpus, None, given.minutes, given.dry_run, given.fresh, given.cache, 25,
        lambda text: print(text, flush=True),
    )  # fmt: skip
    if given.stage == "sweep":
        dataset = runs.sweep(shapes, settings)
        for path in save_sweep(dataset, given.out, changed=given.only_configs):
            print("wrote", path)
        spent = time.perf_counter() - begin
        done = sum(shape in dataset.entries for shape in shapes)  # journals may hold other bands' too
        held = f"{len(dataset)} and {dataset.pairs} pairs in the dataset"
        print(f"{done} of {len(shapes)} shapes, {held}, {spent:.0f} s")
        return 0 if len(dataset) else 1
    mode = given.mode if given.stage == "off-grid" else given.stage
    name = file_name(grid, mode)
    if mode == "server" and given.rate != 1000:
        name += f"-{given.rate:g}"
    path, summary = benchmark(shapes, settings, mode=mode, name=name, processes=given.processes)
    columns, cells = table(summary)
    for line in (columns, *cells):
        print("  ".join(cell.rjust(13) for cell in line))
    rows = json.loads(path.read_text())["rows"]
    failed = [row for row in rows if "error" in row]
    for row in failed[:10]:
        print("FAILED", row["shape"], row["error"])
    wrong = sum(row.get("wrong_in_selection", 0) for row in rows)
    counts = f"{len(rows)} shapes, {len(failed)} failed, {summary['pending']} pending, {wrong} wrong"
    print(f"{counts} configurations; {path.name}; {time.perf_counter() - begin:.0f} s in all")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    from sassafras.core import SassafrasError

    try:
        sys.exit(main())
    except SassafrasError as error:
        sys.exit(f"error: {error}")
