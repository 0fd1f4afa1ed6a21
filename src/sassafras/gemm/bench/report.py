"""From measured rows to the figures that are published."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from sassafras.core.statistics import geometric_mean, hierarchical_bootstrap, hierarchical_median

from ..configs.fields import from_fields
from ..problem.shape import BANDS

#: a win: the lower bound of the speed-up's 95 % interval lies above this
WIN = 1.005
BASELINES = ("lt_autotune", "lt_heuristic", "cublas", "torch")
#: column of a row's ratios -> the columns of its interval
_RATIOS = {"ratios": "speedup", "portfolio_ratios": "portfolio_speedup"}


def merge(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row from the rows that several fresh processes measured for one shape.

    Times are medians over processes. With two or more processes the interval is hierarchical (processes,
    then rounds within each); with one it covers the variation within that process only.
    """
    row = {key: value for key, value in processes[0].items() if key not in (*_RATIOS, "process")}
    row["processes"] = len(processes)
    for key, value in processes[0].items():
        if isinstance(value, float) and all(isinstance(p.get(key), float) for p in processes):
            row[key] = statistics.median(p[key] for p in processes)
    for kept, column in _RATIOS.items():
        groups = [p[kept] for p in processes if p.get(kept)]
        if len(groups) > 1:
            interval = hierarchical_bootstrap(groups)
            row[column] = hierarchical_median(groups)
            row[f"{column}_low"], row[f"{column}_high"] = interval.low, interval.high
    return row


def ratios(rows: Iterable[dict[str, Any]], baseline: str, ours: str = "ours") -> list[float]:
    """baseline / ours of every row that has both."""
    return [row[baseline] / row[ours] for row in rows if row.get(ours) and row.get(baseline)]


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a set of rows; those without a result of ours are counted, not averaged."""
    pending = sum(bool(row.get("pending")) for row in rows)
    measured = [row for row in rows if "error" not in row and not row.get("pending")]
    with_ours = [row for row in measured if row.get("ours")]
    found: dict[str, Any] = {
        "shapes": len(rows),
        "measured": len(measured),
        "with_ours": len(with_ours),
        "pending": pending,
        "failed": len(rows) - len(measured) - pending,
        "wrong_in_selection": sum(row.get("wrong_in_selection", 0) for row in rows),
    }
    if any(row.get("modelled") for row in measured):
        found["modelled"] = True
    for baseline in BASELINES:
        found |= _against(with_ours, baseline, "ours", "")
        found |= _against(measured, baseline, "portfolio", "portfolio_")
    for layout in ("nn", "tn"):
        found |= _against(measured, f"lt_autotune_{layout}", f"ours_{layout}", f"{layout}_", "lt_autotune")
    found |= _against(with_ours, "cold_lt_autotune", "cold_ours", "cold_", "lt_autotune")
    found |= _against(measured, "cold_lt_autotune", "cold_portfolio", "cold_portfolio_", "lt_autotune")
    if with_ours:
        wins = sum(row["speedup_low"] > WIN for row in with_ours)
        found["win_rate_vs_lt_autotune"] = wins / len(with_ours)
        errors = [row[key] for row in with_ours for key in ("rms_ratio", "rms_ratio_after") if key in row]
        found["worst_rms_ratio"] = max(errors)
    bounds = [row["portfolio_speedup_low"] for row in measured if "portfolio_speedup_low" in row]
    if bounds:
        found["portfolio_worst_low_vs_lt_autotune"] = min(bounds)
    for family in ("torch", "portfolio", "ours", "lt_autotune"):
        for point in ("p50", "p99"):
            walls = [row[key] for row in measured if (key := f"wall_{point}_{family}") in row]
            if walls:
                found[f"wall_{point}_{family}_us"] = statistics.median(walls)
    if measured:
        found["null_geomean"] = geometric_mean([row["null"] for row in measured])
        found["null_lowest"] = min(row["null"] for row in measured)
        found["null_highest"] = max(row["null"] for row in measured)
        for other in ("lt_heuristic", "cublas", "torch"):
            found[f"lt_autotune_vs_{other}"] = geometric_mean(
                [row[other] / row["lt_autotune"] for row in measured]
            )
    return found


def _against(
    rows: Sequence[dict[str, Any]], baseline: str, column: str, prefix: str, name: str | None = None
) -> dict[str, float]:
    values = ratios(rows, baseline, column)
    if not values:
        return {}
    name = name or baseline
    return {
        f"{prefix}geomean_vs_{name}": geometric_mean(values),
        f"{prefix}median_vs_{name}": statistics.median(values),
        f"{prefix}mean_vs_{name}": statistics.fmean(values),
        f"{prefix}worst_vs_{name}": min(values),
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`figures` of all rows, and of each band under ``bands``."""
    bands = {band: figures(group) for band in BANDS if (group := [r for r in rows if r.get("band") == band])}
    return {**figures(rows), "bands": bands}


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells for a terminal."""
    shown = {
        "vs AutoTuning": "geomean_vs_lt_autotune",
        "mean": "mean_vs_lt_autotune",
        "median": "median_vs_lt_autotune",
        "wins": "win_rate_vs_lt_autotune",
        "worst": "worst_vs_lt_autotune",
        "cold": "cold_geomean_vs_lt_autotune",
        "portfolio": "portfolio_geomean_vs_lt_autotune",
        "its worst": "portfolio_worst_vs_lt_autotune",
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


def brief(record: dict[str, Any]) -> str:
    """A shape's record in a few words, of a selection or a measurement."""
    if "error" in record:
        return str(record["error"])
    if "lt_autotune" in record:
        names = ("ours", "portfolio", "lt_autotune", "lt_heuristic", "cublas", "torch")
        times = " ".join(f"{name} {record[name]:.2f}" for name in names if record.get(name))
        return f"{times} us, speed-up {record.get('speedup', float('nan')):.3f}, null {record['null']:.3f}"
    ours = record.get("why_not")
    if record.get("ours"):
        ours = f"{from_fields(record['ours']).name} {record['ours_us']:.2f}"
    return f"AutoTuning {record['baseline_us']:.2f} us, ours {ours}"
