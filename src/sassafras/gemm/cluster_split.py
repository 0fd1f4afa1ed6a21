"""The cluster-split family (`kernels/sm90_hgemm_cluster_split.cuh`): instances, configurations, legality.

One tile a CTA on TMA + WGMMA; k may be split over a cluster. For problems of few tiles.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sassafras.core import SassafrasError

from . import bands, hopper
from .configuration import PLAIN, Configuration, Mode
from .entry import EPILOGUE_PARAMETERS, entry
from .hopper import truth
from .launch import GRID_LIMIT, MULTIPROCESSORS, SHARED_LIMIT, Launch, TensorMap, ceil_div
from .shapes import Shape


@dataclass(frozen=True, slots=True, order=True)
class ClusterSplitInstance:
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn``, ``nn``, ``tt`` or ``nt``.
        rows, columns: the CTA's tile (of the transposed problem when swapped); 64 rows a warpgroup.
        stages: k tiles in shared memory.
        swapped: computes the transpose of C, for small m.
        dtype: ``fp16`` or ``bf16``.
        shared: CTAs of a cluster may share operands.
        epilogue: batches, and more than the product (`epilogue`).
        blocks: 1 or 2: the quick start (`kernels/sm90_hgemm_quick_split.cuh`), with so many blocks of 64 k in
            a stage; 0: without it.
        lead: stages by which the first of two warpgroups is ahead at the end; with the quick start.
    """

    #: parts leave their sums to a second launch (`second_launch.LeavingInstance`)
    leaves: ClassVar[bool] = False

    layout: str
    rows: int
    columns: int
    stages: int
    swapped: bool = False
    dtype: str = "fp16"
    shared: bool = False
    epilogue: bool = False
    blocks: int = 0
    lead: int = 0

    @property
    def name(self) -> str:
        """Entry name, for example ``cs_tn_64x128_s8``.

        At its end: ``m``: operands may be shared; ``e``: epilogue; ``q1``, ``q2``: quick start, blocks;
        ``l3``: lead.
        """
        kind = ("_swapped" if self.swapped else "") + ("_bf16" if self.dtype == "bf16" else "")
        ending = "m" * self.shared + "e" * self.epilogue + (f"q{self.blocks}" if self.blocks else "")
        ending += f"l{self.lead}" if self.lead else ""
        return f"cs_{self.layout}{kind}_{self.rows}x{self.columns}_s{self.stages}{ending}"

    @classmethod
    def parse(cls, name: str) -> ClusterSplitInstance:
        """The instance of an entry name. Raises SassafrasError."""
        for instance in (*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES, *CANDIDATES):
            if instance.name == name:
                return instance
        raise SassafrasError("no cluster-split instance has this name", where=name)

    @property
    def consumers(self) -> int:
        """Multiplying warpgroups."""
        return self.rows // 64

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 128 * self.consumers + 32

    @property
    def registers(self) -> int:
        """Registers a thread, roughly: accumulators, addresses."""
        return self.columns // 2 + 40

    @property
    def ring(self) -> int:
        """Blocks of 64 k that the stages hold."""
        return self.stages * max(1, self.blocks)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA, as the kernel lays it out."""
        stages = self.ring * hopper.stage_bytes(self.rows, self.columns)
        return (
            1024
            + stages
            + self.consumers * 4 * hopper.staging(self.columns, self.swapped)[2]
            + 16 * (self.ring + 1)
        )

    def k_tiles(self, shape: Shape) -> int:
        """Stages' worth of k."""
        return ceil_div(shape.k, hopper.TILE_K * max(1, self.blocks))

    def exchange(self, slices: int) -> str | None:
        """Why so many slices cannot exchange their partial sums; None when they can."""
        received = self.received_bytes(slices)
        if self.sums_apart:
            if (needed := self.shared_bytes_of(slices)) > SHARED_LIMIT:
                return f"with partial sums of {slices} slices {needed} bytes of shared memory"
            return None
        stages = self.ring * hopper.stage_bytes(self.rows, self.columns)
        if slices > 1 and received > stages:
            return f"partial sums of {slices} slices take {received} bytes, more than the stages"
        return None

    @property
    def sums_apart(self) -> bool:
        """Slices exchange their partial sums beside the stages, not in their place."""
        return self.blocks > 0 and not self.shared

    def received_bytes(self, slices: int) -> int:
        """Partial sums that a CTA receives."""
        return slices * ceil_div(self.columns // 16, slices) * 64 * self.rows if slices > 1 else 0

    def shared_bytes_of(self, slices: int) -> int:
        """Dynamic shared memory of a CTA where so many split k (`with_sums` of the quick kernel)."""
        if slices == 1 or not self.sums_apart:
            return self.shared_bytes
        return ceil_div(self.shared_bytes, 128) * 128 + self.received_bytes(slices)

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the kernel's parameters."""
        plain = (
            ("map_a", "tensormap"), ("map_b", "tensormap"), ("c", f"*{self.dtype}"), ("workspace", "*f32"),
            ("counters", "*u32"), ("m", "i32"), ("n", "i32"), ("ldc", "i32"), ("k_tiles", "i32"),
            ("tiles_per_slice", "i32"), ("parts", "i32"), ("log2_slices", "i32"), ("late", "i32"),
            ("share_m", "i32"), ("share_n", "i32"), ("rows_a", "i32"), ("rows_b", "i32"), ("all_a", "i32"),
            ("all_b", "i32"), ("last_row", "i32"), ("last_column", "i32"), ("stage_bytes", "i32"),
            ("band", "i32"),
        )  # fmt: skip
        return plain + EPILOGUE_PARAMETERS * self.epilogue

    def reject(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.epilogue and self.shared:
            return "CTAs share operands, and clusters with an epilogue stay within a matrix of the batch"
        if self.rows not in (64, 128):
            return f"{self.rows} rows: 64 or 128"
        if why := hopper.bad_tile(self.rows, self.columns, *hopper.majors(self.layout, self.swapped)):
            return why
        if not 2 <= self.stages <= 32:
            return "at least two stages, and at most 32"
        if self.blocks not in (0, 1, 2) or (self.blocks and self.epilogue):
            return f"{self.blocks} blocks of k a stage: 1 or 2, and not with an epilogue"
        if self.lead and not (self.blocks and self.consumers == 2 and self.lead < self.stages):
            return "the first of two warpgroups leads, with the quick start, by fewer stages than there are"
        if not self.sums_apart and (why := self.exchange(2)):
            return why
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    @property
    def template(self) -> str:
        """The kernel's type in C++."""
        mn_a, mn_b = hopper.majors(self.layout, self.swapped)
        numbers = (
            self.rows, self.columns, self.stages, self.consumers, truth(mn_a), truth(mn_b),
            truth(self.dtype == "bf16"), truth(self.swapped), truth(self.shared),
        )  # fmt: skip
        if self.blocks:
            lead = f", {self.lead}" if self.lead else ""
            return f"QuickSplit<{', '.join(map(str, numbers))}, {self.blocks}{lead}>"
        return f"ClusterSplit<{', '.join(map(str, numbers))}{', true' * self.epilogue}>"

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        header = f"sm90_hgemm_{'quick' if self.blocks else 'cluster'}_split.cuh"
        return entry(self.name, header, self.template, self.parameters, self.threads, epilogue=self.epilogue)


#: rows, columns, stages, swapped: what won somewhere on the grid, or was close (docs/hgemm.md). Most have as
#: many stages as 200 KB hold, for one CTA a multiprocessor and long k; those with few are for two and more.
#: 64 x 64 with twelve stages and swapped 64 x 32 with sixteen are here for their BF16 twins' sake: times of
#: theirs are what callers with BF16 are served by
_BOTH = (
    (64, 64, 12, False), (64, 64, 6, False), (64, 128, 8, False), (64, 192, 6, False), (64, 256, 5, False),
    (128, 64, 8, False), (128, 128, 6, False), (128, 192, 5, False), (64, 16, 16, True), (64, 32, 16, True),
    (64, 32, 8, True), (64, 48, 14, True), (128, 16, 10, True), (128, 32, 9, True),
)  # fmt: skip
#: widths that cannot hold rows of B
_TN = ((64, 32, 8, False), (64, 96, 10, False))
#: of those whose CTAs may share operands
_SHARED = ((64, 160, 7, False),)
_SHARED_NN = ((64, 128, 8, False),)
#: 65 to 320 rows of C, in tiles that fit them: their neighbours along the weights share them
_SHARED_FEW_ROWS = ((128, 96, 6, True), (128, 144, 5, True))
#: with the quick start: blocks of 64 k in a stage, and tiles; fewer stages where slices want room for sums
#: beside them. Two blocks were slower but for narrow tiles (docs/experiments/2026-11-22-hgemm-chain.md)
_QUICK = (
    (1, (
        (64, 64, 6, False), (64, 64, 10, False), (64, 128, 7, False), (128, 64, 7, False),
        (128, 128, 6, False), (64, 32, 8, True), (64, 64, 10, True),
    )),
    (2, ((64, 64, 3, False), (64, 64, 5, False))),
)  # fmt: skip
#: those of 96 transposed columns are for weights of 12288 rows: 128 tiles
_QUICK_96 = ((1, ((64, 96, 8, True), (128, 96, 6, True))),)
#: 256 columns of C and weights of 12288 rows: 2 x 64 transposed tiles, in bands of two, 2 to 5 % faster than
#: tiles of 192 x 128 (2026-11-22)
_QUICK_192 = ((1, ((128, 192, 4, True),)),)
#: 129 to 160 rows of C, 257 to 320, and the weights of a layer: 8 to 13 % faster (2026-11-22)
_QUICK_160 = ((1, ((64, 160, 7, True), (128, 160, 5, True))),)
_QUICK_TN = (
    (1, ((64, 32, 8, False), (64, 80, 9, False), (64, 96, 8, False), (128, 96, 6, False))),
    (2, ((64, 32, 4, False), (64, 32, 7, False))),
)
_QUICK_NN = ((1, ((128, 64, 7, True),)), (2, ((64, 32, 4, True),)))
_QUICK_SHARED = ((1, ((64, 64, 12, False), (64, 128, 8, False), (128, 128, 6, False))),)
#: layouts, rows, columns, stages, shared, lead: the first warpgroup stores while the second multiplies
_LEADING = (
    (("tn", "nn"), 128, 256, 4, False, 3), (("tn", "nn"), 128, 128, 6, False, 4),
    (("tn",), 128, 128, 6, True, 4), (("tn",), 128, 192, 5, False, 3),
)  # fmt: skip


def _instances(
    layouts: tuple[str, ...],
    tiles: Iterable[tuple[int, int, int, bool]],
    dtype: str = "fp16",
    shared: bool = False,
    blocks: int = 0,
) -> Iterator[ClusterSplitInstance]:
    for layout in layouts:
        for rows, columns, stages, swapped in tiles:
            found = ClusterSplitInstance(layout, rows, columns, stages, swapped, dtype, shared, blocks=blocks)
            if found.reject() is None:
                yield found


#: compiled for the benchmark's task (FP16, nn and tn)
INSTANCES: tuple[ClusterSplitInstance, ...] = (
    *_instances(("tn", "nn"), _BOTH), *_instances(("tn",), _TN), *_instances(("tn",), _SHARED, shared=True),
    *_instances(("nn",), _SHARED_NN, shared=True), *_instances(("tn", "nn"), _SHARED_FEW_ROWS, shared=True),
    *(
        instance
        for layouts, kinds, shared in (
            (("tn", "nn"), _QUICK, False), (("tn",), _QUICK_TN, False), (("nn",), _QUICK_NN, False),
            (("tn", "nn"), _QUICK_96, False), (("tn", "nn"), _QUICK_192, False),
            (("tn", "nn"), _QUICK_160, False),
            (("tn", "nn"), _QUICK_SHARED, True),
        )
        for blocks, tiles in kinds
        for instance in _instances(layouts, tiles, shared=shared, blocks=blocks)
    ),
    *(
        ClusterSplitInstance(layout, rows, columns, stages, shared=shared, blocks=1, lead=lead)
        for layouts, rows, columns, stages, shared, lead in _LEADING
        for layout in layouts
    ),
)  # fmt: skip
_GENERAL = ((64, 64, 12, False), (128, 128, 6, False), (64, 32, 16, True))
#: compiled for other callers: BF16, and the layouts of training's backward pass
OTHER_INSTANCES: tuple[ClusterSplitInstance, ...] = (
    *_instances(("tn", "nn", "tt", "nt"), _GENERAL, "bf16"),
    *_instances(("tt", "nt"), _GENERAL),
)

#: what no GPU has timed yet (`families.CANDIDATES`): nothing
CANDIDATES: tuple[ClusterSplitInstance, ...] = ()

#: those with an epilogue (`epilogue`)
_FUSED = ((64, 64, 6, False), (64, 32, 8, True), (64, 128, 8, False), (128, 128, 6, False))
EPILOGUE_INSTANCES: tuple[ClusterSplitInstance, ...] = tuple(
    replace(instance, epilogue=True)
    for instance in (
        *_instances(("tn", "nn"), _FUSED),
        *_instances(("tn", "nn"), ((64, 64, 6, False),), "bf16"),
    )
)


@dataclass(frozen=True, slots=True, order=True)
class ClusterSplitConfig(Configuration):
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

    instance: ClusterSplitInstance
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
        return f"{self.instance.name}/c{self.slices}{shared}{parts}{bands.ending(self.band)}"

    @classmethod
    def _parse(cls, stem: str) -> ClusterSplitConfig:
        if found := re.fullmatch(r"(\w+)/c(\d)(?:m(\d)n(\d))?(?:p(\d+))?(?:g([1-9]\d?))?", stem):
            entry, *numbers, band = found.groups()
            counts = (int(number or 1) for number in numbers)
            return replace(cls(ClusterSplitInstance.parse(entry), *counts), band=int(band or 0))
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

    def reject(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if why := self.instance.reject() or hopper.misaligned(shape, self.layout):
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
        majors = hopper.majors(i.layout, i.swapped)
        if why := hopper.bad_tile(i.rows, i.columns, *majors, self.share_n, self.share_m):
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
            if why := described.reject():
                return why
        return None

    def wasteful(self, shape: Shape) -> str | None:
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
        if why := bands.wasteful(self.band, tiles_m, tiles_n, self.shared_bytes):
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
        mn_a, mn_b = hopper.majors(i.layout, i.swapped)
        return (
            hopper.box_rows(seen.m, i.rows, self.share_n, mn_a),
            hopper.box_rows(seen.n, i.columns, self.share_m, mn_b),
        )

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        i, seen, (rows_a, rows_b) = self.instance, self.seen(shape), self._boxes(shape)
        mn_a, mn_b = hopper.majors(i.layout, i.swapped)
        return {
            "map_a": hopper.operand_map("a", seen.m, shape.k, rows_a, mn_a, i.dtype),
            "map_b": hopper.operand_map("b", seen.n, shape.k, rows_b, mn_b, i.dtype),
        }

    def _launch(self, shape: Shape) -> Launch:
        seen, k_tiles = self.seen(shape), self.instance.k_tiles(shape)
        (rows, columns), (rows_a, rows_b) = self.tile, self._boxes(shape)
        scalars = {
            "m": seen.m, "n": seen.n, "ldc": shape.n, "k_tiles": k_tiles,
            "tiles_per_slice": ceil_div(k_tiles, self.slices * self.parts),
            "parts": self.parts, "log2_slices": self.slices.bit_length() - 1, "late": 0,
            "share_m": self.share_m, "share_n": self.share_n,
            "rows_a": rows_a, "rows_b": rows_b,
            "last_row": hopper.last(seen.m, rows), "last_column": hopper.last(seen.n, columns),
            "stage_bytes": max(1, self.instance.blocks)
            * hopper.stage_bytes(rows_a * self.share_n, rows_b * self.share_m),
            "all_a": sum(1 << self.slices * i for i in range(self.share_n)),
            "all_b": sum(1 << self.slices * self.share_n * i for i in range(self.share_m)), "band": self.band,
        }  # fmt: skip
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
            grid, self.threads, self.shared_bytes, cluster, scalars, self._maps(shape),
            4 * self.parts * tiles * rows * columns, tiles * counters,
        )  # fmt: skip


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
    (2, 2, 2), (2, 4, 1), (2, 1, 4),
)  # fmt: skip
#: slices -> clusters that split k further
_PARTS = {1: (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16), 2: (1, 2, 3, 4, 5, 6, 8), 4: (1, 2, 3, 4, 8), 8: (1, 2)}


def configurations(instances: tuple[ClusterSplitInstance, ...] = INSTANCES) -> Iterator[ClusterSplitConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance, (slices, m, n) in itertools.product(instances, _CLUSTERS):
        if instance.shared == (m * n > 1):
            for parts in _PARTS.get(slices, (1,)):
                yield ClusterSplitConfig(instance, slices, m, n, parts)
            for band in bands.BANDS if slices * m * n == 1 else ():
                yield ClusterSplitConfig(instance, band=band)
