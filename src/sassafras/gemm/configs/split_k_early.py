"""The split-K kernel with an epilogue whose weights are read before the launch ahead has ended (EARLY_B of
`kernels/sm90_gemm_split_k.cuh`): layers of compiled models, for 9 to 64 rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..problem.launch import Launch
from ..problem.shape import Shape
from .base import Mode
from .source import EPILOGUE_PARAMETERS, Parameters, all_of
from .split_k import SplitKConfig, SplitKInstance
from .stream import LEAST_CONSTANT

#: most rows of A: tiles of C are as wide
MOST_ROWS = 64


@dataclass(frozen=True, order=True)
class EarlyInstance(SplitKInstance):
    """A `SplitKInstance` with an epilogue and one parameter more, ``early``."""

    #: a multiprocessor's memory is divided as for the launches around it, so that CTAs of both fit on it
    all_shared: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """For example ``ce_tn_swapped_64x16_s10q1e``."""
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
        if not (self.epilogue and self.swap_ab and self.layout == "tn"):
            return "weights are read early by transposed kernels with an epilogue, of the layout tn"
        return super().why_illegal()


@dataclass(frozen=True, slots=True, order=True)
class EarlySplitKConfig(SplitKConfig):
    """As a `SplitKConfig`."""

    FAMILY: ClassVar[str] = "split_k_early"

    def _launch(self, shape: Shape) -> Launch:
        launch = super(EarlySplitKConfig, self)._launch(shape)
        return replace(launch, scalars={**launch.scalars, "early": 0})


#: columns (rows of A), stages: two CTAs a multiprocessor
_TILES = ((16, 10), (32, 8), (64, 6))
EPILOGUE_INSTANCES: tuple[EarlyInstance, ...] = tuple(
    EarlyInstance("tn", 64, columns, stages, swap_ab=True, dtype=dtype, epilogue=True)
    for dtype in ("fp16", "bf16")
    for columns, stages in _TILES
)


def configurations(instances: Iterable[EarlyInstance] = EPILOGUE_INSTANCES) -> Iterator[EarlySplitKConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance in instances:
        yield from (EarlySplitKConfig(instance, slices) for slices in range(1, 9))


def best(shape: Shape, dtype: str) -> list[EarlySplitKConfig]:
    """Those that can run a layer of few rows, by their estimates; none for more rows, or a small B."""
    if shape.m > MOST_ROWS or shape.n * shape.k < LEAST_CONSTANT:
        return []
    tiles = [i for i in EPILOGUE_INSTANCES if i.dtype == dtype and i.tile_n >= shape.m]
    every = (replace(c, mode=Mode(pdl=True)) for c in configurations(tiles))
    able = [c for c in every if not (c.why_illegal(shape) or c.dominated(shape))]
    return sorted(able, key=lambda config: config.estimate_us(shape))
