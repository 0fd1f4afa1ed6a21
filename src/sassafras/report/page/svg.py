"""Scales and layouts of the page's charts; `templates/charts.html.jinja` draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .gather import MeasuredRow, Node, RunView

Point = tuple[int, float]
#: classes of line and fill colours, in order of use
SERIES = 8
#: pixels on a chart's right for the numbers of its curves
RIGHT = 44
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


def exactly(values: Sequence[float]) -> list[str]:
    """Ticks as text, all with as many decimals as the finest of them needs: 1.0025, not 1.002."""
    decimals = next(d for d in range(12) if all(abs(round(v, d) - v) < 1e-9 for v in values) or d == 11)
    return [f"{value:,.{decimals}f}" for value in values]


def apart(places: Sequence[float], low: float, high: float, gap: float = 12.0) -> list[float]:
    """Places for labels near these, `gap` apart (less where they would not fit), from `low` to `high`."""
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    order = sorted(range(len(places)), key=lambda n: places[n])
    found = [min(max(place, low), high) for place in places]
    for rank, n in enumerate(order):  # down from the top, then up from the bottom
        least = low if not rank else found[order[rank - 1]] + gap
        found[n] = max(found[n], least)
    for rank, n in reversed(list(enumerate(order))):
        most = high if rank == len(order) - 1 else found[order[rank + 1]] - gap
        found[n] = min(found[n], most)
    return found


def number(value: float) -> str:
    """A coordinate, two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Scale:
    """From values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> str:
        share = (min(max(value, self.low), self.high) - self.low) / max(self.high - self.low, 1e-12)
        return number(self.start + share * (self.end - self.start))


def ratio_scale(rows: Sequence[MeasuredRow], width: int) -> Scale:
    """One axis for all intervals of a table, 1.0 always on it."""
    ends = [1.0]
    for row in rows:
        ends += row.interval.ends
        if row.null_interval:
            ends += row.null_interval.ends
    pad = max(0.004, 0.06 * (max(ends) - min(ends)))
    return Scale(min(ends) - pad, max(ends) + pad, 4, width - 4)


def curve_scales(
    runs: Sequence[RunView], at: int, width: int, height: int
) -> tuple[Scale, Scale, list[float]]:
    """Both axes of a chart of `RunView.curve`, the horizontal one by its field `at`, and the levels marked."""
    right = max((run.curve[-1][at] for run in runs), default=1) or 1
    bottom = min([1.0, *(run.curve[0][2] for run in runs)])
    top = max([bottom + 0.01, *(run.curve[-1][2] for run in runs)])
    pad = 0.08 * (top - bottom)
    y = Scale(bottom - pad, top + pad, height - 34, 10)
    return Scale(0, right, 58, width - RIGHT), y, ticks(bottom, top + pad)


@dataclass(frozen=True, slots=True)
class Tree:
    """Where candidates are drawn, in pixels.

    Attributes:
        edges: (from, to, whether on the way to the best one).
        dots: (digest, candidate or None of the baseline, place, whether on the way to the best one).
    """

    width: int
    height: float
    edges: tuple[tuple[Point, Point, bool], ...]
    dots: tuple[tuple[str, Node | None, Point, bool], ...]


def tree(nodes: Sequence[Node]) -> Tree:
    """The layout of candidates, parents on the left."""
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
    at_pixel = {d: (20 + _COLUMN * depth, 26 + 34 * level) for d, (depth, level) in place.items()}
    edges = [
        (at_pixel[known[d].parent], at_pixel[d], d in path and known[d].parent in path)
        for d in place
        if d in known and known[d].parent in place
    ]
    dots = tuple((d, known.get(d), at_pixel[d], d in path) for d in place)
    return Tree(width, height, tuple(reversed(edges)), dots)
