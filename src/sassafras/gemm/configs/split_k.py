"""The split-K kernel (`kernels/sm90_gemm_split_k.cuh`): instances, configurations, what is legal, their cost.

One tile a CTA on TMA + WGMMA; k may be split over a cluster. For problems of few tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..problem.launch import GRID_LIMIT, MULTIPROCESSORS, SHARED_LIMIT, TensorMap, ceil_div
from ..problem.shape import Shape
from . import cost, rasterization, tma_wgmma
from .base import SLICES, Choices, Configuration, cuts_at
from .source import EPILOGUE_PARAMETERS, KernelInstance, Parameters, all_of
from .tma_wgmma import TILE_K

#: the kernel's integer parameters, in order
NUMBERS = (
    "m",
    "n",
    "ldc",
    "k_tiles",
    "tiles_per_slice",
    "late",
    "last_row",
    "last_column",
    "stage_bytes",
    "band",
)


@dataclass(frozen=True, slots=True, order=True)
class SplitKInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn``, ``nn``, ``tt`` or ``nt``.
        tile_m, tile_n: the CTA's tile (of the transposed problem when swapped); 64 rows a warpgroup.
        stages: in shared memory, of `k_blocks` blocks of 64 k each.
        swapped: computes the transpose of C, for small m.
        dtype: ``fp16`` or ``bf16``.
        epilogue: batches, and more than the product (`epilogue`).
        k_blocks: blocks of 64 k in a stage, 1 or 2.
        stagger: stages by which the first of two warpgroups is ahead at the end.
    """

    HEADER: ClassVar[str] = "sm90_gemm_split_k.cuh"
    TEMPLATE: ClassVar[str] = "SplitK"
    #: parts leave their sums to a second launch (`split_k_two_pass.PartialsInstance`)
    leaves: ClassVar[bool] = False
    #: a CTA adds up the sums of ranges of k (`split_k_folded.FoldedInstance`)
    folds: ClassVar[bool] = False

    layout: str
    tile_m: int
    tile_n: int
    stages: int
    swap_ab: bool = False
    dtype: str = "fp16"
    epilogue: bool = False
    k_blocks: int = 1
    stagger: int = 0

    @property
    def name(self) -> str:
        """For example ``cs_tn_64x128_s8q1``: stages, blocks in each; ``l3``: stagger, ``e``: epilogue."""
        ending = (f"l{self.stagger}" if self.stagger else "") + "e" * self.epilogue
        return f"cs_{self._kind}_{self.tile_m}x{self.tile_n}_s{self.stages}q{self.k_blocks}{ending}"

    @property
    def math_warpgroups(self) -> int:
        """Multiplying warpgroups."""
        return self.tile_m // 64

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 128 * self.math_warpgroups + 32

    @property
    def ring(self) -> int:
        """Blocks of 64 k that the stages hold."""
        return self.stages * self.k_blocks

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA, as the kernel lays it out."""
        stages = self.ring * tma_wgmma.stage_bytes(self.tile_m, self.tile_n)
        buffers = 4 * self.math_warpgroups * tma_wgmma.staging(self.tile_n, self.swap_ab)[2]
        return 1024 + stages + buffers + 16 * (self.ring + 1)

    def shared_bytes_of(self, slices: int) -> int:
        """The same where so many CTAs split k: their sums lie behind all else (`with_sums` of the kernel)."""
        if slices == 1:
            return self.shared_bytes
        received = slices * ceil_div(self.tile_n // 16, slices) * 64 * self.tile_m
        return ceil_div(self.shared_bytes, 128) * 128 + received

    def k_tiles(self, shape: Shape) -> int:
        """Stages' worth of k."""
        return ceil_div(shape.k, TILE_K * self.k_blocks)

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        maps, numbers = all_of("tensormap", "map_a", "map_b"), all_of("i32", *NUMBERS)
        places = (("c", f"*{self.dtype}"), ("workspace", "*f32"))
        return (*maps, *places, *numbers, *EPILOGUE_PARAMETERS * self.epilogue)

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.tile_m not in (64, 128):
            return f"{self.tile_m} rows: 64 or 128"
        if self.tile_n % 16 and not self.swap_ab:
            return f"{self.tile_n} columns: C leaves in pieces of 16"
        if why := tma_wgmma.bad_tile(self.tile_m, self.tile_n, *tma_wgmma.majors(self.layout, self.swap_ab)):
            return why
        if not 2 <= self.stages <= 32:
            return "at least two stages, and at most 32"
        if self.k_blocks not in (1, 2):
            return f"{self.k_blocks} blocks of k a stage: 1 or 2"
        if self.stagger and not (self.math_warpgroups == 2 and self.stagger < self.stages):
            return "the first of two warpgroups leads, by fewer stages than there are"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        flags = (*tma_wgmma.majors(self.layout, self.swap_ab), self.dtype == "bf16", self.swap_ab)
        tile = self.tile_m, self.tile_n, self.stages, self.math_warpgroups
        return (
            *tile,
            *flags,
            self.k_blocks,
            self.stagger,
            self.leaves,
            self.epilogue,
            *((False, True) * self.folds),
        )


