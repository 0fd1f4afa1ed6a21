"""Rows as CSV, and as one self-contained HTML page with plots (inline SVG) and the table of bands."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from typing import Any

from .report import table

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 300, 56, 36
_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:900px;padding:0 1rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.15rem .5rem;text-align:right;border-bottom:1px solid #8883}"
    "circle{opacity:.65}text{font-size:11px;fill:currentColor}.grid{stroke:#8884}.one{stroke:#888}"
    "@media(prefers-color-scheme:dark){body{background:#15171a;color:#ddd}}"
)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Plain columns of all rows (lists and nested values are left out); empty cells where a row has none."""
    plain = [
        {key: value for key, value in row.items() if not isinstance(value, (dict, list))} for row in rows
    ]
    columns = list(dict.fromkeys(key for row in plain for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return text.getvalue()


def as_html(
    title: str, rows: Sequence[dict[str, Any]], summary: dict[str, Any], facts: dict[str, Any]
) -> str:
    """A page: where it was measured, the bands, speed-up over FLOP of ours and of the portfolio."""
    columns, cells = table(summary)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in line) + "</tr>" for line in cells)
    note = ", ".join(f"{key} {value}" for key, value in facts.items() if value)
    warning = ""
    if summary.get("modelled"):
        warning = "<p><strong>A dry run on a modelled clock. Nothing here was measured.</strong></p>"
    plots = [
        ("Ours against cuBLASLt-AutoTuning", "lt_autotune", "ours"),
        ("The portfolio (sassafras.matmul) against cuBLASLt-AutoTuning", "lt_autotune", "portfolio"),
        ("Ours, empty L2", "cold_lt_autotune", "cold_ours"),
    ]
    pictures = "".join(_plot(*plot, rows) for plot in plots)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><p>{html.escape(note)}</p>{warning}"
        f"<table><tr>{head}</tr>{body}</table>{pictures}</html>\n"
    )


def _plot(title: str, baseline: str, column: str, rows: Sequence[dict[str, Any]]) -> str:
    """Speed-up over FLOP, both logarithmic; a circle a shape, its name on hovering."""
    points = [
        (2.0 * row["m"] * row["n"] * row["k"], row[baseline] / row[column], row)
        for row in rows
        if row.get(baseline) and row.get(column)
    ]
    if not points:
        return ""
    low = min(0.8, *(ratio for _, ratio, _ in points)) * 0.97
    high = max(1.25, *(ratio for _, ratio, _ in points)) * 1.03
    first = math.floor(math.log10(min(flop for flop, _, _ in points)))
    last = math.ceil(math.log10(max(flop for flop, _, _ in points)) + 1e-9)
    last = max(last, first + 1)

    def x(flop: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 10) * (math.log10(flop) - first) / (last - first)

    def y(ratio: float) -> float:
        return 10 + (_HEIGHT - _BOTTOM - 10) * (math.log(high / ratio) / math.log(high / low))

    parts = []
    for power in range(first, last + 1):
        at = x(10.0**power)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="10" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - 18}" text-anchor="middle">1e{power}</text>')
    for ratio in (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0):
        if low <= ratio <= high:
            kind = "one" if ratio == 1.0 else "grid"
            at = y(ratio)
            parts.append(
                f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{ratio:g}</text>')
    for flop, ratio, row in points:
        colour = "#2a7de1" if ratio >= 1 else "#d1495b"
        name = f"{row['m']}x{row['n']}x{row['k']}: {ratio:.3f}"
        place = f'cx="{x(flop):.1f}" cy="{y(ratio):.1f}" r="3" fill="{colour}"'
        parts.append(f"<circle {place}><title>{name}</title></circle>")
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 3}" text-anchor="middle">FLOP (2 m n k)</text>')
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
    return f"<h2>{html.escape(title)}</h2>{svg}"
