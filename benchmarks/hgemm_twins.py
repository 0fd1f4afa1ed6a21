"""Candidates of the two TMA families against the instances that they copy, from one sweep's times.

    python benchmarks/hgemm_twins.py DATASET.jsonl.gz [--out FOLDER]

Twins are two configurations of one shape that differ in one of these alone (and in stages): the quick start,
a lead of the first warpgroup; both timed in the dataset's last run. Or bands of tiles beside row after row,
of the same instance.
Prints medians of new over old by tile, slices and k tiles of a CTA, and writes hgemm-twins.json to --out
($OUT, or benchmarks/results).
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
#: in what twins' instances may differ
KINDS = ("quick", "lead")


def twins(dataset: Any) -> list[dict[str, Any]]:
    """One row a pair: shape, both names and times, tile, k tiles of a CTA."""
    from sassafras.core import SassafrasError
    from sassafras.gemm import families
    from sassafras.gemm.cluster_split import ClusterSplitConfig
    from sassafras.gemm.warp_specialized import WarpSpecializedConfig

    rows = []
    for entry in dataset:
        old: dict[Any, tuple[str, float]] = {}
        new: list[tuple[Any, Any, str, str, float]] = []
        for name, (us, rung) in entry.ours.items():
            try:
                config = families.parse(name)
            except SassafrasError:  # a kernel that is gone
                continue
            if rung < 0 or not isinstance(config, ClusterSplitConfig | WarpSpecializedConfig):
                continue
            i = config.instance
            key = replace(config, instance=replace(i, stages=0, lead=0))
            what, kinds = "lead" if i.lead else "", KINDS
            if isinstance(config, ClusterSplitConfig):
                # what comes with the quick start is compared with the better of both
                key = replace(key, instance=replace(key.instance, blocks=0))
                kinds = tuple(kind for kind in KINDS if kind != "quick" or not i.blocks)
            for kind in () if what else kinds:  # of several numbers of stages the best
                if (key, kind) not in old or us < old[key, kind][1]:
                    old[key, kind] = (name, us)
            if what or "quick" not in kinds:
                new.append((key, config, what or "quick", name, us))
        for key, config, what, name, us in new:
            if (key, what) in old:
                rows.append(row(entry.shape, config, what, (name, us), old[key, what]))
    return rows


def banded(dataset: Any) -> list[dict[str, Any]]:
    """The same of configurations with bands, each beside itself without."""
    from sassafras.core import SassafrasError
    from sassafras.gemm import families

    rows = []
    for entry in dataset:
        for name, (us, rung) in entry.ours.items():
            try:
                config = families.parse(name)
            except SassafrasError:  # a kernel that is gone
                continue
            if rung < 0 or not getattr(config, "band", 0):
                continue
            old = replace(config, band=0).name
            if entry.ours.get(old, (0, -1))[1] >= 0:
                rows.append(
                    row(entry.shape, config, f"band {config.band}", (name, us), (old, entry.ours[old][0]))
                )
    return rows


def row(shape: Any, config: Any, what: str, new: tuple[str, float], old: tuple[str, float]) -> dict[str, Any]:
    """One pair: names and times of both, and what the new one is like."""
    from sassafras.gemm.hopper import k_tiles

    i, parts, tiles = config.instance, getattr(config, "parts", 1), config.tiles(shape)
    ranges = max(1, config.slices) * parts
    ending = " swapped" * getattr(i, "swapped", False) + " shared" * getattr(i, "shared", False)
    return {
        "shape": str(shape), "new": new[0], "old": old[0], "new_us": new[1], "old_us": old[1], "what": what,
        "blocks": getattr(i, "blocks", 0), "slices": config.slices, "parts": parts,
        "tile": f"{i.rows}x{i.columns}{ending}",
        "k_tiles": -(-k_tiles(shape) // ranges), "ctas": tiles[0] * tiles[1] * ranges,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of new over old, and of the difference, in groups of at least three pairs."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        group = next(top for top in GROUPS if row["k_tiles"] <= top)
        kind = "slices" if row["slices"] > 1 else "parts" if row["parts"] > 1 else "whole"
        groups[row["what"], row["tile"], row["blocks"], kind, group].append(row)
    return [
        {
            "what": what, "tile": tile, "blocks": blocks, "kind": kind, "k_tiles_up_to": group,
            "pairs": len(members),
            "ratio": round(float(np.median([r["new_us"] / r["old_us"] for r in members])), 4),
            "gained_us": round(float(np.median([r["old_us"] - r["new_us"] for r in members])), 3),
        }
        for (what, tile, blocks, kind, group), members in sorted(groups.items())
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
    rows = twins(dataset) + banded(dataset)
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