@dataclass(frozen=True, slots=True, order=True)
class SplitKConfig(Configuration):
    """An instance and what is chosen at launch.

    Attributes:
        instance: the compiled kernel.
        cluster_split_k: CTAs of a cluster that split k, 1 to 8.
        band: of CTAs that multiply all of k alone: rows of tiles that are visited together (`rasterization`);
            0: row after row.
    """

    FAMILY: ClassVar[str] = "split_k"
    LAUNCH: ClassVar[dict[str, str]] = {"cluster_split_k": "c", "band": "g"}
    CHOICES: ClassVar[Choices] = (*SLICES, *({"band": band} for band in rasterization.BANDS))
    HAS_LATE: ClassVar[bool] = True

    instance: SplitKInstance
    cluster_split_k: int = 1
    band: int = 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA needs."""
        return self.instance.shared_bytes_of(self.cluster_split_k)

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        i = self.instance
        if why := i.why_illegal() or tma_wgmma.misaligned(shape, self.layout):
            return why
        if not 1 <= self.cluster_split_k <= 8:
            return f"cluster {self.cluster_split_k}, 1 to 8 are possible"
        if self.band and (i.epilogue or self.cluster_split_k > 1):
            return f"bands of {self.band}: for CTAs that multiply all of k, of a single matrix"
        if max(self.tiles(shape)) > GRID_LIMIT:
            return f"{max(self.tiles(shape))} tiles, a grid takes {GRID_LIMIT} along each extent"
        if self.shared_bytes > SHARED_LIMIT:
            ctas = self.cluster_split_k
            return f"{self.shared_bytes} bytes of shared memory with the partial sums of {ctas} CTAs"
        tiles = i.k_tiles(shape)
        if ceil_div(tiles, ceil_div(tiles, self.ranges)) != self.ranges:
            return f"{self.ranges} slices of {tiles} k tiles: some would be empty"
        return next(filter(None, (found.why_illegal() for found in self._maps(shape).values())), None)

    def cuts(self, shape: Shape) -> tuple[int, ...] | None:
        """Where the ranges of k end but for the last one: whole stages."""
        return cuts_at(shape.k, self.ranges, TILE_K * self.instance.k_blocks)

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than a smaller one; None when it may be good."""
        seen, (rows, columns) = self.seen(shape), self.tile
        if rows > 64 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        few = seen.n <= (4 if columns >= 80 else 2) * columns
        if self.swap_ab and not few and not self._fits_better(seen):
            return f"transposed tiles of {columns} for {seen.n} rows of C: they are for few"
        if columns > 16 and columns // 2 >= seen.n:
            return f"{columns} columns a CTA for {seen.n}"
        tiles_m, tiles_n = self.tiles(shape)
        if (ctas := tiles_m * tiles_n * self.cluster_split_k) > 8 * MULTIPROCESSORS:
            return f"{ctas} CTAs that do not outlive their tile"
        return rasterization.dominated(self.band, tiles_m, tiles_n, self.shared_bytes)

    def _fits_better(self, seen: Shape) -> bool:
        """Whether transposed tiles fill the multiprocessors where tiles of 64 and of 128 rows would not.

        Of problems with one tile across, whole in k.
        """
        rows, columns = self.tile
        if columns < 80 or seen.m > 2 * rows or self.ranges > 1:
            return False
        if seen.m > rows:  # two tiles across: in one wave
            tiles = 2 * ceil_div(seen.n, columns)
            return columns > 128 and tiles <= MULTIPROCESSORS and _fill(tiles)
        return _fill(ceil_div(seen.n, columns)) and not any(_fill(ceil_div(seen.n, r)) for r in (64, 128))

    def _boxes(self, shape: Shape) -> tuple[int, int]:
        """Rows of a tile of A, of B, that are loaded."""
        i, seen = self.instance, self.seen(shape)
        mn_a, mn_b = tma_wgmma.majors(i.layout, i.swap_ab)
        return tma_wgmma.box_rows(seen.m, i.tile_m, mn_a), tma_wgmma.box_rows(seen.n, i.tile_n, mn_b)

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        return tma_wgmma.operand_maps(self.instance, self.seen(shape), shape.k, self._boxes(shape))

    def _grid(self, shape: Shape) -> tuple[int, int, int]:
        down, across = self.tiles(shape)
        if self.band:
            return self.band, across, ceil_div(down, self.band)
        return self.cluster_split_k, across, down

    def _scalars(self, shape: Shape) -> dict[str, int]:
        seen, k_tiles = self.seen(shape), self.instance.k_tiles(shape)
        rows, columns = self.tile
        return {
            "m": seen.m,
            "n": seen.n,
            "ldc": shape.n,
            "k_tiles": k_tiles,
            "tiles_per_slice": ceil_div(k_tiles, self.ranges),
            "late": 0,
            "last_row": tma_wgmma.last(seen.m, rows),
            "last_column": tma_wgmma.last(seen.n, columns),
            "stage_bytes": self.instance.k_blocks * tma_wgmma.stage_bytes(*self._boxes(shape)),
            "band": self.band,
        }

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly; constants fitted to the first sweep, and to the SASS."""
        instance, (rows, columns) = self.instance, self.tile
        tiles_m, tiles_n = self.tiles(shape)
        ctas = tiles_m * tiles_n * self.cluster_split_k
        resident = cost.residents(self.threads, self.shared_bytes)
        share = cost.share_of(ctas, resident)
        waves = ceil_div(ctas, cost.at_once(self.cluster, resident))
        step = max(
            share * cost.multiply_cycles(rows, columns),
            share * tma_wgmma.stage_bytes(rows, columns) / _LOAD,
            share * cost.read_cycles(rows, columns),
            _COPY / instance.ring,
        )
        steps = ceil_div(tma_wgmma.k_tiles(shape), self.cluster_split_k)
        once = _COPY + steps * step + 300 + share * 2 * rows * columns / self.cluster_split_k / _STORE
        if self.cluster_split_k > 1:
            once += _SUMS + _SLICE * self.cluster_split_k + 4 * rows * columns / _PARTIAL
        both = waves * once, cost.memory_cycles(shape, _MEMORY)
        return cost.microseconds(_LAUNCH + max(both) + _BESIDE * min(both))


#: Of the estimate, in cycles: up to the first instruction; a first copy; the cluster's sum, each slice of it
_LAUNCH, _COPY, _SUMS, _SLICE = 1670, 1340, 900, 60
#: bytes a cycle and multiprocessor: operands, partial sums of slices, stores, memory
_LOAD, _PARTIAL, _STORE, _MEMORY = 60, 28, 19, 14
#: what of the shorter of memory and multiprocessors shows up
_BESIDE = 0.05


def _fill(tiles: int) -> bool:
    """Whether their last wave leaves at most a tenth of the multiprocessors without a tile."""
    return -tiles % MULTIPROCESSORS <= MULTIPROCESSORS // 10


_Tiles = tuple[tuple[int, int, int, dict[str, Any]], ...]
_SWAPPED: dict[str, Any] = {"swap_ab": True}
#: rows, columns, stages, options: what wins somewhere. Most have as many stages as 200 KB hold, for one CTA a
#: multiprocessor and long k; fewer are for two and more CTAs, and where slices want room for their sums
_BOTH: _Tiles = (
    (64, 64, 6, {}),
    (64, 64, 10, {}),
    (64, 64, 5, {"k_blocks": 2}),
    (64, 128, 7, {}),
    (64, 128, 8, {}),
    (128, 64, 7, {}),
    (128, 128, 6, {"stagger": 4}),
    (128, 256, 4, {"stagger": 3}),
    (64, 16, 16, _SWAPPED),
    (64, 32, 8, _SWAPPED),
    # 12288 rows of weights are 128 tiles of 96
    (64, 96, 8, _SWAPPED),
    (128, 96, 6, _SWAPPED),
    # 129 to 160 rows of C, 257 to 320
    (64, 160, 7, _SWAPPED),
    (128, 160, 5, _SWAPPED),
)
_TN: _Tiles = (
    (64, 32, 8, {}),
    (64, 32, 4, {"k_blocks": 2}),
    (64, 32, 7, {"k_blocks": 2}),
    (64, 80, 9, {}),
    (64, 96, 8, {}),
    (128, 96, 6, {}),
    (128, 192, 5, {"stagger": 3}),
    (64, 32, 16, _SWAPPED),
    (64, 80, 5, {"swap_ab": True, "k_blocks": 2}),
)
_NN: _Tiles = (
    (64, 192, 6, {}),
    (64, 256, 5, {}),
    (128, 128, 6, {}),
    (128, 192, 5, {}),
    (128, 16, 10, _SWAPPED),
    (64, 32, 4, {"swap_ab": True, "k_blocks": 2}),
)
_BACKWARD: _Tiles = ((64, 64, 12, {}), (64, 64, 10, {}), (128, 128, 6, {}), (128, 128, 4, {}))
_FUSED: _Tiles = ((64, 64, 6, {}), (64, 32, 8, _SWAPPED), (64, 128, 7, {}), (128, 128, 6, {}))


def _instances(tiles: _Tiles, *layouts: str, **more: Any) -> tuple[SplitKInstance, ...]:
    return tuple(
        SplitKInstance(layout, rows, columns, stages, **options, **more)
        for layout in layouts
        for rows, columns, stages, options in tiles
    )


#: compiled for the benchmark's task (FP16, nn and tn)
INSTANCES = (*_instances(_BOTH, "tn", "nn"), *_instances(_TN, "tn"), *_instances(_NN, "nn"))
#: compiled for other callers: BF16, and the layouts of training's backward pass
OTHER_INSTANCES = (
    *(replace(instance, dtype="bf16") for instance in INSTANCES),
    *_instances(_BACKWARD, "tt", "nt"),
    *_instances(_BACKWARD, "tt", "nt", dtype="bf16"),
)
#: those with an epilogue (`epilogue`)
EPILOGUE_INSTANCES = (
    *_instances(_FUSED, "tn", "nn", epilogue=True),
    *_instances(_FUSED[:1], "tn", "nn", epilogue=True, dtype="bf16"),
)
