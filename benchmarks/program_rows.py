"""From the journals of `model_forward` and of `contexts` to the rows and the summaries of their results."""

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


def _named(column: str, found: tuple[float, float, float]) -> dict[str, float]:
    """The columns of a speed-up."""
    return dict(zip((column, f"{column}_low", f"{column}_high"), found, strict=True))


def forward_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
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
        for contestant in _contestants(found)
    ]


def _contestants(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a row says of each of its contestants.

    Of a row measured with and without max-autotune, in processes apart, the former are asked for that alone:
    one more process of one row would be its interval.
    """
    without = [r for r in records if not r["row"].get("autotune")] or records

    def us(name: str) -> float | None:
        those = records if name == "max_autotune" else without
        medians = [float(np.median(r["us"][name])) for r in those if name in r["us"]]
        return round(float(np.median(medians)), 2) if medians else None

    def over(base: str, name: str) -> dict[str, float]:
        those = records if "max_autotune" in (base, name) else without
        if any(base in record["wrong"] for record in those):
            return {}
        groups = [r for record in those if (r := ratios(record, base, name)) is not None]
        column = "null" if name == "null" else f"over_{base}"
        return _named(column, interval(groups)) if groups else {}

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


def forward_summary(rows: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the compiled model with Sassafras; rows with a vocabulary count for the worst."""
    ours = [row for row in rows if row["contestant"] == "sassafras_compile"]

    def mean(column: str, tokens: range, dtype: str = "", who: str = "sassafras_compile") -> float | None:
        those = [r for r in rows if r["contestant"] == who and r["tokens"] in tokens and not r["vocabulary"]]
        return geomean((r[column] for r in those if column in r and dtype in r["dtype"]), 4)

    def worst(column: str) -> float | None:
        return min((row[column] for row in ours if column in row), default=None)

    fewest, few, some, many = range(1, 5), range(1, 65), range(65, 257), range(257, 1 << 20)
    first = [r for r in ours if (r["model"], r["tokens"], r["vocabulary"]) == ("llama-3-8b", 1, False)]
    return {
        "over_compile_fp16_1_4": mean("over_compile", fewest, "fp16"),
        "over_compile_bf16_1_4": mean("over_compile", fewest, "bf16"),
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


def context_rows(table: str, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a shape, type, context and launch, of layers a row a shape and type; intervals over processes."""
    by_shape: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        if "error" not in record:
            by_shape.setdefault((record["of"], record["dtype"], record["tuned"]), []).append(record)
    if table == "layers":
        return [_layer(*key, found) for key, found in by_shape.items()]
    return [
        _context(*key, context, launch, found)
        for key, found in by_shape.items()
        for context in found[0]["us"]
        for launch in ("pdl", "plain")
    ]


def _layer(of: str, dtype: str, tuned: bool, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row: the speed-up over cuBLASLt's best has the name of its context; behind `layer` of what compiled
    models call, which is the same where no kernel reads its weights early."""
    row: dict[str, Any] = {}
    for context in ("cold", "elementwise"):
        found = _context(of, dtype, tuned, context, "pdl", records)
        for key, value in found.items():
            own = key.endswith("_us") or key.startswith("over_") or key == "null"
            row[f"{context}_{key}".replace("_over_lt", "") if own else key] = value
        own_us = [r["us"][context] for r in records if context in r["us"]]
        if not {"sassafras", "sassafras_layer", "lt_autotune"} & set(found["wrong"]):
            layers = [(us["lt_autotune"], us.get("sassafras_layer", us["sassafras"])) for us in own_us]
            row |= _named(f"{context}_layer", interval([np.divide(*pair) for pair in layers]))
    return {key: value for key, value in row.items() if key not in ("context", "launch")}


def _context(
    of: str, dtype: str, tuned: bool, context: str, launch: str, records: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A row."""
    row: dict[str, Any] = dict(zip(("m", "n", "k"), map(int, of.split("x")), strict=True))
    wrong = sorted({name for record in records for name in record["wrong"]})
    row |= {"dtype": dtype, "tuned": tuned, "context": context, "launch": launch, "wrong": wrong}
    own = [r["us"][context] for r in records if context in r["us"]]
    name = "sassafras_plain" if launch == "plain" else "sassafras"
    ours = [us.get(name, us["sassafras"]) for us in own]
    row["sassafras_us"] = round(float(np.median(np.concatenate(ours))), 3)
    for base, column in (("lt_autotune", "over_lt"), ("torch", "over_torch"), ("triton", "over_triton")):
        theirs = [us[base] for us in own if base in us]
        if len(theirs) < len(own):
            continue
        row[f"{base}_us"] = round(float(np.median(np.concatenate(theirs))), 3)
        if not {name, "sassafras", base} & set(wrong):
            ratios = [np.divide(a, b) for a, b in zip(theirs, ours, strict=True)]
            row |= _named(column, interval(ratios))
    row["null"] = interval([np.divide(us["lt_autotune"], us["null"]) for us in own])[0]
    return row | records[-1]["served"] | {"processes": len(own)}


def context_summary(table: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and worst rows over cuBLASLt's best and over torch."""

    def of(column: str, **wanted: Any) -> list[float]:
        those = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
        return [row[column] for row in those if column in row]

    def mean(column: str, **wanted: Any) -> float | None:
        return geomean(of(column, **wanted), 4)

    if table == "contexts":
        return {
            f"{dtype} {context} {launch}": {
                "geomean_vs_lt_autotune": mean("over_lt", **where),
                "geomean_vs_torch": mean("over_torch", **where),
                "worst": min(of("over_lt", **where), default=None),
                "null": mean("null", **where),
                "shapes": len(of("over_lt", **where)),
            }
            for dtype in dict.fromkeys(row["dtype"] for row in rows)
            for context in dict.fromkeys(row["context"] for row in rows)
            for launch in ("pdl", "plain")
            for where in [{"dtype": dtype, "context": context, "launch": launch}]
        }
    found: dict[str, Any] = {}
    for state, tuned in (("untuned", False), ("tuned", True)):
        found[f"{state}_cold"] = mean("cold", tuned=tuned)
        for dtype in ("fp16", "bf16"):
            found[f"{state}_cold_{dtype}"] = mean("cold", tuned=tuned, dtype=dtype)
            found[f"{state}_cold_{dtype}_over_torch"] = mean("cold_over_torch", tuned=tuned, dtype=dtype)
        for context in ("cold", "elementwise"):
            found[f"{state}_{context}_layer"] = mean(f"{context}_layer", tuned=tuned)
            over = of(f"{context}_over_triton", tuned=tuned)
            found[f"{state}_{context}_over_triton_worst"] = min(over, default=None)
        found[f"{state}_cold_worst"] = min(of("cold", tuned=tuned), default=None)
        found[f"{state}_elementwise"] = mean("elementwise", tuned=tuned)
        found[f"{state}_shapes"] = len(of("cold", tuned=tuned))
    return found | {"null": mean("cold_null")}
