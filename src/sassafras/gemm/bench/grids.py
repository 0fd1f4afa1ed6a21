"""Sets of shapes by name: the 1,000-shape grid, the backward pass, and drawn sets (data: `grids.json`).

``judge-N`` are never tuned, so that they judge what the selector makes of unknown shapes; nothing has learnt
from judge-4, judge-5, judge-6 and judge-8. ``learn-N`` are swept for it to learn from. No shape is in two of
them.

| set | shapes |
|---|---|
| judge-1 | layers of language models with few tokens, odd extents, primes |
| judge-2 to judge-5 | as programs have them: few tokens times a layer, any size, some odd |
| judge-6, learn-4 | few rows of any length, narrow C, small C with a long k, k off a kernel's block |
| judge-7, learn-2 | rows that are no multiple of 16 bytes |
| judge-8, learn-5 | decoding: up to 16 rows times a layer |
| learn-1 | as judge-2 |
| learn-3 | layers of models with 65 to 320 rows |
| learn-6 | the same with 72 to 2,048 rows, timed between other kernels (``benchmarks/contexts.py learn``) |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from sassafras.core import SassafrasError

from ..configs import backward
from ..problem.shape import Shape, cuda_l2_grid, in_bands, stratified

#: names in result files and data sets -> today's
EARLIER = {
    "off-grid": "judge-1",
    "off-grid-anew": "judge-2",
    "off-grid-third": "judge-3",
    "off-grid-fourth": "judge-4",
    "off-grid-fifth": "judge-5",
    "off-grid-rare": "judge-6",
    "off-grid-odd": "judge-7",
    "learning": "learn-1",
    "learning-odd": "learn-2",
    "learning-few": "learn-3",
    "learning-rare": "learn-4",
}
_COMPUTED = {"cuda-l2": cuda_l2_grid, "backward": backward.grid}


@cache
def drawn() -> dict[str, tuple[Shape, ...]]:
    """The sets that are data, by name; smallest work first in each."""
    found = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: tuple(map(Shape.parse, texts)) for name, texts in found.items()}


def name_of(grid: str) -> str:
    """Today's name of a grid; what is none stays as it is."""
    return EARLIER.get(grid, grid)


def judges(grid: str) -> bool:
    """Whether a grid's shapes must stay untuned."""
    return name_of(grid).startswith("judge-")


def choose_shapes(
    grid: str, bands: str | None = None, count: int | None = None, seed: int = 0
) -> tuple[Shape, ...]:
    """The shapes of a grid name (or a comma-separated list), restricted to bands, sampled.

    Raises:
        SassafrasError: a shape or a band is malformed, or there is no such grid.
    """
    name = name_of(grid)
    if name in _COMPUTED:
        shapes = _COMPUTED[name]()
    elif name in drawn():
        shapes = drawn()[name]
    elif grid[:1].isdigit():
        shapes = tuple(dict.fromkeys(Shape.parse(text) for text in grid.split(",")))  # each counts once
    else:
        known = ", ".join([*_COMPUTED, *drawn()])
        raise SassafrasError(
            f"there is no grid {grid!r}", hint=f"one of {known}, or shapes: 64x64x64,128x64x512"
        )
    shapes = in_bands(shapes, bands.split(",") if bands else None)
    return stratified(shapes, count, seed) if count is not None else shapes


def file_name(grid: str, mode: str, rate: float = 1000.0) -> str:
    """Of results: ``hgemm-offline``, ``hgemm-server``; of untuned shapes ``hgemm-judge-1[-server]``.

    Args:
        rate: calls a second of server mode; another than 1,000 is part of the name.
    """
    paced = f"-{rate:g}" if mode == "server" and rate != 1000 else ""
    if not judges(grid):
        return f"hgemm-{mode}{paced}"
    return f"hgemm-{name_of(grid)}" + ("" if mode == "offline" else f"-{mode}") + paced
