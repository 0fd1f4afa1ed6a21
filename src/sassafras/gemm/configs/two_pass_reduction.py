"""Split k in two launches: parts leave their sums, a second kernel adds them up on all multiprocessors.

Both kernels, and the pairs of a probe in all their modes (`benchmarks/hgemm_second.py`); what everything else
knows of them is `two_launches`. The first kernel is the cluster-split family's with the quick start
(`kernels/sm90_hgemm_quick_split.cuh`, LEAVES), the second `kernels/sm90_gemm_split_k_reduce.cuh`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ..problem.launch import MULTIPROCESSORS, Launch
from ..problem.shape import Shape
from .base import Mode
from .source import entry
from .split_k import SplitKConfig
from .split_k_instances import SplitKInstance
from .tma_wgmma import truth

#: parts that are proposed; of more than 16, some 8 to 16 are added at once
PARTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)


@dataclass(frozen=True, order=True)
class PartialsInstance(SplitKInstance):
    """A first kernel: `SplitKInstance` with the quick start, whose name ends in ``p``."""

    #: a multiprocessor's memory is divided for it as for the second kernel, or neither fits beside the other
    all_shared: ClassVar[bool] = True
    leaves: ClassVar[bool] = True

    @property
    def companions(self) -> tuple[ReductionInstance, ...]:
        """Second kernels that its sums may need: one for each number of parts at once."""
        terms = sorted({terms_of(parts) for parts in PARTS})
        return tuple(ReductionInstance(t, self.swapped, self.dtype) for t in terms)

    @property
    def name(self) -> str:
        """For example ``cs_tn_64x128_s8mq1p``."""
        return super().name + "p"

    @property
    def template(self) -> str:
        """The kernel's type in C++."""
        return f"{super().template[:-1]}, 0, true>"

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if not self.blocks or self.lead or self.epilogue:
            return "parts leave their sums with the quick start, without a lead or an epilogue"
        return super().why_illegal()


