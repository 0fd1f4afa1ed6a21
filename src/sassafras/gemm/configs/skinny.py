"""Layers of at most 8 rows of A by tensor copies of B (`kernels/sm90_gemm_skinny.cuh`).

No GPU has run it yet, so nothing chooses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..problem.launch import MULTIPROCESSORS, Launch, TensorMap, ceil_div
from ..problem.shape import Shape
from . import cost
from .base import Mode
from .source import EPILOGUE_PARAMETERS, KernelInstance, Parameters, all_of
from .stream import COLUMNS, StreamConfig
from .tma_wgmma import operand_map

#: warps that multiply; k of a stage
WARPS, CHUNK = 8, 256
#: bytes a microsecond; microseconds of a tile's sums
_BYTES, _SUMS = 4.35e6, 0.2


@dataclass(frozen=True, slots=True, order=True)
class SkinnyInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        rows: of B a tile.
        stages: of the ring, each of `CHUNK` k.
        dtype: ``fp16`` or ``bf16``.
        epilogue: always.
        norm: A is RMS-normalised first.
    """

    HEADER: ClassVar[str] = "sm90_gemm_skinny.cuh"
    TEMPLATE: ClassVar[str] = "Skinny"
    layout: ClassVar[str] = "tn"
    #: as for the launches around it, so that CTAs of both fit on a multiprocessor
    all_shared: ClassVar[bool] = True

    rows: int
    stages: int
    dtype: str = "fp16"
    epilogue: bool = True
    norm: bool = False

    @property
    def name(self) -> str:
        """For example ``sk_tn_r32s5e``."""
        return f"sk_{self._kind}_r{self.rows}s{self.stages}e" + "n" * self.norm

    @property
    def threads(self) -> int:
        """Threads a CTA: one warp more copies."""
        return 32 * (WARPS + 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: stages, their barriers, two tiles' sums, sums of squares."""
        rings = self.stages * (2 * CHUNK * self.rows + 16)
        sums = 2 * 4 * WARPS * COLUMNS * (self.rows + 1)
        return 1024 + rings + sums + 4 * WARPS * COLUMNS * self.norm

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        own = (*all_of("tensormap", "map_b", "map_up"), *all_of(f"*{self.dtype}", "a", "c"))
        own += all_of("i32", "m", "n", "k", "lda", "ldc", "early")
        norm = ("norm", f"*{self.dtype}"), ("eps", "f32")
        return (*own, *norm * self.norm, *EPILOGUE_PARAMETERS)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.rows, self.stages, self.dtype == "bf16", self.norm


@dataclass(frozen=True, slots=True, order=True)
class SkinnyConfig(StreamConfig):
    """An instance; the grid follows from n."""

    FAMILY: ClassVar[str] = "skinny"

    instance: SkinnyInstance  # type: ignore[assignment]

    @property
    def most(self) -> int:
        """Rows of A."""
        return COLUMNS

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of C a tile."""
        return COLUMNS, self.instance.rows

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        return None

    def _launch(self, shape: Shape) -> Launch:
        i = self.instance
        of = operand_map("b", shape.n, shape.k, i.rows // 2, False, i.dtype)
        scalars = {"m": shape.m, "n": shape.n, "k": shape.k, "lda": shape.k, "ldc": shape.n}
        scalars |= {"early": 0, "eps": 0}
        tiles = ceil_div(shape.n, i.rows)
        grid = (min(tiles, MULTIPROCESSORS * cost.residents(self.threads, self.shared_bytes)), 1, 1)
        maps: dict[str, TensorMap] = {"map_b": of, "map_up": of}
        return Launch(grid, self.threads, self.shared_bytes, (1, 1, 1), scalars, maps)

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly: memory, by the CTAs that have the most tiles."""
        tiles = ceil_div(shape.n, self.instance.rows)
        most = ceil_div(tiles, MULTIPROCESSORS)
        return (
            cost.microseconds(cost.START)
            + shape.nbytes / _BYTES * most * MULTIPROCESSORS / tiles
            + _SUMS * most
        )


#: rows of a tile -> stages: two CTAs fit on a multiprocessor, but for the last
_RINGS = {16: 10, 32: 5, 48: 3, 64: 5}
INSTANCES: tuple[SkinnyInstance, ...] = ()
EPILOGUE_INSTANCES: tuple[SkinnyInstance, ...] = tuple(
    SkinnyInstance(rows, stages, dtype, norm=norm)
    for norm in (False, True)
    for dtype in ("fp16", "bf16")
    for rows, stages in _RINGS.items()
)


def configurations(instances: Iterable[SkinnyInstance] = EPILOGUE_INSTANCES) -> Iterator[SkinnyConfig]:
    """Every configuration, in a fixed order, legal or not."""
    yield from map(SkinnyConfig, instances)


def best(shape: Shape, dtype: str, norm: bool = False) -> list[SkinnyConfig]:
    """Those of a type, by their estimates; they overlap the launch before."""
    every = (c for c in configurations() if (c.dtype, c.instance.norm) == (dtype, norm))
    able = [replace(c, mode=Mode(pdl=True)) for c in every if c.why_illegal(shape) is None]
    return sorted(able, key=lambda config: (config.estimate_us(shape), -config.instance.rows))
