"""Rows to figures: geometric mean, win rate, worst case, arithmetic mean, per band. Pure Python."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from sassafras.core.statistics import geometric_mean, hierarchical_bootstrap, hierarchical_median

from .shapes import BANDS

#: a win: the lower bound of the speed-up's 95 % interval lies above this
WIN = 1.005
BASELINES = ("lt_autotune", "lt_heuristic", "cublas", "torch")


def merge(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row from the rows that several fresh processes measured for one shape.

    Times are medians over processes. With two or more processes the interval is hierarchical (processes,
    then rounds within each); with one it covers the variation within that process only.
    """
    row = {key: value for key, value in processes[0].items() if key not in ("ratios", "process")}
    row["processes"] = len(processes)
    for key, value in processes[0].items():
        if isinstance(value, float) and all(isinstance(p.get(key), float) for p in processes):
            row[key] = statistics.median(p[key] for p in processes)
    groups = [p["ratios"] for p in processes if p.get("ratios")]
    if len(groups) > 1:
        interval = hierarchical_bootstrap(groups)
        row["speedup"] = hierarchical_median(groups)
        row["speedup_low"], row["speedup_high"] = interval.low, interval.high
    return row


def ratios(rows: Iterable[dict[str, Any]], baseline: str) -> list[float]:
    """baseline / ours of every row that has both."""
    return [row[baseline] / row["ours"] for row in rows if row.get("ours") and row.get(baseline)]


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a set of rows; those without a result of ours are counted, not averaged."""
    measured = [row for row in rows if "error" not in row]
    with_ours = [row for row in measured if row.get("ours")]
    found: dict[str, Any] = {
        "shapes": len(rows), "measured": len(measured), "with_ours": len(with_ours),
        "failed": len(rows) - len(measured),
    }  # fmt: skip
    for baseline in BASELINES:
        if values := ratios(with_ours, baseline):
            found[f"geomean_vs_{baseline}"] = geometric_mean(values)
            found[f"median_vs_{baseline}"] = statistics.median(values)
            found[f"mean_vs_{baseline}"] = statistics.fmean(values)
            found[f"worst_vs_{baseline}"] = min(values)
    if with_ours:
        wins = sum(row["speedup_low"] > WIN for row in with_ours)
        found["win_rate_vs_lt_autotune"] = wins / len(with_ours)
        found["worst_rms_ratio"] = max(max(row["rms_ratio"], row["rms_ratio_after"]) for row in with_ours)
    if measured:
        found["null_geomean"] = geometric_mean([row["null"] for row in measured])
        found["null_lowest"] = min(row["null"] for row in measured)
        found["null_highest"] = max(row["null"] for row in measured)
        for other in ("lt_heuristic", "cublas", "torch"):
            found[f"lt_autotune_vs_{other}"] = geometric_mean(
                [row[other] / row["lt_autotune"] for row in measured]
            )
    return found


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`figures` of all rows, and of each band under ``bands``."""
    bands = {band: figures(group) for band in BANDS if (group := [r for r in rows if r.get("band") == band])}
    return {**figures(rows), "bands": bands}


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells for a terminal."""
    shown = {
        "vs AutoTuning": "geomean_vs_lt_autotune",
        "median": "median_vs_lt_autotune",
        "wins": "win_rate_vs_lt_autotune",
        "worst": "worst_vs_lt_autotune",
        "vs heuristic": "geomean_vs_lt_heuristic",
        "vs cuBLAS": "geomean_vs_cublas",
        "vs torch": "geomean_vs_torch",
        "null": "null_geomean",
    }
    columns = ["FLOP", "shapes", "ours", *shown]
    cells = []
    for name, part in [*summary["bands"].items(), ("all", summary)]:
        values = [f"{part[key]:.3f}" if key in part else "-" for key in shown.values()]
        cells.append([name, str(part["measured"]), str(part["with_ours"]), *values])
    return columns, cells
