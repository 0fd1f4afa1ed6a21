"""Few tiles and long k: configurations that split k, against cuBLASLt's best and against what is recorded.

    python benchmarks/hgemm_splits.py [--cache FOLDER] [--seconds 45] [--shapes 40] [--dry-run]

Every shape is re-tuned as `hgemm.py sweep --only-configs` does it (finalists are checked against FP64):
candidates are splits and the shipped dataset's best; cuBLASLt's best few run beside them. Columns
`recorded_...` are of the dataset's run: compare ratios over cuBLASLt, not times. Writes hgemm-splits.json to
--out ($OUT, or benchmarks/results).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, write

#: clusters or parts that split k, split-K and stream-K
SPLITS = r"^cs_.*/c([2-8]|1.*p)|^ws_.*/(k([2-9]|1\d)|sk)"


def wanted(count: int) -> list[Any]:
    """Recorded shapes of few tiles and long k, ours furthest behind first; an eighth are short splits."""
    from sassafras.gemm.dataset import shipped

    long: list[tuple[float, Any]] = []
    short: list[tuple[float, Any]] = []
    for entry in shipped():
        s, baseline, ranked = entry.shape, entry.baseline_us(), entry.ranked()
        if not baseline or not ranked:
            continue
        ratio = baseline / ranked[0][1]
        tiles = -(-s.m // 128) * -(-s.n // 128)
        if tiles < 64 and s.k > 2048 and s.flop < 3e10:
            long.append((ratio, s))
        elif ranked[0][0].split("+")[0].endswith(("/c2", "/c4")):
            short.append((ranked[0][1], s))
    long.sort()
    short.sort()
    controls = [s for _, s in short[:: max(1, len(short) // max(1, count // 8))]][: count // 8]
    return [s for _, s in long[: count - len(controls)]] + controls


def row(entry: Any, before: Any) -> dict[str, Any]:
    """One shape: this run beside the recorded one."""
    config, us = entry.ranked()[0]
    lt = entry.baseline_us()
    old_config, old_us = before.ranked()[0]
    old_lt = before.baseline_us()
    return {
        "shape": str(entry.shape), "m": entry.shape.m, "n": entry.shape.n, "k": entry.shape.k,
        "ours": us, "config": config, "lt_autotune": lt, "speedup": round(lt / us, 4),
        "recorded_config_now": entry.us(old_config), "recorded_config": old_config, "recorded_ours": old_us,
        "recorded_lt_autotune": old_lt, "recorded_speedup": round(old_lt / old_us, 4),
        "times": {name: value[0] for name, value in sorted(entry.ours.items(), key=lambda i: i[1][0])[:12]},
    }  # fmt: skip


def main() -> int:
    """Run it; 1 when a shape failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--seconds", type=float, default=45, help="start no shape after so long")
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--configs", type=int, default=32, help="splits screened, a shape and layout")
    parser.add_argument("--only-configs", default=SPLITS, help="regular expression: what is tried")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, on a modelled clock")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    given = parser.parse_args()
    from sassafras.device.cuda import available, environment
    from sassafras.gemm import bench
    from sassafras.gemm.dataset import shipped
    from sassafras.gemm.options import Options, retuning
    from sassafras.gemm.pool import records

    usable, reason = available()
    if not given.dry_run:
        print(reason, flush=True)
        if not usable:
            return 2
    begin = time.perf_counter()
    options = retuning(Options(), given.only_configs, configs=given.configs)
    before = shipped()
    shapes = wanted(given.shapes)
    with tempfile.TemporaryDirectory() as folder:
        dataset = bench.sweep(
            shapes, Path(folder), options, gpus=given.gpus, minutes=given.seconds / 60, dry=given.dry_run,
            cache=given.cache, progress=0,
        )  # fmt: skip
        journal = records(Path(folder), bench.SELECT)
    rows = [row(dataset[s], before[s]) for s in shapes if s in dataset.entries and dataset[s].ours]
    failed = {text: r["error"] for text, r in journal.items() if "error" in r}
    wrong = {text: r["wrong"] for text, r in journal.items() if r.get("wrong")}
    for r in rows:
        old = (
            f"{r['recorded_ours']:8.2f} us ({r['recorded_speedup']:.3f} of cuBLASLt, {r['recorded_config']})"
        )
        print(f"{r['shape']:>18}  {old}  now {r['ours']:8.2f} ({r['speedup']:.3f}, {r['config']})")

    def mean(name: str, some: list[dict[str, Any]]) -> float | None:
        return round(float(np.exp(np.mean(np.log([r[name] for r in some])))), 4) if some else None

    long = [r for r in rows if r["k"] > 2048]
    short = [r for r in rows if r["k"] <= 2048]
    summary = {
        "shapes": len(rows), "asked": len(shapes), "failed": failed, "wrong": wrong,
        "modelled": given.dry_run,
        "speedup_long": mean("speedup", long), "recorded_speedup_long": mean("recorded_speedup", long),
        "speedup_short": mean("speedup", short), "recorded_speedup_short": mean("recorded_speedup", short),
        "faster_than_recorded": sum(r["speedup"] > 1.01 * r["recorded_speedup"] for r in rows),
        "slower_than_recorded": sum(r["speedup"] < 0.99 * r["recorded_speedup"] for r in rows),
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip
    name = "hgemm-splits" + ("-dry" if given.dry_run else "")
    path = write(name, rows, summary, environment() if usable else {}, seed=options.seed, out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), path.name, sep="\n", flush=True)
    return 1 if failed or wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