@dataclass(frozen=True, slots=True, order=True)
class ReductionInstance:
    """A second kernel: the template's parameters.

    Attributes:
        terms: parts whose loads are under way at once; parts are a multiple of them.
        swapped, dtype: as the first kernel's.
    """

    all_shared: ClassVar[bool] = True

    terms: int
    swapped: bool = False
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """Entry name, for example ``add_t8``."""
        kind = ("_swapped" if self.swapped else "") + ("_bf16" if self.dtype == "bf16" else "")
        return f"add{kind}_t{self.terms}"

    @property
    def warps(self) -> int:
        """Warps of a CTA: with 8 registers for each term it takes almost half of a multiprocessor's."""
        return min(16, 1024 // (8 * self.terms + 32))

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: 512 bytes a warp."""
        return 512 * self.warps

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the kernel's parameters."""
        numbers = (
            "m",
            "n",
            "ldc",
            "parts",
            "tiles_m",
            "tiles_n",
            "rows",
            "columns",
            "last_row",
            "last_column",
        )
        return (("c", f"*{self.dtype}"), ("workspace", "*f32"), *((name, "i32") for name in numbers))

    @property
    def template(self) -> str:
        """The kernel's type in C++."""
        kinds = f"{truth(self.swapped)}, {truth(self.dtype == 'bf16')}"
        return f"AddParts<{self.terms}, {self.warps}, {kinds}>"

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        header = "sm90_gemm_split_k_reduce.cuh"
        return entry(self.name, header, self.template, self.parameters, self.threads)


@dataclass(frozen=True, slots=True, order=True)
class BoundReduction:
    """The second of a pair's launches, as `tools.Tools.ours` binds it."""

    instance: ReductionInstance
    first: SplitKConfig
    ctas: int
    overlap: bool

    @property
    def name(self) -> str:
        """For example ``add_t8/g132+s``."""
        return f"{self.instance.name}/g{self.ctas}" + "+s" * self.overlap

    @property
    def layout(self) -> str:
        """The first's: it says which operands exist; this kernel reads none."""
        return self.first.layout

    @property
    def swapped(self) -> bool:
        """Whether the first computes the transpose of C."""
        return self.first.swapped

    def launch(self, shape: Shape) -> Launch:
        """How to launch it. Raises SassafrasError when the first cannot run."""
        return self.behind(self.first.launch(shape), shape)

    def behind(self, before: Launch, shape: Shape) -> Launch:
        """The same, the first's launch being known."""
        seen, (rows, columns) = self.first.seen(shape), self.first.tile
        tiles_m, tiles_n = self.first.whole_tiles(shape)
        scalars = {
            "m": seen.m,
            "n": seen.n,
            "ldc": shape.n,
            "parts": self.first.parts,
            "tiles_m": tiles_m,
            "tiles_n": tiles_n,
            "rows": rows,
            "columns": columns,
            "last_row": before.scalars["last_row"],
            "last_column": before.scalars["last_column"],
        }
        units = tiles_m * tiles_n * rows * columns // 256
        return Launch(
            (min(self.ctas, units), 1, 1),
            self.instance.threads,
            self.instance.shared_bytes,
            (1, 1, 1),
            scalars,
            workspace_bytes=before.workspace_bytes,
            overlap=self.overlap,
        )


@dataclass(frozen=True, slots=True, order=True)
class TwoPassLaunch:
    """Both launches of a product.

    Attributes:
        first: an instance that leaves its sums, 1 slice, two and more parts. Its mode: ``overlap`` lets it
            start while the launch before it is at work, ``late`` (with or without it) lets the second start
            when operands have been read instead of at once.
        ctas: of the second, at most.
        overlap: the second may start while the first is at work (programmatic stream serialization).
    """

    first: SplitKConfig
    ctas: int = MULTIPROCESSORS
    overlap: bool = True

    @property
    def second(self) -> BoundReduction:
        """The launch that adds up."""
        i = self.first.instance
        adds = ReductionInstance(terms_of(self.first.parts), i.swapped, i.dtype)
        return BoundReduction(adds, self.first, self.ctas, self.overlap)

    @property
    def name(self) -> str:
        """For example ``cs_tn_64x128_s8mq1p/c1m2n1p8+o,add_t8/g132+s``."""
        late = "+l" if self.first.mode.late and not self.first.mode.overlap else str(self.first.mode)
        return f"{self.first.stem}{late},{self.second.name}"

    @property
    def layout(self) -> str:
        """How A and B have to lie in memory."""
        return self.first.layout

    @property
    def tile(self) -> str:
        """For example ``64x128 m2``."""
        rows, columns = self.first.tile
        sharing = f" m{self.first.share_m}" * (self.first.share_m > 1) + f" n{self.first.share_n}" * (
            self.first.share_n > 1
        )
        return f"{rows}x{columns}{sharing}"

    def ctas_of_first(self, shape: Shape) -> int:
        """CTAs of the first launch."""
        grid = self.first.launch(shape).grid
        return grid[0] * grid[1] * grid[2]

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this pair cannot or should not run this shape; None when it may."""
        return self.unable() or self.first.why_illegal(shape)

    def unable(self) -> str | None:
        """Why this can be no pair, whatever the shape."""
        if not isinstance(self.first.instance, PartialsInstance):
            return f"{self.first.instance.name} adds its parts up itself"
        if self.first.slices != 1 or self.first.parts < 2:
            return f"{self.first.stem}: one slice and several parts leave sums"
        if terms_of(self.first.parts) < min(8, self.first.parts):
            return f"{self.first.parts} parts: no 8 to 16 of them at once divide them"
        return None

    def in_modes(self) -> list[TwoPassLaunch]:
        """Each of both launches may begin before the one ahead ends, the second at once or late."""
        modes = (
            (False, False, False),
            (False, False, True),
            (False, True, True),
            (True, False, True),
            (True, True, True),
        )
        return [
            replace(self, first=replace(self.first, mode=Mode(overlap=ahead, late=late)), overlap=second)
            for ahead, late, second in modes
        ]


#: rows, columns, stages: as many as 200 KB hold; and 64 x 64 for two CTAs a multiprocessor
TILES = ((64, 64, 12), (64, 64, 5), (64, 128, 8), (128, 64, 8), (128, 128, 6))
#: what the probe compiles: both layouts, plain and sharing
FIRST_INSTANCES: tuple[PartialsInstance, ...] = tuple(
    PartialsInstance(layout, *tile, shared=shared, blocks=1)
    for layout in ("tn", "nn")
    for tile in TILES
    for shared in (False, True)
)
#: every number of parts up to 16 at once
ADD_INSTANCES: tuple[ReductionInstance, ...] = tuple(ReductionInstance(terms) for terms in range(2, 17))


def terms_of(parts: int) -> int:
    """Parts whose loads are under way at once: all of them, or the largest divisor up to 16."""
    return next(terms for terms in range(min(parts, 16), 0, -1) if parts % terms == 0)


def candidates(shape: Shape, layout: str) -> list[TwoPassLaunch]:
    """Pairs worth trying for a shape: tiles times parts fill 64 to 132 multiprocessors once.

    Tiles of which a multiprocessor holds two may fill them twice. Up to three numbers of parts of a tile: the
    most, the largest power of two, and three quarters of the most.
    """
    found: dict[TwoPassLaunch, None] = {}
    for instance in FIRST_INSTANCES:
        if instance.layout != layout:
            continue
        for share_m, share_n in ((2, 1), (1, 2)) if instance.shared else ((1, 1),):
            one = SplitKConfig(instance, 1, share_m, share_n)
            if one.why_illegal(shape) or one.dominated(shape):
                continue
            tiles = math.prod(one.whole_tiles(shape))
            room = MULTIPROCESSORS * (2 if 2 * instance.shared_bytes < 220 * 1024 else 1)
            most = room // tiles
            for parts in (most, 1 << max(0, most.bit_length() - 1), 3 * most // 4):
                pair = TwoPassLaunch(replace(one, parts=parts))
                if tiles * parts >= 64 and pair.why_illegal(shape) is None:
                    found[pair] = None
    return list(found)
