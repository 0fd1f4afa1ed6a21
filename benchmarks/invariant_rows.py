"""From the journal of `batch_invariant` to the rows and the summary of its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from common import geomean

from sassafras.gemm.select.invariant import ranges_of

#: over the mode's time: a ratio above 1 is a faster mode
_OVER = {
    "over_lt_no_split": "lt_no_split",
    "over_triton_published": "triton_published",
    "over_triton_tuned": "triton_tuned",
    "over_torch": "torch",
}
#: of the table: first and last number of rows
_BANDS = ((1, 64), (128, 512), (1024, 4096))


def rows_of(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row of each product that was timed, each (n, k) that was compared, each model, way and batch."""
    found = []
    for record in records:
        if "error" in record:
            continue
        made = {"bits": _bits, "times": _times, "models": _models}[record["part"]]
        found += made(record)
    return found


def _bits(record: dict[str, Any]) -> Iterable[dict[str, Any]]:
    n, k, dtype = record["of"]
    names = ("rows", "unequal", "control_rows", "control_unequal", "digest")
    more = {name: record[name] for name in names}
    yield {"part": "bits", "n": n, "k": k, "dtype": dtype, "process": record["process"], **more}


def _times(record: dict[str, Any]) -> Iterable[dict[str, Any]]:
    m, n, k, dtype = record["of"]
    us = {name: np.array(values) for name, values in record["us"].items()}
    mode = us["sassafras_invariant"]

    def ratio(above: np.ndarray, below: np.ndarray) -> float:
        return round(float(np.median(above / below)), 4)

    row = {"part": "times", "m": m, "n": n, "k": k, "dtype": dtype, "process": record["process"]}
    right = {} if "sassafras_invariant" in record["wrong"] else us.keys() - set(record["wrong"])
    if {"sassafras", "sassafras_null"} <= set(right):
        row |= {"tax": ratio(mode, us["sassafras"]), "null": ratio(us["sassafras_null"], mode)}
    row |= {name: ratio(us[other], mode) for name, other in _OVER.items() if other in right}
    medians = {name: round(float(np.median(values)), 3) for name, values in us.items()}
    yield {**row, "us": medians, "served": record["served"], "tiling": record["tiling"]}


def _models(record: dict[str, Any]) -> Iterable[dict[str, Any]]:
    name, dtype = record["of"]
    for way, of in record["us"].items():
        for batch, us in of.items():
            row = {"part": "models", "model": name, "dtype": dtype, "way": way, "batch": int(batch)}
            row |= {"us": round(float(np.median(us)), 2), "unequal": record["unequal"][way][batch]}
            row["tokens_per_second"] = round(1e6 * int(batch) / row["us"], 1)
            yield row | {key: record[key] for key in ("logits", "layers", "context")}


def summary_of(rows: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is quoted: see the guide. A tax is time with the mode over time without."""
    bits, times, models = ([r for r in rows if r["part"] == part] for part in ("bits", "times", "models"))

    def mean(name: str, least: int = 1, most: int = 1 << 30) -> float | None:
        return geomean((r[name] for r in times if name in r and least <= r["m"] <= most), 4)

    def classes() -> Iterable[dict[str, Any]]:
        for cut in (False, True):
            for least, most in _BANDS:
                band = (r for r in times if least <= r["m"] <= most)
                here = [r for r in band if (ranges_of(r["n"], r["k"]) > 1) == cut]
                values = {name: geomean((r[name] for r in here if name in r), 4) for name in ("tax", *_OVER)}
                row = {"k": "in 4 or 8 ranges" if cut else "whole", "least": least, "most": most}
                yield {**row, "products": len(here), **values}

    digests: dict[tuple[Any, ...], dict[int, str]] = {}
    for row in bits:
        digests.setdefault((row["n"], row["k"], row["dtype"]), {})[row["process"]] = row["digest"]
    twice = [set(each.values()) for each in digests.values() if len(each) > 1]
    mine = [r for r in models if r["way"] == "sassafras"]
    tuned = [r["over_triton_tuned"] for r in times if "over_triton_tuned" in r]
    found = {
        "shapes": len({(r["n"], r["k"]) for r in bits}),
        "rows_compared": sum(r["rows"] for r in bits),
        "unequal": sum(r["unequal"] for r in bits) + sum(r["unequal"] for r in mine),
        "processes": len({row["process"] for row in bits}),
        "compared_between_processes": len(twice),
        "unequal_between_processes": sum(len(each) > 1 for each in twice),
        "control_unequal": sum(r["control_unequal"] for r in bits),
        "control_rows": sum(r["control_rows"] for r in bits),
        "timed": len(times),
        "tax_m16_up": mean("tax", 16),
        "tax_below_16": mean("tax", 1, 15),
        "null": mean("null"),
        "classes": list(classes()),
        "over_lt_no_split": mean("over_lt_no_split"),
        "over_triton": mean("over_triton_published"),
        "over_triton_published_m256": mean("over_triton_published", 1, 256),
        "over_triton_tuned_m256": mean("over_triton_tuned", 1, 256),
        "over_triton_tuned_worst": min(tuned, default=None),
        "over_torch": mean("over_torch"),
    }
    for other in ("torch", "triton"):
        pairs = {(r["model"], r["dtype"], r["batch"]): r["us"] for r in models if r["way"] == other}
        over = [pairs[at] / r["us"] for r in mine if (at := (r["model"], r["dtype"], r["batch"])) in pairs]
        found[f"model_over_{other}"] = geomean(over, 4)
    return found | {
        "wrong": [f"{r['shape']}: {', '.join(r['wrong'])}" for r in records if r.get("wrong")],
        "failed": {r["shape"]: r["error"] for r in records if "error" in r},
    }
