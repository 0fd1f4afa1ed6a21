"""HGEMM on a GPU: check every kernel of ours, then select and report; writes hgemm-offline.json.

    python benchmarks/hgemm.py [--bands '<1e8,1e8-1e9'] [--shapes N] [--large N] [--configs 256]
                               [--seconds 0.1] [--processes 1] [--cache FOLDER] [--resume] [--only-verify]

Three stages, each in processes of its own: `verify` (boundary shapes, every instance, against FP64),
`select`, `measure`. --large adds a stratified sample of the other bands, for the baselines' table. All
files go to $OUT, or to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import ROOT, write


def _verify(cache: str | None, seed: int, path: str) -> None:
    """In a process of its own: boundary shapes; the records go to a file."""
    from sassafras.gemm.tools import Tools
    from sassafras.gemm.verify import verify

    records = verify(Tools(Path(cache) if cache else None), seed=seed)
    Path(path).write_text(json.dumps(records, indent=1))


def verified(cache: Path | None, seed: int, folder: Path) -> dict[str, Any]:
    """Counts of the verification; `faults` lists at most twenty."""
    path = folder / "hgemm-verify.json"
    path.unlink(missing_ok=True)
    process = get_context("spawn").Process(
        target=_verify, args=(str(cache) if cache else None, seed, str(path))
    )
    process.start()
    process.join()
    if not path.exists():
        return {"right": 0, "faults": [f"the process ended with status {process.exitcode}"]}
    records = json.loads(path.read_text())
    faults = [{"shape": r["shape"], **fault} for r in records for fault in r["faults"]]
    return {
        "right": sum(r["right"] for r in records),
        "wrong": len(faults),
        "worst_rms_ratio": max(r["worst_rms_ratio"] for r in records),
        "faults": faults[:20],
    }


def main() -> int:
    """Run the stages; 1 when a kernel of ours was wrong anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bands", default="<1e8,1e8-1e9", help="bands of the full run; 'all' for the grid")
    parser.add_argument("--shapes", type=int, help="only a stratified sample of them")
    parser.add_argument("--large", type=int, default=0, help="so many shapes of the other bands as well")
    parser.add_argument("--configs", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    parser.add_argument("--resume", action="store_true", help="continue the journals in --out")
    parser.add_argument("--only-verify", action="store_true")
    options = parser.parse_args()
    from sassafras.device.cuda import available, environment
    from sassafras.gemm import bench
    from sassafras.gemm.compile import build
    from sassafras.gemm.families import INSTANCES
    from sassafras.gemm.results import choose_shapes
    from sassafras.gemm.select import Options
    from sassafras.gemm.shapes import BANDS
    from sassafras.gemm.summary import table

    usable, reason = available()
    print(reason, flush=True)
    if not usable:
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    build(INSTANCES, options.cache)
    print(f"{len(INSTANCES)} kernels ready after {time.perf_counter() - begin:.1f} s", flush=True)
    checks = verified(options.cache, options.seed, options.out)
    print(f"verify: {json.dumps(checks)} after {time.perf_counter() - begin:.1f} s", flush=True)
    if options.only_verify:
        return 1 if checks["faults"] else 0
    bands = None if options.bands == "all" else options.bands
    shapes = choose_shapes("cuda-l2", bands, options.shapes, options.seed)
    if options.large and bands:
        others = ",".join(band for band in BANDS if band not in bands.split(","))
        shapes += choose_shapes("cuda-l2", others, options.large, options.seed)
    settings = Options(configs=options.configs, seconds=options.seconds, seed=options.seed)
    rows, summary = bench.run(
        shapes, options.out, settings, processes=options.processes, cache=options.cache,
        fresh=not options.resume, progress=25, say=lambda text: print(text, flush=True),
    )  # fmt: skip
    summary["verify"] = checks
    path = write("hgemm-offline", rows, summary, environment(), seed=options.seed, out=options.out)
    columns, cells = table(summary)
    for line in (columns, *cells):
        print("  ".join(cell.rjust(13) for cell in line))
    failed = [row for row in rows if "error" in row]
    for row in failed[:10]:
        print("FAILED", row["shape"], row["error"])
    wrong = sum(row.get("wrong_in_selection", 0) for row in rows)
    print(f"{len(rows)} shapes, {len(failed)} failed, {wrong} wrong configurations; {path.name}; "
          f"{time.perf_counter() - begin:.0f} s in all")  # fmt: skip
    return 1 if checks["faults"] or wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
