"""Rows of any length (`kernels/sm90_gemm_unaligned.cuh`): instances, configurations, legality, cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..problem.launch import GRID_LIMIT, MULTIPROCESSORS, SHARED_LIMIT, TensorMap, ceil_div
from ..problem.shape import Shape
from . import cost, rasterization, tma_wgmma
from .base import SLICES, Choices, Configuration, cuts_at
from .source import KernelInstance, Parameters, all_of
from .tma_wgmma import TILE_K

#: rows of which every so many-th lie a multiple of 16 bytes apart, whatever their length
KINDS = 8
#: loading warps
LOADERS = 4


#: the kernel finds a tile's row by a shift and a mask
BANDS = tuple(band for band in rasterization.BANDS if band & (band - 1) == 0)


@dataclass(frozen=True, slots=True, order=True)
class UnalignedInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn`` (B is n x k).
        tile_m, tile_n: the CTA's tile; 64 rows a warpgroup.
        stages: k tiles in shared memory.
        epilogue: more than the product (`epilogue`), of one matrix.
        dtype: ``fp16`` or ``bf16``.
    """

    HEADER: ClassVar[str] = "sm90_gemm_unaligned.cuh"
    TEMPLATE: ClassVar[str] = "AnyRows"
    PARAMETERS: ClassVar[Parameters] = (
        *all_of("tensormap", "a_more", "a_less", "b_more", "b_less"),
        ("c", "*fp16"),
        *all_of("i32", "m", "n", "k", "lda", "ldb", "ldc", "tiles_per_slice", "late", "log2_band"),
    )

    layout: str
    tile_m: int
    tile_n: int
    stages: int
    epilogue: bool = False
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """Entry name, for example ``any_tn_64x128_s8``."""
        return f"any_{self._kind}_{self.tile_m}x{self.tile_n}_s{self.stages}" + "e" * self.epilogue

    @property
    def math_warpgroups(self) -> int:
        """Multiplying warpgroups."""
        return self.tile_m // 64

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 128 * self.math_warpgroups + 32 * LOADERS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: the stages, or the padded FP32 tile, whichever is larger; barriers."""
        stages = self.stages * tma_wgmma.stage_bytes(self.tile_m, self.tile_n)
        return 1024 + max(stages, 4 * self.tile_m * (self.tile_n + 8)) + 16 * self.stages

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.layout != "tn":
            return f"layout {self.layout}: tn only"
        if self.tile_m not in (64, 128) or self.tile_n not in (64, 128, 256):
            return f"a tile of {self.tile_m} x {self.tile_n}: 64 or 128 rows, 64, 128 or 256 columns"
        if self.stages < 3:
            return "at least three stages: a row may end in the next"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.tile_m, self.tile_n, self.stages, *self._last_arguments


#: rows, columns, stages: as many as 200 KB hold, for one CTA a multiprocessor; half of it for small tiles
_TILES = ((64, 64, 6), (64, 128, 8), (128, 128, 6), (128, 256, 4))
#: all that are compiled
INSTANCES: tuple[UnalignedInstance, ...] = tuple(UnalignedInstance("tn", *tile) for tile in _TILES)
#: the same for BF16
OTHER_INSTANCES = tuple(replace(instance, dtype="bf16") for instance in INSTANCES)
#: those with an epilogue (`epilogue`)
EPILOGUE_INSTANCES: tuple[UnalignedInstance, ...] = tuple(
    UnalignedInstance("tn", 64, 128, 8, epilogue=True, dtype=dtype) for dtype in ("fp16", "bf16")
)


@dataclass(frozen=True, slots=True, order=True)
class UnalignedConfig(Configuration):
    """An instance and the cluster that splits k, 1 to 8 CTAs.

    Attributes:
        instance: the compiled kernel.
        cluster_split_k: CTAs of a cluster that split k.
        band: of CTAs that multiply all of k: rows of tiles that are visited together (`rasterization`);
            0: row after row.
    """

    FAMILY: ClassVar[str] = "unaligned"
    LAUNCH: ClassVar[dict[str, str]] = {"cluster_split_k": "c", "band": "g"}
    CHOICES: ClassVar[Choices] = (*SLICES, *({"band": band} for band in BANDS))
    HAS_LATE: ClassVar[bool] = True
    ANY_LINES: ClassVar[str] = "abc"

    instance: UnalignedInstance
    cluster_split_k: int = 1
    band: int = 0

    def cuts(self, shape: Shape) -> tuple[int, ...] | None:
        """Where the ranges of k end but for the last one."""
        return cuts_at(shape.k, self.cluster_split_k, TILE_K)

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot run this shape; None when it may."""
        if why := self.instance.why_illegal():
            return why
        if not 1 <= self.cluster_split_k <= 8:
            return f"cluster {self.cluster_split_k}, 1 to 8 are possible"
        if self.band and (self.cluster_split_k > 1 or self.instance.epilogue):
            return f"bands of {self.band}: for CTAs that multiply all of k, without an epilogue"
        if self.band not in (0, *BANDS):
            return f"bands of {self.band}: {', '.join(map(str, BANDS))} are possible"
        if KINDS * max(shape.n, shape.k) >= 1 << 31 or shape.m >= 1 << 31:
            return f"{shape}: eight rows are more than 32-bit coordinates reach"
        if max(extents := self._grid(shape)) > GRID_LIMIT:
            return f"{max(extents)} tiles, a grid takes {GRID_LIMIT} along each extent"
        tiles = tma_wgmma.k_tiles(shape)
        if ceil_div(tiles, ceil_div(tiles, self.cluster_split_k)) != self.cluster_split_k:
            return f"{self.cluster_split_k} slices of {tiles} k tiles: some would be empty"
        return None

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        if shape.k % 8 == shape.n % 8 == 0:
            return "rows of 16-byte multiples: the other families bring them with fewer copies"
        rows, columns = self.tile
        if rows > 64 and rows // 2 >= shape.m:
            return f"{rows} rows a CTA for {shape.m}"
        if columns > 64 and columns // 2 >= shape.n:
            return f"{columns} columns a CTA for {shape.n}"
        tiles_m, tiles_n = self.tiles(shape)
        if (
            ctas := tiles_m * tiles_n
        ) * self.cluster_split_k > 4 * MULTIPROCESSORS and self.cluster_split_k > 1:
            return f"{ctas} tiles fill the GPU without a split"
        return rasterization.dominated(self.band, tiles_m, tiles_n, self.shared_bytes)

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        rows, columns = self.tile
        a = kinds("a", shape.m, shape.k, (TILE_K, rows // KINDS), self.dtype)
        b = kinds("b", shape.n, shape.k, (TILE_K, columns // KINDS), self.dtype)
        return dict(zip(("a_more", "a_less", "b_more", "b_less"), (*a, *b), strict=True))

    def _grid(self, shape: Shape) -> tuple[int, int, int]:
        """Along y the columns of a band, of which the last may be short of rows; a band of one row for 0."""
        (tiles_m, tiles_n), band = self.tiles(shape), max(1, self.band)
        return self.cluster_split_k, band * tiles_n, ceil_div(tiles_m, band)

    def _scalars(self, shape: Shape) -> dict[str, int]:
        return {
            **self._extents(shape),
            "tiles_per_slice": ceil_div(tma_wgmma.k_tiles(shape), self.cluster_split_k),
            "late": 0,
            "log2_band": max(1, self.band).bit_length() - 1,
        }

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly; constants as those of the split-K kernel were fitted first."""
        instance, (rows, columns) = self.instance, self.tile
        tiles_m, tiles_n = self.tiles(shape)
        ctas = tiles_m * tiles_n * self.cluster_split_k
        resident = cost.residents(self.threads, self.shared_bytes)
        share = cost.share_of(ctas, resident)
        waves = ceil_div(ctas, cost.at_once(self.cluster, resident))
        step = max(
            share * cost.multiply_cycles(rows, columns),
            share * tma_wgmma.stage_bytes(rows, columns) / _LOAD,
            share * 4 * _ISSUE,
            share * (rows + columns) * _MOVE * bool(shape.k % 8),
            _COPY / instance.stages,
        )
        store = share * rows * columns * (8 / 128 + 2 / _STORE / self.cluster_split_k)
        once = _COPY + ceil_div(tma_wgmma.k_tiles(shape), self.cluster_split_k) * step + 600 + store
        if self.cluster_split_k > 1:
            once += _SUM + _SLICE * self.cluster_split_k + 4 * rows * columns / _PARTIAL
        return cost.microseconds(_LAUNCH + max(waves * once, cost.memory_cycles(shape, _MEMORY)))


#: Of the estimate, in cycles: launch; first copy; the cluster's sum, each slice of it; a loading warp's copy
_LAUNCH, _COPY, _SUM, _SLICE, _ISSUE = 1670, 1340, 500, 580, 60
#: bytes a cycle: operands from the L2 (five sectors for four), partial sums, stores, memory
_LOAD, _PARTIAL, _STORE, _MEMORY = 42, 11.3, 10, 14
#: cycles of shared memory for a row of a k tile that moves into place: it arrives, is read twice, written,
#: multiplied
_MOVE = 5.5


def kinds(
    operand: str, rows: int, length: int, box: tuple[int, int], dtype: str
) -> tuple[TensorMap, TensorMap]:
    """Two tensor maps of a matrix's rows j, j + 8, j + 16 ...; row j begins at element j * length of either,
    its copies at the multiple of 8 before.

    The first is of the j below rows % 8, of which there is one more row than of the others, which the second
    is of. Each ends with its last row, so that no copy reads beyond the matrix. Where there are no rows of a
    kind the other map stands in its place.
    """
    more, each = rows % KINDS, rows // KINDS
    made = [
        TensorMap(operand, dtype, (lines * length, count), (2 * KINDS * length,), box, lines=lines)
        for lines, count in ((more, each + 1), (KINDS, each))
        if lines and count
    ]
    return made[0], made[-1]
