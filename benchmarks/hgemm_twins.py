"""Candidates of the cluster-split family against the instances that they copy, from one sweep's times.

    python benchmarks/hgemm_twins.py DATASET.jsonl.gz [--out FOLDER]

Twins are two configurations of one shape that differ in the quick start (and in stages) alone, both timed in
the dataset's last run. Prints medians of new over old by tile, slices and k tiles of a CTA, and writes
hgemm-twins.json to --out ($OUT, or benchmarks/results).
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, write

#: upper ends of the groups of k tiles of 64 that a CTA has
GROUPS = (1, 2, 4, 8, 16, 32, 1 << 20)


def twins(dataset: Any) -> list[dict[str, Any]]:
    """One row a pair: shape, both names and times, tile, k tiles of a CTA."""
    from sassafras.core import SassafrasError
    from sassafras.gemm import families
    from sassafras.gemm.cluster_split import ClusterSplitConfig
    from sassafras.gemm.hopper import k_tiles

    rows = []
    for entry in dataset:
        plain: dict[Any, tuple[str, float]] = {}
        quick: list[tuple[Any, Any, str, float]] = []
        for name, (us, rung) in entry.ours.items():
            try:
                config = families.parse(name)
            except SassafrasError:  # a kernel that is gone
                continue
            if rung < 0 or not isinstance(config, ClusterSplitConfig):
                continue
            key = replace(config, instance=replace(config.instance, stages=0, blocks=0))
            if config.instance.blocks:
                quick.append((key, config, name, us))
            elif key not in plain or us < plain[key][1]:  # of several numbers of stages the best
                plain[key] = (name, us)
        for key, config, name, us in quick:
            if key in plain:
                i = config.instance
                ranges = config.slices * config.parts
                rows.append({
                    "shape": str(entry.shape), "new": name, "old": plain[key][0],
                    "new_us": us, "old_us": plain[key][1],
                    "blocks": i.blocks, "slices": config.slices, "parts": config.parts,
                    "tile": f"{i.rows}x{i.columns}" + " swapped" * i.swapped + " shared" * i.shared,
                    "k_tiles": -(-k_tiles(entry.shape) // ranges),
                    "ctas": config.tiles(entry.shape)[0] * config.tiles(entry.shape)[1] * ranges,
                })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of new over old, and of the difference, in groups of at least three pairs."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        group = next(top for top in GROUPS if row["k_tiles"] <= top)
        kind = "slices" if row["slices"] > 1 else "parts" if row["parts"] > 1 else "whole"
        groups[row["tile"], row["blocks"], kind, group].append(row)
    return [
        {
            "tile": tile, "blocks": blocks, "kind": kind, "k_tiles_up_to": group, "pairs": len(members),
            "ratio": round(float(np.median([r["new_us"] / r["old_us"] for r in members])), 4),
            "gained_us": round(float(np.median([r["old_us"] - r["new_us"] for r in members])), 3),
        }
        for (tile, blocks, kind, group), members in sorted(groups.items())
        if len(members) >= 3
    ]  # fmt: skip


def main() -> int:
    """Read, compare, write; 1 without a single pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    given = parser.parse_args()
    from sassafras.gemm.dataset import Dataset

    dataset = Dataset.load(given.dataset)
    rows = twins(dataset)
    if not rows:
        print("no two of its times are of twins")
        return 1
    found = table(rows)
    for line in found:
        print("  ".join(f"{key} {value}" for key, value in line.items()))
    of = {key: dataset.header.get(key) for key in ("gpu", "kernels", "modelled", "date", "commit")}
    middle = round(float(np.median([r["new_us"] / r["old_us"] for r in rows])), 4)
    path = write("hgemm-twins", rows, {"medians": found, "ratio": middle}, of, seed=0, out=given.out)
    print(f"{len(rows)} pairs, {middle} in the middle; wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
