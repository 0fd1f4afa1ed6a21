"""The split-K kernel with an epilogue whose weights are read before the launch ahead has ended (EARLY_B of
`kernels/sm90_gemm_split_k.cuh`): layers of compiled models, for 9 to 64 rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..problem.launch import MULTIPROCESSORS, ceil_div
from ..problem.shape import Shape
from . import cost, few_rows
from .base import SLICES, Choices, Mode
from .source import EPILOGUE_PARAMETERS, Parameters, all_of
from .split_k import SplitKConfig, SplitKInstance
from .stream import LEAST_CONSTANT
from .tma_wgmma import TILE_K


@dataclass(frozen=True, order=True)
class EarlyInstance(SplitKInstance):
    """A `SplitKInstance` with an epilogue and one parameter more, ``early``."""

    all_shared: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """For example ``ce_tn_swapped_64x16_s10q2e``."""
        return "ce" + super().name.removeprefix("cs")

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        own = super().parameters[: -len(EPILOGUE_PARAMETERS)]
        return (*own, *all_of("i32", "early"), *EPILOGUE_PARAMETERS)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return (*super().arguments, True)

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if not (self.epilogue and self.layout == "tn"):
            return "weights are read early by kernels with an epilogue, of the layout tn"
        return super().why_illegal()


@dataclass(frozen=True, slots=True, order=True)
class EarlySplitKConfig(SplitKConfig):
    """As a `SplitKConfig`."""

    FAMILY: ClassVar[str] = "split_k_early"
    LAUNCH: ClassVar[dict[str, str]] = {"cluster_split_k": "c"}
    CHOICES: ClassVar[Choices] = SLICES

    def _scalars(self, shape: Shape) -> dict[str, int]:
        return {**SplitKConfig._scalars(self, shape), "early": 0}


#: transposed tiles: rows of A -> stages of 128 k
_TRANSPOSED = {16: 10, 32: 8}
#: of those: MB a microsecond that memory gives to all CTAs, and that one reads which has the path of a pair
#: of multiprocessors for itself, or shares it, as those of a cluster do; microseconds of each of the first
#: waves, and of a CTA of a cluster; by what a cut of k has to be better; CTAs of a cluster that were timed
_MEMORY, _ALONE, _SHARED, _WAVE, _MEMBER, _CUT, _MOST_SLICES = 6.56, 0.155, 0.113, 0.87, 0.046, 1.02, 5
EPILOGUE_INSTANCES: tuple[EarlyInstance, ...] = tuple(
    EarlyInstance("tn", 64, width, ring, swap_ab=swapped, dtype=dtype, epilogue=True, k_blocks=2)
    for dtype in ("fp16", "bf16")
    for swapped, tiles in ((True, _TRANSPOSED), (False, few_rows.RINGS))
    for width, ring in tiles.items()
)


def cost_us(config: EarlySplitKConfig, shape: Shape) -> float:
    """Microseconds one behind the other, weights from memory: `few_rows.cost_us` says only how tiles differ.

    Of transposed tiles all of them. Fitted to 49 layers of no model that is judged, at 1, 4 and 16 rows on an
    H200: within 5 % (RMS); the choice takes 1.013 times as long as the best (1.037 by `few_rows.cost_us`,
    which does not know that two multiprocessors share what they read by).
    """
    instance, slices = config.instance, config.cluster_split_k
    if not instance.swap_ab:
        return few_rows.cost_us(config, shape)
    ctas, stages = ceil_div(shape.n, instance.tile_m) * slices, ceil_div(instance.k_tiles(shape), slices)
    read = 2e-6 * instance.tile_m * TILE_K * instance.k_blocks * stages
    slots, total = cost.at_once(slices, 1), _MEMBER * slices * (slices > 1)
    for wave, first in enumerate(range(0, ctas, slots)):
        now = min(slots, ctas - first)
        path = _ALONE if slices == 1 and 2 * now <= MULTIPROCESSORS else _SHARED
        total += now * read / _MEMORY + read / path + _WAVE * (wave < few_rows.FIRST)
    return total * (_CUT if slices > 1 else 1.0)


def best(shape: Shape, dtype: str, early: bool = True) -> list[EarlySplitKConfig]:
    """Those for a layer of at most 64 rows, the best first; none for more rows, or a small B.

    Not `early`, behind another kernel, `few_rows.cost_us` orders all: within 0.3 % of the best of 49 layers.
    """
    if shape.m > few_rows.MOST or shape.n * shape.k < LEAST_CONSTANT:
        return []
    width = next((rows for rows in _TRANSPOSED if shape.m <= rows), None)
    of_type = [i for i in EPILOGUE_INSTANCES if i.dtype == dtype]
    tiles = [i for i in of_type if (i.tile_n == width if i.swap_ab else width is None)]
    every = (replace(c, mode=Mode(pdl=True)) for c in EarlySplitKConfig.every(tiles))
    able = [config for config in every if config.why_illegal(shape) is None]
    if width is not None:
        able = [config for config in able if config.cluster_split_k <= _MOST_SLICES]
    us = cost_us if early else few_rows.cost_us
    return sorted(able, key=lambda config: (us(config, shape), config.rank))
