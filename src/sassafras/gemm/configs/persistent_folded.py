"""k split within a tile of the persistent kernel: range after range, whose sums are added up in registers.

It is `persistent`'s kernel (`kernels/sm90_gemm_persistent.cuh`, FOLDS). Its C has the bits of a cluster, and
of `split_k_folded`, that split k at the same places. A tile is stored beside the next tile's products: it is
for more tiles than multiprocessors, where a row's sums must not depend on the number of rows
(`select.invariant`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..problem.launch import ceil_div
from ..problem.shape import Shape
from . import tma_wgmma
from .base import Choices, cuts_at
from .persistent import PARAMETERS, PersistentConfig, PersistentInstance
from .source import Parameters
from .split_k_folded import RANGES
from .tma_wgmma import TILE_K

#: cycles a range in which the tensor cores have no products
_RANGE = 60


@dataclass(frozen=True, order=True)
class FoldedPersistentInstance(PersistentInstance):
    """A cooperative `PersistentInstance` of 64 rows a warpgroup; its name ends in ``f``."""

    PARAMETERS: ClassVar[Parameters] = (*PARAMETERS, ("range", "i32"))

    @property
    def name(self) -> str:
        """For example ``ws_tn_128x160_co2s5b2c2x1l3f``."""
        return super().name + "f"

    @property
    def accumulators(self) -> int:
        """FP32 sums of a multiplying thread: of a range, and of those before it."""
        return 2 * super().accumulators

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.ping_pong or self.swap_ab or self.tile_m != 64 * self.math_warpgroups:
            return "warpgroups that fold share a tile of C, 64 rows each"
        return super().why_illegal()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return *super().arguments, True


@dataclass(frozen=True, slots=True, order=True)
class FoldedPersistentConfig(PersistentConfig):
    """An instance that folds, and the ranges of k."""

    FAMILY: ClassVar[str] = "persistent_folded"
    LAUNCH: ClassVar[dict[str, str]] = {"split_k": "f", "group": "g"}
    CHOICES: ClassVar[Choices] = tuple(
        {**group, "split_k": ranges} for group in PersistentConfig.CHOICES for ranges in RANGES
    )
    ENDING: ClassVar[str] = "f"

    split_k: int = field(default=RANGES[0], kw_only=True)

    @property
    def ranges(self) -> int:
        """Into how many ranges k is split in all."""
        return self.split_k

    def cuts(self, shape: Shape) -> tuple[int, ...] | None:
        """Where the ranges of k end but for the last one."""
        return cuts_at(shape.k, self.split_k, TILE_K)

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        tiles = tma_wgmma.k_tiles(shape)
        if self.split_k < 2 or ceil_div(tiles, ceil_div(tiles, self.split_k)) != self.split_k:
            return f"{self.split_k} ranges of {tiles} k tiles: two or more, and none empty"
        return PersistentConfig.why_illegal(self, shape)

    def dominated(self, shape: Shape) -> str | None:
        """Why it is worse than another one: where the order of sums is open, it always is."""
        return "the same tile without a split adds up nothing"

    def _scalars(self, shape: Shape) -> dict[str, int]:
        each = ceil_div(tma_wgmma.k_tiles(shape), self.split_k)
        return {**PersistentConfig._scalars(self, shape), "range": each}

    def _gap(self) -> float:
        return _RANGE * self.split_k

    @property
    def unsplit(self) -> PersistentConfig:
        """The same tile without a split, by turns, which takes about as long: of it more is known."""
        i = self.instance
        tile = i.layout, i.tile_m, i.tile_n, i.math_warpgroups, True, i.stages, i.cluster_m, i.cluster_n
        plain = PersistentInstance(*tile, store_stages=i.store_stages, dtype=i.dtype, epilogue=i.epilogue)
        return PersistentConfig(plain, self.group, mode=self.mode)


#: columns of tiles of 128 rows, options: 1024 rows of 2560 columns are 128 tiles of 160. The stagger counts
#: what is issued, of which two k tiles are under way: the rest covers the additions at a range's end
_TILES: dict[str, tuple[tuple[int, dict[str, Any]], ...]] = {
    "tn": (
        (128, {"stagger": 4}),
        (128, {"stagger": 4, "cluster_m": 2}),
        (160, {"stagger": 3, "cluster_m": 2}),
        (192, {"stagger": 3, "cluster_m": 2}),
    ),
    "nn": ((128, {"stagger": 4, "cluster_m": 2}), (192, {"stagger": 3, "cluster_n": 2})),
}

#: of both types: no sweep of the benchmark's task times them, they serve calls that ask for them
OTHER_INSTANCES = tuple(
    FoldedPersistentInstance.deepest(layout, 128, columns, 2, False, dtype=dtype, **options)
    for dtype in ("fp16", "bf16")
    for layout, tiles in _TILES.items()
    for columns, options in tiles
)
#: those with an epilogue (`epilogue`)
EPILOGUE_INSTANCES = tuple(
    FoldedPersistentInstance.deepest(
        layout, 128, 128, 2, False, stagger=4, cluster_m=2, dtype=dtype, epilogue=True
    )
    for dtype in ("fp16", "bf16")
    for layout in _TILES
)
