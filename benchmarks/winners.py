"""Which configurations win on two GPUs, by their data sets; writes winners.json. Needs no GPU.

    python benchmarks/winners.py [--here nvidia-h100-80gb-hbm3] [--there nvidia-h200] [--out FOLDER]

For each shape of the grid the fastest of ours in either layout. Times of two GPUs are never compared: what a
row says of `here` is the time of the other GPU's winner over that of its own, both on `here`. Winners within
the noise of each other change places by chance: `alike` counts shapes where the other's winner takes at most
2 % longer.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from common import command_line, geomean, write

from sassafras.core import SassafrasError
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.problem.shape import BANDS
from sassafras.gemm.select.dataset import Dataset, DatasetEntry, shipped

ALIKE = 1.02


def winner(entry: DatasetEntry) -> Config:
    """The fastest of those that were timed longest, in any layout."""
    return entry.ranked()[0][0]


def facts(config: Config) -> dict[str, Any]:
    """What is counted of a configuration; ranges of k are 1 where k is whole."""
    stages = getattr(config.instance, "stages", None)
    rows, columns = config.tile
    found = {"kernel": config.FAMILY, "ranges": int(config.ranges), "stages": stages}
    return found | {"tile": f"{rows}x{columns}"}


def row_of(here: DatasetEntry, there: DatasetEntry) -> dict[str, Any]:
    """One shape: both winners, and what the other's costs here."""
    mine, its = winner(here), winner(there)
    same = {"same_kernel": mine.FAMILY == its.FAMILY, "same_tile": mine.tile == its.tile, "same": mine == its}
    best, carried = here.us(mine), here.us(its)
    library = min(us for by in here.baselines.values() for us in by.values())
    return {
        "shape": str(here.shape),
        "band": here.shape.band,
        "memory_share": min(1.0, here.shape.nbytes / 3.35e6 / best) if best else None,
        "here": facts(mine),
        "there": facts(its),
        **same,
        "us": best,
        "cost_of_there": carried / best if best and carried else None,
        "over_library": library / best if best else None,
    }


def summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a band."""
    costs = [row["cost_of_there"] for row in rows if row["cost_of_there"]]
    found: dict[str, Any] = {"shapes": len(rows), "timed_both": len(costs)}
    if costs:
        found |= {"cost_of_there": geomean(costs), "worst_cost": max(costs)}
        found["alike"] = sum(cost <= ALIKE for cost in costs) / len(costs)
    for name in ("same_kernel", "same_tile", "same"):
        found[name] = sum(row[name] for row in rows) / len(rows)
    for side in ("here", "there"):
        kernels = Counter(row[side]["kernel"] for row in rows)
        found[f"kernels_{side}"] = {name: kernels[name] / len(rows) for name in sorted(kernels)}
        split = [row[side]["ranges"] for row in rows]
        found[f"split_{side}"] = sum(one > 1 for one in split) / len(rows)
        found[f"mean_ranges_{side}"] = geomean(split)
        staged = [row[side]["stages"] for row in rows if row[side]["stages"]]
        found[f"stages_{side}"] = statistics.fmean(staged) if staged else None
    return found


def main() -> None:
    """See the module."""
    parser = command_line(__doc__)
    parser.add_argument("--here", default="nvidia-h100-80gb-hbm3")
    parser.add_argument("--there", default="nvidia-h200")
    args = parser.parse_args()
    here, there = shipped(args.here), shipped(args.there)
    shapes = [shape for shape in sorted(here.entries) if shape in there.entries]
    usable = [s for s in shapes if here[s].ours and there[s].ours]
    rows = [row_of(here[shape], there[shape]) for shape in usable]
    bands = {band: summed(of) for band in BANDS if (of := [row for row in rows if row["band"] == band])}
    gpus = {"here": here.header.get("gpu"), "there": there.header.get("gpu")}
    summary = {**summed(rows), "bands": bands, **gpus}
    print("wrote", write("winners", rows, summary, _origin(here), out=args.out))
    for name, of in [*bands.items(), ("all", summary)]:
        shown = ("shapes", "same_kernel", "same", "alike", "cost_of_there", "split_here", "split_there")
        print(name, {key: round(of[key], 3) for key in shown if of.get(key) is not None})


def _origin(data: Dataset) -> dict[str, Any]:
    return {name: data.header.get(name) for name in ("gpu", "torch", "cublaslt", "date", "commit")}


if __name__ == "__main__":
    try:
        main()
    except (SassafrasError, OSError) as error:
        sys.exit(f"error: {error}")
