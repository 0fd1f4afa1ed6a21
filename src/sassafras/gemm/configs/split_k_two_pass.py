"""k split by two launches: parts of k leave FP32 sums in a workspace, a second kernel adds them up.

A configuration's name is its first launch's, ``cs_nn_64x128_s8q1p/c1p8+ol``; the second follows from it
(`second_launch` has both kernels). It begins while the first is at work, on one CTA a multiprocessor, or two
where the first lets it start at once: of 40 shapes and five of each one's pairs in every mode, this rule's
best was 0.15 % from the best of all (docs/experiments/hgemm-kernels.md).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from sassafras.core import SassafrasError

from ..problem.launch import MULTIPROCESSORS, Launch, NextLaunch
from ..problem.shape import Shape
from .base import PLAIN, Mode
from .split_k import SplitKConfig
from .two_pass_reduction import PARTS, PartialsInstance, ReductionInstance, TwoPassLaunch, terms_of

#: CTAs of the first launch, at least: tiles times parts
FEWEST = 16
#: k tiles of a part, at least
SHORTEST = 4
#: rows, columns, stages of what won on the grid, of 16 first kernels. Those that share operands by multicast
#: are gone: CTAs of one part that follow each other share them as well, and wait for nobody
#: (docs/experiments/hgemm-launch.md); so are tiles of 128 x 128
_TILES = ((64, 64, 12), (64, 128, 8), (128, 64, 8))
#: first kernels
INSTANCES: tuple[PartialsInstance, ...] = tuple(
    PartialsInstance(layout, *tile, blocks=1) for layout in ("tn", "nn") for tile in _TILES
)
#: those that no sweep has timed (`families.CANDIDATES`): none
CANDIDATES: tuple[PartialsInstance, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class TwoPassSplitKConfig(SplitKConfig):
    """An instance that leaves its sums, parts of k, CTAs that share operands; `launch` has both launches."""

    @classmethod
    def _parse(cls, stem: str) -> Self:
        if found := re.fullmatch(r"(\w+)/c1(?:m(\d)n(\d))?p(\d+)", stem):
            entry, *numbers = found.groups()
            for instance in (*INSTANCES, *CANDIDATES):
                if instance.name == entry:
                    return cls(instance, 1, *(int(number or 1) for number in numbers))
            raise SassafrasError("no instance that leaves its sums has this name", where=entry)
        raise SassafrasError("not a configuration of two launches", where=stem)

    @property
    def adding(self) -> ReductionInstance:
        """The second kernel."""
        i = self.instance
        return ReductionInstance(terms_of(self.parts), i.swapped, i.dtype)

    @property
    def instances(self) -> tuple[Any, ...]:
        """Both kernels."""
        return self.instance, self.adding

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        return TwoPassLaunch(self).unable() or SplitKConfig.why_illegal(self, shape)

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        tiles_m, tiles_n = self.tiles(shape)
        across = self.ctas(shape) // self.parts
        if not FEWEST <= across * self.parts <= MULTIPROCESSORS:
            return f"{across * self.parts} CTAs that leave sums: {FEWEST} to {MULTIPROCESSORS} pay"
        k_tiles = self.instance.k_tiles(shape)
        if k_tiles < SHORTEST * self.parts:
            return f"{k_tiles} k tiles for {self.parts} parts: each wants {SHORTEST}"
        # what was tried: as many parts as there is room and k for, or the largest power of two, or half of it
        room = (parts for parts in PARTS if parts * across <= MULTIPROCESSORS)
        most = max((parts for parts in room if parts * SHORTEST <= k_tiles), default=0)
        power = 1 << max(0, most.bit_length() - 1)
        if self.parts not in (most, power, power // 2):
            return f"{self.parts} parts of {across} tiles, where there is room for {most}"
        if tiles_m * tiles_n * 4 < 3 * across:
            return f"{across} CTAs share operands of {tiles_m * tiles_n} tiles"
        return SplitKConfig.dominated(self, shape)

    def ctas(self, shape: Shape) -> int:
        """CTAs of the first launch; of any shape, also one that it cannot run."""
        return math.prod(SplitKConfig._launch(self, shape).grid)

    def _launch(self, shape: Shape) -> Launch:
        # parts that only leave their sums count nobody's arrival
        return replace(SplitKConfig._launch(self, shape), counters=0)

    def launch(self, shape: Shape) -> Launch:
        """How to launch both kernels. Raises SassafrasError when they cannot run (`why_illegal`)."""
        first = SplitKConfig.launch(self, shape)
        ctas = MULTIPROCESSORS * (2 if self.mode.overlap and not self.mode.late else 1)
        second = TwoPassLaunch(self, ctas).second.behind(first, shape)
        return replace(first, then=NextLaunch(self.adding, second))

    def in_modes(self) -> list[Self]:
        """Plain, and overlapping the launch ahead with the second at once or late."""
        modes = (PLAIN, Mode(overlap=True), Mode(overlap=True, late=True))
        return [replace(self, mode=mode) for mode in modes]


def configurations(
    instances: tuple[PartialsInstance, ...] = (*INSTANCES, *CANDIDATES),
) -> Iterator[TwoPassSplitKConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance, parts in itertools.product(instances, PARTS):
        for share_m, share_n in ((2, 1), (1, 2)) if instance.shared else ((1, 1),):
            yield TwoPassSplitKConfig(instance, 1, share_m, share_n, parts)
