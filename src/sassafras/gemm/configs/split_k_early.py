"""The split-K kernel with an epilogue whose weights are read before the launch ahead has ended (EARLY_B of
`kernels/sm90_gemm_split_k.cuh`): layers of compiled models, for 9 to `MOST` rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..problem.shape import Shape
from . import few_rows
from .base import SLICES, Choices, Mode
from .source import EPILOGUE_PARAMETERS, Parameters, all_of
from .split_k import SplitKConfig, SplitKInstance
from .stream import LEAST_CONSTANT


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


#: most rows of layers between which all launches overlap; measured up to 64 (of more, some tiles have 128)
MOST = 64
#: transposed tiles: rows of A -> stages of 128 k
_TRANSPOSED = {16: 10, 32: 8}
#: columns of a tile of 128 rows -> stages
_TALL = {64: 7, 96: 6, 128: 6}
EPILOGUE_INSTANCES: tuple[EarlyInstance, ...] = tuple(
    EarlyInstance("tn", rows, width, ring, swap_ab=swapped, dtype=dtype, epilogue=True, k_blocks=blocks)
    for dtype in ("fp16", "bf16")
    for rows, blocks, swapped, tiles in (
        (64, 2, True, _TRANSPOSED),
        (64, 2, False, few_rows.RINGS),
        (128, 1, False, _TALL),
    )
    for width, ring in tiles.items()
)


def best(shape: Shape, dtype: str) -> list[EarlySplitKConfig]:
    """Those for a layer of at most `MOST` rows, the best first; none for more rows, or a small B."""
    if shape.m > MOST or shape.n * shape.k < LEAST_CONSTANT:
        return []
    few = shape.m <= few_rows.MOST
    width = next((rows for rows in _TRANSPOSED if shape.m <= rows), None)
    of_type = [i for i in EPILOGUE_INSTANCES if i.dtype == dtype and (i.tile_m == 64 or not few)]
    tiles = [i for i in of_type if (i.tile_n == width if i.swap_ab else width is None)]
    every = (replace(c, mode=Mode(pdl=True)) for c in EarlySplitKConfig.every(tiles))
    able = [config for config in every if config.why_illegal(shape) is None]

    def cost(config: EarlySplitKConfig) -> float:
        return few_rows.cost_us(config, shape) if few else config.estimate_us(shape)

    return sorted(able, key=lambda config: (cost(config), config.rank))
