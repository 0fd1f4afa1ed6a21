"""The fallback kernel (`kernels/sm90_gemm_fallback.cuh`): instances, configurations, legality, cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..problem.launch import GRID_LIMIT, MULTIPROCESSORS, SHARED_LIMIT, ceil_div
from ..problem.shape import Shape
from . import cost
from .base import Choices, Configuration, cuts_at
from .source import KernelInstance, Parameters, all_of

#: k elements of one tile in shared memory
TILE_K = 64

#: names and types of the kernel's parameters, in order
PARAMETERS = (
    *all_of("*fp16", "a", "b", "c"),
    *all_of("i32", "m", "n", "k", "lda", "ldb", "ldc", "tiles_per_slice"),
)


@dataclass(frozen=True, slots=True, order=True)
class FallbackInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn`` (B is n x k) or ``nn`` (B is k x n).
        tile_m, tile_n: the CTA's tile.
        warps_m, warps_n: how warps divide it.
        stages: k tiles in shared memory.
        alignment: elements that rows are multiples of: 8, or 2 or 1 for odd shapes (smaller copies).
        epilogue: batches, and more than the product (`epilogue`).
        dtype: ``fp16`` or ``bf16``.
    """

    HEADER: ClassVar[str] = "sm90_gemm_fallback.cuh"
    TEMPLATE: ClassVar[str] = "Staged"
    PARAMETERS: ClassVar[Parameters] = PARAMETERS
    READ_ONLY: ClassVar[bool] = True

    layout: Literal["tn", "nn"]
    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int
    stages: int
    alignment: int = 8
    epilogue: bool = False
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """Entry name, for example ``staged_nn_32x64_w2x2s4``; ``a1`` behind it for rows of any length."""
        tile = f"{self.tile_m}x{self.tile_n}_w{self.warps_m}x{self.warps_n}s{self.stages}"
        return (
            f"staged_{self._kind}_{tile}"
            + (f"a{self.alignment}" if self.alignment != 8 else "")
            + "e" * self.epilogue
        )

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * self.warps_m * self.warps_n

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        tile = self.tile_m, self.tile_n, self.warps_m, self.warps_n, self.stages
        return *tile, self.layout == "nn", self.alignment, *self._last_arguments


_ODD = (64, 64, 2, 2, 4)
_LAYOUTS: tuple[Literal["tn", "nn"], ...] = ("tn", "nn")

#: all that are compiled: the one that won anywhere with rows of whole 16 bytes, and those for odd shapes
INSTANCES: tuple[FallbackInstance, ...] = (
    FallbackInstance("nn", 32, 64, 2, 2, 4),
    *(FallbackInstance(layout, *_ODD, align) for layout in _LAYOUTS for align in (2, 1)),
)
#: the same for BF16
OTHER_INSTANCES = tuple(replace(instance, dtype="bf16") for instance in INSTANCES)
#: those with an epilogue (`epilogue`): for odd shapes, which no other family serves
EPILOGUE_INSTANCES: tuple[FallbackInstance, ...] = tuple(
    FallbackInstance(layout, *_ODD, 1, epilogue=True, dtype=dtype)
    for dtype in ("fp16", "bf16")
    for layout in _LAYOUTS
)


@dataclass(frozen=True, slots=True, order=True)
class FallbackConfig(Configuration):
    """An instance and the cluster that splits k, 1 to 8 CTAs."""

    FAMILY: ClassVar[str] = "fallback"
    LAUNCH: ClassVar[dict[str, str]] = {"cluster_split_k": "c"}
    CHOICES: ClassVar[Choices] = tuple({"cluster_split_k": slices} for slices in (1, 2, 4, 8))

    instance: FallbackInstance
    cluster_split_k: int = 1

    @property
    def any_alignment(self) -> bool:
        """Its copies are of one element."""
        return self.instance.alignment == 1

    def cuts(self, shape: Shape) -> tuple[int, ...] | None:
        """Where the ranges of k end but for the last one: ``mma.m16n8k16`` adds as WGMMA does."""
        return cuts_at(shape.k, self.cluster_split_k, TILE_K)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: the stages, or the padded FP32 partial tile, whichever is larger."""
        rows, columns = self.tile
        stages = self.instance.stages * (rows + columns) * TILE_K * 2
        return max(stages, rows * (columns + 4) * 4 if self.cluster_split_k > 1 else 0)

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if not 1 <= self.cluster_split_k <= 8:
            return f"cluster {self.cluster_split_k}, 1 to 8 are possible"
        if max(shape.m, shape.n, shape.k + TILE_K) >= 1 << 31:
            return f"{shape}: extents, and the end of k's last tile, have 32 bits"
        align = self.instance.alignment
        if shape.k % align:
            return f"k {shape.k} is not a multiple of {align}: rows would not be {2 * align}-byte aligned"
        if shape.n % align:
            return (
                f"n {shape.n} is not a multiple of {align}: rows of C (and of B in nn) would not be aligned"
            )
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        if max(self.tiles(shape)) > GRID_LIMIT:
            return f"{max(self.tiles(shape))} tiles, a grid takes {GRID_LIMIT} along each extent"
        if self.cluster_split_k > (tiles := ceil_div(shape.k, TILE_K)):
            return f"{self.cluster_split_k} slices of {tiles} k tiles: some would be empty"
        return None

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than a smaller one; None when it may be good."""
        rows, columns = self.tile
        if self.instance.alignment < (least := next(a for a in (8, 2, 1) if shape.k % a == shape.n % a == 0)):
            return f"copies of {self.instance.alignment} elements where {least} would do"
        if self.instance.alignment < 8:
            return None  # there is one tile for odd shapes
        if rows > 32 and rows // 2 >= shape.m:
            return f"{rows} rows a CTA for {shape.m}"
        if columns > 32 and columns // 2 >= shape.n:
            return f"{columns} columns a CTA for {shape.n}"
        return None

    def _scalars(self, shape: Shape) -> dict[str, int]:
        each = ceil_div(ceil_div(shape.k, TILE_K), self.cluster_split_k)
        return {**self._extents(shape), "tiles_per_slice": each}

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly; a factor is fitted."""
        tiles_m, tiles_n = self.tiles(shape)
        rows, columns = self.tile
        per_multiprocessor = ceil_div(tiles_m * tiles_n * self.cluster_split_k, MULTIPROCESSORS)
        waves = ceil_div(per_multiprocessor, cost.residents(self.threads, self.shared_bytes))
        steps = ceil_div(ceil_div(shape.k, TILE_K), self.cluster_split_k)
        from_l2 = per_multiprocessor * steps * 2 * TILE_K * (rows + columns) / cost.L2_BYTES
        products = (TILE_K // 16) * (rows // 16) * (columns // 8)
        multiply = per_multiprocessor * steps * products * cost.MMA / 4
        latency = waves * (cost.ROUND_TRIP * (1 + (steps - 1) / self.instance.stages) + 120 * steps)
        total = cost.START + max(latency, from_l2, multiply)
        if self.cluster_split_k > 1:
            total += waves * (cost.CLUSTER_SUM + 30 * self.cluster_split_k)
        return _SLOWER * cost.microseconds(total) + 2 * shape.m * shape.n / cost.PLAIN_STORES


#: what was measured over what the estimate's first principles say
_SLOWER = 1.6
