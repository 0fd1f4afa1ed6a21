"""The split-K kernel with an epilogue whose weights are read before the launch ahead has ended (EARLY_B of
`kernels/sm90_gemm_split_k.cuh`): layers of compiled models, for 9 to 64 rows."""

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


#: transposed tiles: rows of A -> stages of 128 k
_TRANSPOSED = {16: 10, 32: 8}
EPILOGUE_INSTANCES: tuple[EarlyInstance, ...] = tuple(
    EarlyInstance("tn", 64, width, ring, swap_ab=swapped, dtype=dtype, epilogue=True, k_blocks=2)
    for dtype in ("fp16", "bf16")
    for swapped, tiles in ((True, _TRANSPOSED), (False, few_rows.RINGS))
    for width, ring in tiles.items()
)


def best(shape: Shape, dtype: str) -> list[EarlySplitKConfig]:
    """Those for a layer of at most 64 rows, the best first; none for more rows, or a small B."""
    if shape.m > few_rows.MOST or shape.n * shape.k < LEAST_CONSTANT:
        return []
    width = next((rows for rows in _TRANSPOSED if shape.m <= rows), None)
    of_type = [i for i in EPILOGUE_INSTANCES if i.dtype == dtype]
    tiles = [i for i in of_type if (i.tile_n == width if i.swap_ab else width is None)]
    every = (replace(c, mode=Mode(pdl=True)) for c in EarlySplitKConfig.every(tiles))
    able = [config for config in every if config.why_illegal(shape) is None]
    return sorted(able, key=lambda config: (few_rows.cost_us(config, shape), config.rank))
