"""The cluster-split family (`kernels/sm90_gemm_split_k.cuh`): configurations, what is legal.

One tile a CTA on TMA + WGMMA; k may be split over a cluster. For problems of few tiles. The compiled kernels:
`cluster_split_instances`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sassafras.core import SassafrasError

from ..problem.launch import GRID_LIMIT, MULTIPROCESSORS, Launch, TensorMap, ceil_div
from ..problem.shape import Shape
from . import rasterization, tma_wgmma
from .base import PLAIN, Configuration, Mode
from .split_k_instances import INSTANCES, SplitKInstance


@dataclass(frozen=True, slots=True, order=True)
class SplitKConfig(Configuration):
    """An instance and what the CTAs of a cluster (1 to 8) do together.

    Attributes:
        instance: the compiled kernel.
        slices: CTAs of a cluster that split k.
        share_m, share_n: neighbours along m that share B's tiles, along n that share A's; powers of two.
        parts: clusters that split k further, by way of a workspace; slices are a power of two then.
        band: of CTAs that multiply all of k alone: rows of tiles that are visited together (`bands`); 0: row
            after row.
        mode: how launches follow each other.
    """

    HAS_LATE: ClassVar[bool] = True

    instance: SplitKInstance
    slices: int = 1
    share_m: int = 1
    share_n: int = 1
    parts: int = 1
    band: int = 0
    mode: Mode = field(default=PLAIN, kw_only=True)

    @property
    def stem(self) -> str:
        """For example ``cs_tn_64x128_s8/c2`` (two slices), ``cs_tn_64x160_s7m/c2m2n1p4`` (and four parts),
        ``cs_tn_64x128_s8/c1g4`` (bands of four)."""
        shared = f"m{self.share_m}n{self.share_n}" if self.share_m * self.share_n > 1 else ""
        parts = f"p{self.parts}" * (self.parts > 1)
        return f"{self.instance.name}/c{self.slices}{shared}{parts}{rasterization.ending(self.band)}"

    @classmethod
    def _parse(cls, stem: str) -> SplitKConfig:
        if found := re.fullmatch(r"(\w+)/c(\d)(?:m(\d)n(\d))?(?:p(\d+))?(?:g([1-9]\d?))?", stem):
            entry, *numbers, band = found.groups()
            counts = (int(number or 1) for number in numbers)
            return replace(cls(SplitKInstance.parse(entry), *counts), band=int(band or 0))
        raise SassafrasError("not a cluster-split configuration", where=stem)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA needs."""
        return self.instance.shared_bytes_of(self.slices)

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.slices * self.share_m * self.share_n

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Tiles along the kernel's m and n."""
        seen = self.seen(shape)
        return ceil_div(seen.m, self.instance.rows), ceil_div(seen.n, self.instance.columns)

    def whole_tiles(self, shape: Shape) -> tuple[int, int]:
        """`tiles`, rounded up to what neighbours share."""
        tiles_m, tiles_n = self.tiles(shape)
        return _whole(tiles_m, self.share_m), _whole(tiles_n, self.share_n)

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if why := self.instance.why_illegal() or tma_wgmma.misaligned(shape, self.layout):
            return why
        if not 1 <= self.cluster <= 8:
            return f"cluster {self.cluster}, 1 to 8 are possible"
        if {self.share_m, self.share_n} - {1, 2, 4, 8}:
            return f"{self.share_m} x {self.share_n} CTAs share: powers of two are possible"
        if not self.instance.shared and self.share_m * self.share_n > 1:
            return f"{self.instance.name} is compiled for CTAs that share nothing"
        i = self.instance
        if self.band and (i.shared or i.epilogue or self.slices * self.parts > 1):
            return (
                f"bands of {self.band}: for CTAs that share nothing and multiply all of k, of a single matrix"
            )
        majors = tma_wgmma.majors(i.layout, i.swapped)
        if why := tma_wgmma.bad_tile(i.rows, i.columns, *majors, self.share_n, self.share_m):
            return why
        if max(self.tiles(shape)) > GRID_LIMIT:
            return f"{max(self.tiles(shape))} tiles, a grid takes {GRID_LIMIT} along each extent"
        tiles = i.k_tiles(shape)
        ranges = self.slices * self.parts
        if self.parts < 1:
            return f"{self.parts} parts: at least one"
        if self.parts > 1 and self.slices & (self.slices - 1):
            return f"{self.parts} parts of {self.slices} slices: slices have to be a power of two"
        if why := self.instance.exchange(self.slices):
            return why
        if ceil_div(tiles, ceil_div(tiles, ranges)) != ranges:
            return f"{ranges} slices of {tiles} k tiles: some would be empty"
        for described in self._maps(shape).values():
            if why := described.why_illegal():
                return why
        return None

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than a smaller one; None when it may be good."""
        if self.instance.shared and self.share_m * self.share_n == 1:
            return "nothing is shared: the plain instance does that faster"
        seen, (rows, columns) = self.seen(shape), self.tile
        if rows > 64 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        few = seen.n <= (4 if columns >= 80 else 2) * columns
        if self.swapped and not few and not self._fits_better(seen):
            return f"transposed tiles of {columns} for {seen.n} rows of C: they are for few"
        if columns > 16 and columns // 2 >= seen.n:
            return f"{columns} columns a CTA for {seen.n}"
        tiles_m, tiles_n = self.tiles(shape)
        ctas = tiles_m * tiles_n * self.slices * self.parts
        if ctas > (1 if self.parts > 1 else 8) * MULTIPROCESSORS:
            return f"{ctas} CTAs that do not outlive their tile"
        if why := rasterization.dominated(self.band, tiles_m, tiles_n, self.shared_bytes):
            return why
        for share, tiles, extent in ((self.share_m, tiles_m, "m"), (self.share_n, tiles_n, "n")):
            if share > 1 and 4 * tiles < 3 * ceil_div(tiles, share) * share:
                return f"{share} CTAs share along {extent}, and there are {tiles} tiles"
        return None

    def _fits_better(self, seen: Shape) -> bool:
        """Whether transposed tiles fill the multiprocessors where tiles of 64 and of 128 rows would not.

        Of problems with one tile across, whole in k. With the quick start alone: no sweep has timed the
        others there, and what nobody has timed must not be chosen.
        """
        rows, columns = self.tile
        if columns < 80 or seen.m > 2 * rows or self.slices * self.parts > 1 or not self.instance.blocks:
            return False
        if seen.m > rows:  # two tiles across: in one wave
            return (
                columns > 128 and (tiles := 2 * ceil_div(seen.n, columns)) <= MULTIPROCESSORS and _fill(tiles)
            )
        return _fill(ceil_div(seen.n, columns)) and not any(_fill(ceil_div(seen.n, r)) for r in (64, 128))

    def _boxes(self, shape: Shape) -> tuple[int, int]:
        """Rows of a tile of A, of B, that each of those who share it loads."""
        i, seen = self.instance, self.seen(shape)
        mn_a, mn_b = tma_wgmma.majors(i.layout, i.swapped)
        return (
            tma_wgmma.box_rows(seen.m, i.rows, self.share_n, mn_a),
            tma_wgmma.box_rows(seen.n, i.columns, self.share_m, mn_b),
        )

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        i, seen, (rows_a, rows_b) = self.instance, self.seen(shape), self._boxes(shape)
        mn_a, mn_b = tma_wgmma.majors(i.layout, i.swapped)
        return {
            "map_a": tma_wgmma.operand_map("a", seen.m, shape.k, rows_a, mn_a, i.dtype),
            "map_b": tma_wgmma.operand_map("b", seen.n, shape.k, rows_b, mn_b, i.dtype),
        }

    def _launch(self, shape: Shape) -> Launch:
        seen, k_tiles = self.seen(shape), self.instance.k_tiles(shape)
        (rows, columns), (rows_a, rows_b) = self.tile, self._boxes(shape)
        scalars = {
            "m": seen.m,
            "n": seen.n,
            "ldc": shape.n,
            "k_tiles": k_tiles,
            "tiles_per_slice": ceil_div(k_tiles, self.slices * self.parts),
            "parts": self.parts,
            "log2_slices": self.slices.bit_length() - 1,
            "late": 0,
            "share_m": self.share_m,
            "share_n": self.share_n,
            "rows_a": rows_a,
            "rows_b": rows_b,
            "last_row": tma_wgmma.last(seen.m, rows),
            "last_column": tma_wgmma.last(seen.n, columns),
            "stage_bytes": max(1, self.instance.blocks)
            * tma_wgmma.stage_bytes(rows_a * self.share_n, rows_b * self.share_m),
            "all_a": sum(1 << self.slices * i for i in range(self.share_n)),
            "all_b": sum(1 << self.slices * self.share_n * i for i in range(self.share_m)),
            "band": self.band,
        }
        cluster = (self.slices, self.share_n, self.share_m)
        down, across = self.whole_tiles(shape)
        grid = (self.slices * self.parts, across, down)
        if self.band:
            grid = (self.band, across, ceil_div(down, self.band))
        elif self.instance.leaves and not self.instance.shared:
            # one part's CTAs follow each other, and of m and n what has fewer tiles first: a GPC fetches what
            # several of its CTAs ask for once (clusters are dealt to GPCs in turn, and need none of this)
            scalars["band"] = 1 if down <= across else -1
            grid = (*((down, across) if down <= across else (across, down)), self.parts)
        tiles = across * down if self.parts > 1 else 0
        counters = 4 * self.instance.consumers * self.slices
        return Launch(
            grid,
            self.threads,
            self.shared_bytes,
            cluster,
            scalars,
            self._maps(shape),
            4 * self.parts * tiles * rows * columns,
            tiles * counters,
        )


def _fill(tiles: int) -> bool:
    """Whether their last wave leaves at most a tenth of the multiprocessors without a tile."""
    return -tiles % MULTIPROCESSORS <= MULTIPROCESSORS // 10


def _whole(tiles: int, share: int) -> int:
    return ceil_div(tiles, share) * share


#: CTAs of a cluster that split k, that share along m, along n
_CLUSTERS = (
    *((slices, 1, 1) for slices in (1, 2, 3, 4, 5, 6, 7, 8)),
    *((1, m, n) for m in (1, 2, 4) for n in (1, 2, 4) if 1 < m * n <= 8),
    *((slices, m, n) for slices in (2, 3, 4) for m, n in ((2, 1), (1, 2))),
    (2, 2, 2),
    (2, 4, 1),
    (2, 1, 4),
)
#: slices -> clusters that split k further
_PARTS = {1: (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16), 2: (1, 2, 3, 4, 5, 6, 8), 4: (1, 2, 3, 4, 8), 8: (1, 2)}


def configurations(instances: tuple[SplitKInstance, ...] = INSTANCES) -> Iterator[SplitKConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance, (slices, m, n) in itertools.product(instances, _CLUSTERS):
        if instance.shared == (m * n > 1):
            for parts in _PARTS.get(slices, (1,)):
                yield SplitKConfig(instance, slices, m, n, parts)
            for band in rasterization.BANDS if slices * m * n == 1 else ():
                yield SplitKConfig(instance, band=band)
