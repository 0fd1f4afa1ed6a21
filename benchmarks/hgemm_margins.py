"""What margins would sassafras.matmul need? Choices by the shipped table, judged by a run in fresh processes.

    python benchmarks/hgemm_margins.py                          # back to back (hgemm-offline.json)
    python benchmarks/hgemm_margins.py --results hgemm-server   # isolated calls

The table's times are those of the selection; what is chosen by them is worth what the measurement says. Needs
no GPU, and means something only where the results are of the table's own run
(docs/experiments/2026-11-21-matmul-dispatch.md).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import numpy as np
from common import ROOT

from sassafras.core import SassafrasError
from sassafras.gemm.choose import OURS_BETTER, Chooser, Settings
from sassafras.gemm.shapes import Shape
from sassafras.gemm.table import Table, shipped_path

Rule = tuple[tuple[float, float], ...]
RULES: dict[str, Rule] = {
    "ships": OURS_BETTER,
    **{
        f"{small}, {mid}, {large}": ((1e11, small), (1e12, mid), (math.inf, large))
        for small, mid, large in (
            (1.03, 1.05, 1.05), (1.02, 1.05, 1.05), (1.02, 1.03, 1.05), (1.01, 1.02, 1.05),
            (1.005, 1.01, 1.03),
        )
    },
}  # fmt: skip


def replayed(table: Table, rows: list[dict[str, Any]], rule: Rule) -> dict[str, list[float]]:
    """band -> AutoTuning's time over the portfolio's, the better layout of each, by measured medians."""
    columns = {"torch": "torch", "lt": "lt_autotune", "ours": "ours"}
    chooser = Chooser(table, Settings(tuned=rule), lt_version=table.header.get("cublaslt"))
    found: dict[str, list[float]] = {}
    for measured in rows:
        shape = Shape.parse(measured["shape"])
        times = []
        for layout in ("nn", "tn"):
            if table.get(shape, layout) is not None:
                member = chooser.choose(shape, layout, lambda config: True).member
                times.append(measured.get(f"{columns[member]}_{layout}"))
        known = [us for us in times if us]  # a layout that was hopeless has no time
        if known:
            found.setdefault(measured["band"], []).append(measured["lt_autotune"] / min(known))
    return found


def main() -> int:
    """Print every rule."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", default="hgemm-offline", help="of benchmarks/results")
    parser.add_argument("--gpu", default="NVIDIA H200", help="whose table")
    given = parser.parse_args()
    path = ROOT / "benchmarks/results" / f"{given.results}.json"
    if not path.is_file():
        print(f"error: there is no {path.name} in benchmarks/results", file=sys.stderr)
        return 2
    try:
        table, rows = Table.load(shipped_path(given.gpu)), json.loads(path.read_text())["rows"]
    except (SassafrasError, ValueError, KeyError) as error:
        print(f"error: {path.name} or the table cannot be read: {error}", file=sys.stderr)
        return 2
    for name, rule in RULES.items():
        bands = replayed(table, rows, rule)
        ratios = np.array([ratio for of in bands.values() for ratio in of])
        by_band = " ".join(f"{np.exp(np.mean(np.log(of))):.4f}" for of in bands.values())
        print(
            f"{name:18} {np.exp(np.mean(np.log(ratios))):.4f}  below 0.99: {(ratios < 0.99).sum():3}  "
            f"worst {ratios.min():.3f}  by band ({', '.join(bands)}): {by_band}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
