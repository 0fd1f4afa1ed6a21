"""Bands of rows of tiles: which CTA takes which tile, where each multiplies all of k alone.

The GPU places CTAs of no cluster GPC after GPC, some 16 in each, and what several multiprocessors of a GPC
ask for at once is fetched from the L2 once. So they should form
a block of C, not a row of it: the rows of tiles of a band are visited together, column after column. What
the families that have it share is here; each kernel lays bands in its grid as suits it. 0 is row after row.
"""

from __future__ import annotations

from typing import Any

from sassafras.core import SassafrasError

from ..problem.launch import SHARED_LIMIT, ceil_div

#: of 16 CTAs in a GPC, bands of four make a block of 4 x 4 tiles; two and three where there are no more rows
#: or they divide into these, eight where a multiprocessor holds two CTAs
BANDS = (2, 3, 4, 8)
#: rows of tiles that make bands of three
THREES = (3, 5, 6)
#: tiles from which it can matter who is whose neighbour
FEWEST = 48


def dominated(band: int, down: int, across: int, shared_bytes: int) -> str | None:
    """Why bands are surely no better than row after row, or than other bands; None when they may be.

    Args:
        band: rows of tiles in a band; 0: no bands, never wasteful.
        down, across: tiles along m and n.
        shared_bytes: dynamic shared memory of a CTA.
    """
    if not band:
        return None
    if across <= band or 4 * down < 3 * ceil_div(down, band) * band:
        return f"bands of {band} for {down} x {across} tiles"
    if band == 3 and down not in THREES:
        return f"bands of 3 for {down} rows of tiles: they are for three, five and six"
    if band == 2 and down > 2:
        return f"bands of 2 for {down} rows of tiles: four make blocks of 4 x 4"
    if band == 8 and 2 * shared_bytes > SHARED_LIMIT:
        return "bands of 8 where a multiprocessor holds one CTA: four make blocks of 4 x 4"
    if down * across < FEWEST:
        return f"bands of {band} for {down * across} tiles: their order is of no matter"
    return None


def to_fields(band: int) -> dict[str, int] | None:
    """Rows or columns of tiles in a band as JSON; None for row after row."""
    return {"rows" if band > 0 else "columns": abs(band)} if band else None


def from_fields(given: Any) -> int:
    """The reverse: columns are negative. Raises SassafrasError."""
    if given is None:
        return 0
    if isinstance(given, dict) and len(given) == 1:
        ((along, width),) = given.items()
        if along in ("rows", "columns") and type(width) is int and width > 0:
            return width if along == "rows" else -width
    raise SassafrasError(
        "not a rasterization", where=repr(given)[:80], hint='null, {"rows": 4} or {"columns": 4}'
    )
