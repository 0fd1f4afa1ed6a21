"""Charts as inline SVG; text in them is escaped. Colours are classes, so that one page serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from markupsafe import Markup

from .gather import MeasuredRow, Node, RunView

#: classes of line and fill colours, in order of use
SERIES = 8
#: pixels between two generations of a tree
_COLUMN = 215


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover the span."""
    span = max(high - low, 1e-9)
    raw = span / about
    step = 10 ** math.floor(math.log10(raw))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if step * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Scale:
    """From values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> str:
        share = (min(max(value, self.low), self.high) - self.low) / max(self.high - self.low, 1e-12)
        return _number(self.start + share * (self.end - self.start))


def ratio_scale(rows: Sequence[MeasuredRow], width: int) -> Scale:
    """One axis for all intervals of a table, 1.0 always on it."""
    ends = [1.0]
    for row in rows:
        ends += [row.interval.low, row.interval.high]
        if row.null_interval:
            ends += [row.null_interval.low, row.null_interval.high]
    pad = max(0.004, 0.06 * (max(ends) - min(ends)))
    return Scale(min(ends) - pad, max(ends) + pad, 4, width - 4)


def interval(row: MeasuredRow, scale: Scale, width: int) -> Markup:
    """The speed-up's interval, the null's band beside it."""
    one, mid = scale(1.0), 13
    parts = [f'<line class="one" x1="{one}" x2="{one}" y1="0" y2="34"/>']
    text = f"{row.speedup:.3f} {row.interval}"
    if row.null_interval:
        low, high = float(scale(row.null_interval.low)), float(scale(row.null_interval.high))
        parts.append(
            f'<rect class="null" x="{_number(low - 1)}" y="23" width="{_number(max(2.0, high - low + 2))}" height="7"'
            f' rx="1"/>'
        )
        text += f", null {row.null:.3f} {row.null_interval}"
    kind = "gain" if row.counts else "loss" if row.interval.high < 1 else "same"
    left, right = scale(row.interval.low), scale(row.interval.high)
    parts += [
        f'<line class="bar {kind}" x1="{left}" x2="{right}" y1="{mid}" y2="{mid}"/>',
        f'<path class="bar {kind}" d="M{left} {mid - 5}v10M{right} {mid - 5}v10"/>',
        f'<circle class="dot {kind}" cx="{scale(row.speedup)}" cy="{mid}" r="4"/>',
    ]
    return Markup(
        f'<svg class="interval" viewBox="0 0 {width} 34" width="{width}" height="34" role="img" '
        f'aria-label="{escape(text)}"><title>{escape(text)}</title>{"".join(parts)}</svg>'
    )


def axis(scale: Scale, width: int) -> Markup:
    """The axis of a column of intervals."""
    marks = "".join(
        f'<text x="{scale(v)}" y="11" text-anchor="middle">{v:.4g}</text>'
        f'<line x1="{scale(v)}" x2="{scale(v)}" y1="14" y2="18"/>'
        for v in ticks(scale.low, scale.high, 4)
    )
    return Markup(
        f'<svg class="axis" viewBox="0 0 {width} 18" width="{width}" height="18" aria-hidden="true">{marks}</svg>'
    )


def curves(runs: Sequence[RunView], over: str, width: int = 900, height: int = 300) -> Markup:
    """Best so far of each run over ``evaluations`` or ``seconds``."""
    at = 0 if over == "evaluations" else 1
    runs = [run for run in runs if run.curve]
    right = max((run.curve[-1][at] for run in runs), default=1) or 1
    top = max((run.curve[-1][2] for run in runs), default=1.0)
    bottom = min(1.0, *(run.curve[0][2] for run in runs)) if runs else 1.0
    top = max(top, bottom + 0.01)
    pad = 0.08 * (top - bottom)
    x, y = Scale(0, right, 52, width - 14), Scale(bottom - pad, top + pad, height - 34, 10)
    parts = []
    for value in ticks(bottom, top + pad):
        parts.append(f'<line class="grid" x1="52" x2="{width - 14}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="46" y="{y(value)}" dy="4" text-anchor="end">{value:.3f}</text>')
    for value in ticks(0, right, 6):
        label = f"{value:,.0f}" if right >= 10 else f"{value:g}"
        parts.append(f'<text x="{x(value)}" y="{height - 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<line class="one" x1="52" x2="{width - 14}" y1="{y(1.0)}" y2="{y(1.0)}"/>')
    unit = "evaluations" if at == 0 else "seconds of budget"
    parts.append(f'<text x="{width - 14}" y="{height - 2}" text-anchor="end">{unit}</text>')
    for n, run in enumerate(runs):
        points = [(point[at], point[2]) for point in run.curve]
        path = f"M{x(points[0][0])} {y(points[0][1])}" + "".join(f"H{x(a)}V{y(b)}" for a, b in points[1:])
        title = f"{run.name}, run {run.record.id}, {run.record.strategy}: {points[-1][1]:.3f}x"
        dashes = " modelled" if run.record.modelled else ""
        parts.append(
            f'<g class="curve" data-run="{run.key}"><title>{escape(title)}</title>'
            f'<path class="hit" d="{path}"/><path class="line s{n % SERIES}{dashes}" d="{path}"/>'
            f'<circle class="fill s{n % SERIES}" cx="{x(points[-1][0])}" cy="{y(points[-1][1])}" r="3"/></g>'
        )
    label = f"Best so far over {unit}, {len(runs)} runs"
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )


def stacked(counts: Mapping[str, int], classes: Mapping[str, str], width: int = 260) -> Markup:
    """A bar of shares, for verdicts and reasons."""
    total = sum(counts.values()) or 1
    at, parts = 0.0, []
    for name, count in counts.items():
        wide = width * count / total
        parts.append(
            f'<rect class="{classes.get(name, "v-other")}" x="{_number(at)}" y="0" width="{_number(max(wide, 0.8))}"'
            f' height="14"><title>{escape(name)}: {count:,} ({100 * count / total:.2g} %)</title></rect>'
        )
        at += wide
    text = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return Markup(
        f'<svg class="stack" viewBox="0 0 {width} 14" width="{width}" height="14" role="img" '
        f'aria-label="{escape(text)}">{"".join(parts)}</svg>'
    )


def tree(nodes: Sequence[Node]) -> Markup:
    """Candidates as a tree, parents on the left; the best path stands out."""
    known = {node.digest: node for node in nodes}
    children: dict[str, list[str]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node.digest)
    roots = sorted({node.parent for node in nodes} - set(known)) or [nodes[0].digest]
    place: dict[str, tuple[int, float]] = {}
    row = 0.0
    stack: list[tuple[str, int, bool]] = [(root, 0, False) for root in reversed(roots)]
    while stack:
        digest, depth, done = stack.pop()
        below = [child for child in children.get(digest, ()) if child != digest]
        if done:
            rows = [place[child][1] for child in below if child in place]
            if rows:
                place[digest] = (depth, sum(rows) / len(rows))
            continue
        if digest in place:
            continue
        place[digest] = (depth, row)
        if not below:
            row += 1
        else:
            stack.append((digest, depth, True))
            stack += [(child, depth + 1, False) for child in reversed(below) if child not in place]
    best = max((n for n in nodes if n.ratio), key=lambda n: n.ratio or 0.0, default=None)
    path: set[str] = set()
    at = best.digest if best else ""
    while at and at not in path:
        path.add(at)
        at = known[at].parent if at in known else ""
    deep = max(depth for depth, _ in place.values())
    width, height = _COLUMN * (deep + 1) + 60, max(70, 34 * (row + 1))
    parts: list[str] = []
    for digest, (depth, level) in place.items():
        x, y = 20 + _COLUMN * depth, 26 + 34 * level
        node_ = known.get(digest)
        if node_ and node_.parent in place:
            a, b = place[node_.parent]
            px, py = 20 + _COLUMN * a, 26 + 34 * b
            bold = " best" if digest in path and node_.parent in path else ""
            parts.insert(
                0,
                f'<path class="edge{bold}" d="M{px} {_number(py)}C{px + 80} {_number(py)} {x - 80} {_number(y)} {x} {_number(y)}"/>',
            )
        ratio = "baseline" if node_ is None else f"{node_.ratio:.3f}x" if node_.ratio else node_.verdict
        kind = (
            "root" if node_ is None else "bad" if not node_.ratio else "gain" if node_.ratio > 1 else "same"
        )
        label_ = escape(node_.label[:26]) if node_ else ""
        title = digest[:16] + (f": {node_.verdict}, {node_.label}" if node_ else "")
        parts.append(
            f'<g><title>{escape(title)}</title><circle class="node {kind}{" best" if digest in path else ""}" '
            f'cx="{x}" cy="{_number(y)}" r="5"/><text x="{x + 3}" y="{_number(y - 9)}">{escape(ratio)} <tspan class="note">{label_}</tspan></text></g>'
        )
    label = f"Which candidate was made from which: {len(nodes)} candidates"
    return Markup(
        f'<div class="scroll"><svg class="tree" width="{width}" height="{_number(height)}" viewBox="0 0 {width} {_number(height)}" '
        f'role="img" aria-label="{escape(label)}"><title>{escape(label)}</title>{"".join(parts)}</svg></div>'
    )
