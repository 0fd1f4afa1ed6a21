"""k split within a CTA: range after range, whose sums are added up in registers.

It is `split_k`'s kernel (`kernels/sm90_gemm_split_k.cuh`, FOLDS). Its C has the bits of a cluster, or of two
launches, that split k at the same places, and its CTAs are as many as without a split: where a row's sums
must not depend on the number of rows (`select.invariant`), it serves many rows and the others serve few.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..problem.shape import Shape
from . import rasterization
from .base import Choices
from .split_k import SplitKConfig, SplitKInstance

#: ranges that are proposed: `select.invariant`'s, and 7 where 8 would leave one empty
RANGES = (4, 7, 8)
#: registers that a thread may have, by multiplying warpgroups
_REGISTERS = {1: 255, 2: 168}


@dataclass(frozen=True, order=True)
class FoldedInstance(SplitKInstance):
    """A `SplitKInstance` whose name ends in ``f``."""

    folds: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """For example ``cs_tn_64x128_s7q1f``."""
        return super().name + "f"

    @property
    def registers(self) -> int:
        """Registers a thread, roughly: two sets of accumulators, addresses."""
        return self.tile_n + 40

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.stagger:
            return "ranges end at the same stage in both warpgroups: there is no stagger"
        if self.registers > (most := _REGISTERS.get(self.math_warpgroups, 0)):
            return f"two sets of sums of {self.tile_n} columns: a thread has {most} registers"
        return super().why_illegal()


@dataclass(frozen=True, slots=True, order=True)
class FoldedSplitKConfig(SplitKConfig):
    """An instance that folds, and the ranges of k."""

    FAMILY: ClassVar[str] = "split_k_folded"
    LAUNCH: ClassVar[dict[str, str]] = {"split_k": "f", "band": "g"}
    CHOICES: ClassVar[Choices] = tuple(
        {"split_k": ranges, "band": band} for ranges in RANGES for band in (0, *rasterization.BANDS)
    )
    ENDING: ClassVar[str] = "f"

    split_k: int = field(default=RANGES[0], kw_only=True)

    @property
    def ranges(self) -> int:
        """Into how many ranges k is split in all."""
        return self.split_k

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if not self.instance.folds or self.cluster_split_k != 1 or self.split_k < 2:
            return f"{self.stem}: an instance that folds, one slice and several ranges go together"
        return SplitKConfig.why_illegal(self, shape)

    def dominated(self, shape: Shape) -> str | None:
        """Why it is worse than another one: where the order of sums is open, it always is."""
        return "the same tile without a split adds up nothing"

    @property
    def unsplit(self) -> SplitKConfig:
        """The same tile without a split, which takes about as long: of it more is known."""
        i = self.instance
        plain = SplitKInstance(i.layout, i.tile_m, i.tile_n, i.stages, dtype=i.dtype, epilogue=i.epilogue)
        return SplitKConfig(plain, band=self.band, mode=self.mode)


#: rows, columns, stages: as deep as `split_k` has them without a cluster's sums
_TILES = ((64, 64, 10), (64, 128, 8), (128, 128, 6))
#: of tn besides: 2560 columns are 32 tiles of 80 and 16 of 160, of which two CTAs fit with three stages
_TN = ((64, 80, 9), (64, 160, 7), (64, 160, 3), (128, 96, 6))
_FUSED = ((64, 128, 7), (128, 128, 6))
_LAYOUTS = ("tn", "nn")

#: of both types: no sweep of the benchmark's task times them, they serve calls that ask for them
OTHER_INSTANCES = tuple(
    FoldedInstance(layout, *tile, dtype=dtype)
    for dtype in ("fp16", "bf16")
    for layout in _LAYOUTS
    for tile in (*_TILES, *_TN * (layout == "tn"))
)
#: those with an epilogue (`epilogue`)
EPILOGUE_INSTANCES = tuple(
    FoldedInstance(layout, *tile, dtype=dtype, epilogue=True)
    for dtype in ("fp16", "bf16")
    for layout in _LAYOUTS
    for tile in _FUSED
)
