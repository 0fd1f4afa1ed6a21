"""From the journal of `model_forward` to the rows and the summary of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from common import geomean

#: bytes a second of device memory, by what the device's name contains
BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12}
BASES = ("eager", "compile", "max_autotune")


class Row(NamedTuple):
    """What is measured together."""

    model: str
    dtype: str
    tokens: int
    vocabulary: bool = False
    autotune: bool = False

    @property
    def name(self) -> str:
        """In the journal."""
        more = " vocabulary" * self.vocabulary + " max-autotune" * self.autotune
        return f"{self.model} {self.dtype} {self.tokens}{more}"


def ratios(record: dict[str, Any], base: str, name: str) -> np.ndarray | None:
    """Speed-ups of paired blocks, the lower ones of short and of long blocks; None where one has no times."""
    if not {base, name} <= set(record["us"]):
        return None
    found = [
        np.divide(t[base], t[name]) for t in (record["us"], record["sustained"]) if {base, name} <= set(t)
    ]
    return min(found, key=lambda values: float(np.median(values)))


def interval(groups: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Speed-up, and its interval: over processes, or over the blocks of one."""
    from sassafras.core.statistics import bootstrap_median, hierarchical_bootstrap, hierarchical_median

    value = hierarchical_median(groups)
    found = hierarchical_bootstrap(groups) if len(groups) > 1 else bootstrap_median(groups[0])
    return round(value, 4), round(found.low, 4), round(found.high, 4)


def rows_of(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a model, type, number of tokens and contestant."""
    by_row: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        if "error" not in record:
            key = Row(**record["row"])[:4]
            by_row.setdefault(key, []).append(record)
    return [
        row | contestant
        for key, found in by_row.items()
        for row in [dict(zip(Row._fields, key, strict=False))]
        for contestant in contestants(found)
    ]


def contestants(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a row says of each of its contestants."""

    def us(name: str) -> float | None:
        medians = [float(np.median(r["us"][name])) for r in records if name in r["us"]]
        return round(float(np.median(medians)), 2) if medians else None

    def over(base: str, name: str) -> dict[str, float]:
        groups = [r for record in records if (r := ratios(record, base, name)) is not None]
        column = "null" if name == "null" else f"over_{base}"
        keys = (column, f"{column}_low", f"{column}_high")
        return dict(zip(keys, interval(groups), strict=True)) if groups else {}

    rows = []
    gpu = records[0]["gpu"]
    bandwidth = next((b for name, b in BANDWIDTH.items() if name in gpu), None)
    bound = 1e6 * records[0]["bytes"] / bandwidth if bandwidth else None
    for name in (*BASES, "sassafras_eager", "sassafras_compile"):
        if (whole := us(name)) is None:
            continue
        wrong = any(name in r["wrong"] for r in records)
        row: dict[str, Any] = {"contestant": name, "us": whole, "wrong": wrong}
        if name != "max_autotune" and (alone := us("linears" if name in BASES else "sassafras_linears")):
            row |= {"linears_us": alone, "without_linears_us": round(whole - alone, 2)}
        for base in BASES:
            row |= over(base, name) if base != name and not wrong else {}
        row |= over("compile", "null")
        if bound and not wrong:
            row |= {"bound_us": round(bound, 2), "share_of_bound": round(bound / whole, 4)}
        last = next(r for r in reversed(records) if name in r["us"])
        row |= dict(zip(("deviation_rms", "deviation_max"), last["deviations"][name], strict=True))
        row["deviation_over_eager"] = round(row["deviation_rms"] / last["deviations"]["eager"][0], 4)
        row |= {"layers": last["layers"], "context": last["context"]}
        row["processes"] = len({r["process"] for r in records})
        row |= {"served": last["served"]} if name.startswith("sassafras") else {}
        rows.append(row)
    return rows


def summarise(rows: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the compiled model with Sassafras; rows with a vocabulary count for the worst."""
    ours = [row for row in rows if row["contestant"] == "sassafras_compile"]

    def mean(column: str, tokens: range, dtype: str = "", who: str = "sassafras_compile") -> float | None:
        those = [r for r in rows if r["contestant"] == who and r["tokens"] in tokens and not r["vocabulary"]]
        value = geomean(r[column] for r in those if column in r and dtype in r["dtype"])
        return round(value, 4) if value else None

    def worst(column: str) -> float | None:
        return min((row[column] for row in ours if column in row), default=None)

    few, some, many = range(1, 65), range(65, 257), range(257, 1 << 20)
    first = [r for r in ours if (r["model"], r["tokens"], r["vocabulary"]) == ("llama-3-8b", 1, False)]
    return {
        "over_compile_fp16_1_64": mean("over_compile", few, "fp16"),
        "over_compile_bf16_1_64": mean("over_compile", few, "bf16"),
        "over_compile_128_256": mean("over_compile", some),
        "over_compile_1024_up": mean("over_compile", many),
        "over_max_autotune_1_64": mean("over_max_autotune", few),
        "over_eager_fp16_1_64": mean("over_eager", few, "fp16", "sassafras_eager"),
        "over_eager_bf16_1_64": mean("over_eager", few, "bf16", "sassafras_eager"),
        "worst_low_over_compile": worst("over_compile_low"),
        "worst_low_over_max_autotune": worst("over_max_autotune_low"),
        "share_of_bound_1": min((r["share_of_bound"] for r in first if "share_of_bound" in r), default=None),
        "null": mean("null", range(1 << 20)),
        "rows": len(ours),
        "processes": min((row["processes"] for row in ours), default=0),
        "wrong": sorted(f"{r['shape']} {name}" for r in records for name in r.get("wrong", ())),
        "failed": {r["shape"]: why for r in records if (why := r.get("error") or r.get("failed"))},
    }
