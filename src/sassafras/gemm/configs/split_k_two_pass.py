"""k split by two launches: parts of k leave FP32 sums in a workspace, a second kernel adds them up.

The first kernel is `split_k`'s (`kernels/sm90_gemm_split_k.cuh`, LEAVES), the second
`kernels/sm90_gemm_split_k_reduce.cuh`; it follows from the first. It begins while the first is at work, on
one CTA a multiprocessor, or two where the first lets it start at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ..problem.launch import MULTIPROCESSORS, Launch, NextLaunch, ceil_div
from ..problem.shape import Shape
from . import tma_wgmma
from .base import PLAIN, Choices, Mode
from .source import KernelInstance, Parameters, all_of
from .split_k import SplitKConfig, SplitKInstance
from .tma_wgmma import TILE_K

#: parts that are proposed; of more than 16, some 8 to 16 are added at once
PARTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)
#: CTAs of the first launch, at least: tiles times parts
FEWEST = 16
#: k tiles of a part, at least
SHORTEST = 4


def terms_of(parts: int) -> int:
    """Parts whose loads are under way at once: all of them, or the largest divisor up to 16."""
    return next(terms for terms in range(min(parts, 16), 0, -1) if parts % terms == 0)


@dataclass(frozen=True, order=True)
class PartialsInstance(SplitKInstance):
    """A first kernel: a `SplitKInstance` whose name ends in ``p``."""

    #: a multiprocessor's memory is divided for it as for the second kernel, or neither fits beside the other
    all_shared: ClassVar[bool] = True
    leaves: ClassVar[bool] = True

    @property
    def companions(self) -> tuple[ReductionInstance, ...]:
        """Second kernels that its sums may need: one for each number of parts at once."""
        terms = sorted({terms_of(parts) for parts in PARTS})
        return tuple(ReductionInstance(t, self.swap_ab, self.dtype) for t in terms)

    @property
    def name(self) -> str:
        """For example ``cs_tn_64x128_s8q1p``."""
        return super().name + "p"

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.stagger or self.epilogue:
            return "parts leave their sums without a stagger or an epilogue"
        return super().why_illegal()


_NUMBERS = ("m", "n", "ldc", "parts", "tiles_m", "tiles_n", "rows", "columns", "last_row", "last_column")


@dataclass(frozen=True, slots=True, order=True)
class ReductionInstance(KernelInstance):
    """A second kernel: the template's parameters.

    Attributes:
        terms: parts whose loads are under way at once; parts are a multiple of them.
        swapped, dtype: as the first kernel's.
    """

    HEADER: ClassVar[str] = "sm90_gemm_split_k_reduce.cuh"
    TEMPLATE: ClassVar[str] = "SplitKReduce"
    all_shared: ClassVar[bool] = True

    terms: int
    swap_ab: bool = False
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """Entry name, for example ``add_t8``."""
        return f"add{self._kind}_t{self.terms}"

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
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        return (("c", f"*{self.dtype}"), ("workspace", "*f32"), *all_of("i32", *_NUMBERS))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.terms, self.warps, self.swap_ab, self.dtype == "bf16"


@dataclass(frozen=True, slots=True, order=True)
class TwoPassSplitKConfig(SplitKConfig):
    """An instance that leaves its sums, and the ranges of k; `launch` has both launches."""

    FAMILY: ClassVar[str] = "split_k_two_pass"
    LAUNCH: ClassVar[dict[str, str]] = {"split_k": "p"}
    CHOICES: ClassVar[Choices] = tuple({"split_k": parts} for parts in PARTS)
    ENDING: ClassVar[str] = "p"

    split_k: int = field(default=2, kw_only=True)

    @property
    def ranges(self) -> int:
        """Into how many ranges k is split in all."""
        return self.split_k

    @property
    def adding(self) -> ReductionInstance:
        """The second kernel."""
        i = self.instance
        return ReductionInstance(terms_of(self.split_k), i.swap_ab, i.dtype)

    @property
    def instances(self) -> tuple[Any, ...]:
        """Both kernels."""
        return self.instance, self.adding

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if not self.instance.leaves or self.cluster_split_k != 1 or self.band or self.split_k < 2:
            return f"{self.stem}: an instance that leaves its sums, one slice and several parts make a pair"
        if self.adding.terms < min(8, self.split_k):
            return f"{self.split_k} parts: no 8 to 16 of them at once divide them"
        return SplitKConfig.why_illegal(self, shape)

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        across = math.prod(self.tiles(shape))
        if not FEWEST <= across * self.split_k <= MULTIPROCESSORS:
            return f"{across * self.split_k} CTAs that leave sums: {FEWEST} to {MULTIPROCESSORS} pay"
        k_tiles = self.instance.k_tiles(shape)
        if k_tiles < SHORTEST * self.split_k:
            return f"{k_tiles} k tiles for {self.split_k} parts: each wants {SHORTEST}"
        # what was tried: as many parts as there is room and k for, or the largest power of two, or half of it
        room = (parts for parts in PARTS if parts * across <= MULTIPROCESSORS)
        most = max((parts for parts in room if parts * SHORTEST <= k_tiles), default=0)
        power = 1 << max(0, most.bit_length() - 1)
        if self.split_k not in (most, power, power // 2):
            return f"{self.split_k} parts of {across} tiles, where there is room for {most}"
        return SplitKConfig.dominated(self, shape)

    def ctas(self, shape: Shape) -> int:
        """CTAs of the first launch; of any shape, also one that it cannot run."""
        return math.prod(self.tiles(shape)) * self.split_k

    def _grid(self, shape: Shape) -> tuple[int, int, int]:
        # one part's CTAs follow each other, and of m and n what has fewer tiles first: a GPC fetches what
        # several of its CTAs ask for once
        fewer, more = sorted(self.tiles(shape))
        return fewer, more, self.split_k

    def _scalars(self, shape: Shape) -> dict[str, int]:
        down, across = self.tiles(shape)
        return {**SplitKConfig._scalars(self, shape), "band": 1 if down <= across else -1}

    def launch(self, shape: Shape) -> Launch:
        """How to launch both kernels. Raises SassafrasError when they cannot run (`why_illegal`)."""
        sums = 4 * self.ctas(shape) * math.prod(self.tile)
        first = replace(SplitKConfig.launch(self, shape), workspace_bytes=sums)
        return replace(first, then=NextLaunch(self.adding, self._second(first, shape)))

    def _second(self, first: Launch, shape: Shape) -> Launch:
        (tiles_m, tiles_n), (rows, columns) = self.tiles(shape), self.tile
        scalars = {
            **{name: first.scalars[name] for name in ("m", "n", "ldc", "last_row", "last_column")},
            "parts": self.split_k,
            "tiles_m": tiles_m,
            "tiles_n": tiles_n,
            "rows": rows,
            "columns": columns,
        }
        ctas = MULTIPROCESSORS * (2 if self.mode.pdl and not self.mode.trigger_late else 1)
        return Launch(
            (min(ctas, tiles_m * tiles_n * rows * columns // 256), 1, 1),
            self.adding.threads,
            self.adding.shared_bytes,
            (1, 1, 1),
            scalars,
            workspace_bytes=first.workspace_bytes,
            overlap=True,
        )

    def in_modes(self) -> list[Self]:
        """Plain, and overlapping the launch ahead with the second at once or late."""
        modes = (PLAIN, Mode(pdl=True), Mode(pdl=True, trigger_late=True))
        return [replace(self, mode=mode) for mode in modes]

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds of both launches, roughly.

        Fitted to the best modes of 678 pairs of the shipped dataset (warm, back to back): the mean error is
        6.6 % on shapes that were not fitted.
        """
        rows, columns = self.tile
        ctas = self.ctas(shape)  # a selector asks about neighbours, too, where it may be illegal
        k_tiles = ceil_div(tma_wgmma.k_tiles(shape), self.split_k)
        k = TILE_K * k_tiles * ceil_div(ctas, MULTIPROCESSORS)
        *_, beside, longest = sorted(
            (
                2 * k * (rows + columns) / _ARRIVE,
                2 * k * rows * columns * MULTIPROCESSORS / _FLOP,
                shape.nbytes / _STREAMED if shape.nbytes > _KEPT else 0.0,
            )
        )
        return _START + longest + _BESIDE * beside + _SUMS * 4 * ctas * rows * columns / 1e6


#: Of the estimate: microseconds of both launches without their work; bytes a microsecond and multiprocessor
#: of operands that arrive; FLOP a microsecond of all; what of the second longest of arriving, multiplying and
#: memory shows up; microseconds that a megabyte of sums takes, left and added
_START, _ARRIVE, _FLOP, _BESIDE, _SUMS = 1.92, 179e3, 902e6, 0.24, 0.485
#: bytes of operands that stay in the L2 between calls, and bytes a microsecond of those that do not
_KEPT, _STREAMED = 45e6, 4.3e6

#: first kernels: rows, columns, stages
_TILES = ((64, 64, 12), (64, 128, 8), (128, 64, 8))
INSTANCES = tuple(PartialsInstance(layout, *tile) for layout in ("tn", "nn") for tile in _TILES)
OTHER_INSTANCES = tuple(replace(instance, dtype="bf16") for instance in INSTANCES)
