"""SwiGLU's pair in the persistent kernel (`kernels/sm90_gemm_persistent.cuh`, PAIR), for many rows.

Half of a tile's columns are of the gate's weight, the others the same ones of up's. So a thread has both
sums of an element of C: no product of both weights is stored, and no second kernel reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..problem.launch import TensorMap
from ..problem.shape import Shape
from . import persistent, tma_wgmma
from .persistent import PARAMETERS, PersistentConfig, PersistentInstance
from .source import Parameters

#: columns of both weights: rows of C have whole 16 bytes
UNIT = 16
#: special functions a cycle and multiprocessor
_SPECIAL = 16


@dataclass(frozen=True, order=True)
class PairInstance(PersistentInstance):
    """A `PersistentInstance` with an epilogue, whose tile is half as wide on C; its name ends in ``p``."""

    PARAMETERS: ClassVar[Parameters] = (*PARAMETERS, ("map_up", "tensormap"))

    @property
    def name(self) -> str:
        """For example ``ws_tn_128x256_co2s4b2c1x1el3p``."""
        return super().name + "p"

    @property
    def columns(self) -> int:
        """Columns of C a tile."""
        return self.tile_n // 2

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.layout != "tn" or self.swap_ab or not self.epilogue:
            return "a pair's weights are n x k, and their sums meet in an epilogue"
        if self.columns % (8 * self.cluster_m) or (self.columns < 64 and self.columns % 16):
            return f"{self.columns} columns of C for {self.cluster_m} CTAs"
        return super().why_illegal()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return *super().arguments, False, True


@dataclass(frozen=True, slots=True, order=True)
class PairConfig(PersistentConfig):
    """An instance and what is chosen at launch. A shape's n counts the columns of both weights."""

    FAMILY: ClassVar[str] = "persistent_pair"
    ENDING: ClassVar[str] = "p"

    def seen(self, shape: Shape) -> Shape:
        """The problem as the kernel sees it: of either weight."""
        return Shape(shape.m, shape.n // 2, shape.k)

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if shape.n % UNIT:
            return f"{shape.n} columns of two weights, no multiple of {UNIT}"
        return PersistentConfig.why_illegal(self, shape)

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        """Up's is the gate's, one layer further (`epilogue.launch` says where that is)."""
        maps, width = PersistentConfig._maps(self, shape), shape.n // 2
        c = replace(maps["map_c"], dims=(width, shape.m), strides=(2 * width,))
        return maps | {"map_c": c, "map_up": maps["map_b"]}

    def _scalars(self, shape: Shape) -> dict[str, int]:
        i, (rows_a, rows_b) = self.instance, self._boxes(shape)
        arriving = tma_wgmma.stage_bytes(rows_a * i.cluster_n, 2 * rows_b * i.cluster_m)
        return {**PersistentConfig._scalars(self, shape), "stage_bytes": arriving}

    def _gap(self) -> float:
        """With what a warpgroup's exponentials and quotients take."""
        i, gap = self.instance, PersistentConfig._gap(self)
        return gap + 2 * i.tile_m * i.columns / i.sharers / _SPECIAL if gap else gap

    def _moved(self, shape: Shape) -> int:
        return shape.nbytes - shape.m * shape.n


#: the product's for large tiles (`persistent`): 128 rows have the first, or the last; then those of which
#: the multiprocessors have whole waves for up to 512 rows of weights that models have
_TILES: persistent._Tiles = (
    (128, 256, 2, False, {"stagger": 3}),
    (128, 256, 2, False, {"stagger": 3, "cluster_m": 2}),
    (128, 128, 2, True, {"cluster_m": 2}),
    (128, 128, 2, True, {}),
    (128, 224, 2, False, {"stagger": 3}),
    (128, 192, 2, True, {}),
    (128, 160, 2, True, {"cluster_n": 2}),
    (192, 144, 3, False, {}),
    (192, 128, 3, False, {}),
)


EPILOGUE_INSTANCES = tuple(
    PairInstance.deepest("tn", *tile, **options, epilogue=True, dtype=dtype)
    for dtype in ("fp16", "bf16")
    for *tile, options in _TILES
)
