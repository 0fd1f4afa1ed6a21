"""Products that share A in one launch (JOINED of `kernels/sm90_gemm_stream.cuh` and
`kernels/sm90_gemm_split_k.cuh`): queries, keys and values.

Up to three matrices B, which stay where they are, with a bias each or none; their products lie side by side
in C.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ..problem.launch import Launch, ceil_div
from ..problem.shape import Shape
from . import epilogue, split_k_early, stream
from .epilogue import Lines
from .registry import Config
from .source import EPILOGUE_PARAMETERS, Parameters, all_of
from .split_k_early import EarlyInstance, EarlySplitKConfig
from .stream import StreamConfig, StreamInstance

#: columns of C that a part begins at a multiple of
UNIT = 16
#: elements of B from which a part alone takes so long that a launch saved is little
MOST_ELEMENTS = 1 << 24
#: of a product that is too small for these kernels; what a launch less saves beside it
_LAUNCH_US, _SAVED_US = 4.0, 1.0
#: what launches give by name; the first part is `b`, with `bias`
OPERANDS = ("second", "third", "second_bias", "third_bias")
_COLUMNS = all_of("i32", "second_column", "third_column")
_ADDRESSES = (*all_of("*fp16", *OPERANDS), *_COLUMNS)
_MAPS = (*all_of("tensormap", "map_second", "map_third"), *all_of("*fp16", *OPERANDS[2:]), *_COLUMNS)


@dataclass(frozen=True, order=True)
class JoinedStreamInstance(StreamInstance):
    """A `StreamInstance` with an epilogue, and the parts' parameters."""

    @property
    def name(self) -> str:
        """For example ``js_tn_w4s2k256e``."""
        return "js" + super().name.removeprefix("st")

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        return (*super().parameters[: -len(EPILOGUE_PARAMETERS)], *_ADDRESSES, *EPILOGUE_PARAMETERS)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.warps, self.stages, self.k_chunk, self.dtype == "bf16", True, self.norm, True


@dataclass(frozen=True, order=True)
class JoinedEarlyInstance(EarlyInstance):
    """An `EarlyInstance` with the parts' parameters: a tensor map each, of which a tile reads one."""

    @property
    def name(self) -> str:
        """For example ``je_tn_swapped_64x16_s10q2e``."""
        return "je" + super().name.removeprefix("ce")

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        return (*super().parameters[: -len(EPILOGUE_PARAMETERS)], *_MAPS, *EPILOGUE_PARAMETERS)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return (*super().arguments, False, True)


def _joined(instance: Any, kind: Any) -> Any:
    """The instance that differs in nothing but the parts."""
    return kind(**{field.name: getattr(instance, field.name) for field in fields(instance)})


INSTANCES: tuple[JoinedStreamInstance | JoinedEarlyInstance, ...] = (
    *(_joined(instance, JoinedStreamInstance) for instance in stream.EPILOGUE_INSTANCES),
    *(_joined(instance, JoinedEarlyInstance) for instance in split_k_early.EPILOGUE_INSTANCES),
)


def why_illegal(shape: Shape, cuts: tuple[int, ...]) -> str | None:
    """Why products cannot be joined whose columns of C begin at 0 and `cuts`; None when they can."""
    if not 1 <= len(cuts) <= 2:
        return f"{len(cuts) + 1} products: two or three are joined"
    widths = _widths(shape, cuts)
    if any(width < UNIT or width % UNIT for width in widths):
        return f"{widths} columns: no multiples of {UNIT}"
    return None


def chosen(config: Config | None, shape: Shape, cuts: tuple[int, ...]) -> Config | None:
    """The configuration for joined products, of that for one product of all their columns; None where that
    kernel does not join, or none of its tiles that lie in one part is as fast as launches of their own."""
    if why_illegal(shape, cuts):
        return None
    if isinstance(config, StreamConfig):
        instance = _joined(replace(config.instance, epilogue=True), JoinedStreamInstance)
        return replace(config, instance=instance) if instance in INSTANCES else None
    if isinstance(config, EarlySplitKConfig):
        least = min(_widths(shape, cuts))
        able = [c for c in split_k_early.best(shape, config.dtype) if _lines(c) <= least]
        costs = [split_k_early.cost_us(c, _tiled(c, shape, cuts)) for c in able]
        if costs and min(costs) <= _apart_us(shape, cuts, config.dtype) + _SAVED_US * len(cuts):
            fastest = able[costs.index(min(costs))]
            return replace(fastest, instance=_joined(fastest.instance, JoinedEarlyInstance))
    return None


def _widths(shape: Shape, cuts: tuple[int, ...]) -> list[int]:
    """Columns of each part."""
    return [end - begin for begin, end in pairwise((0, *cuts, shape.n))]


def _apart_us(shape: Shape, cuts: tuple[int, ...], dtype: str) -> float:
    """What `split_k_early.cost_us` says of launches of their own."""
    total = 0.0
    for own in (Shape(shape.m, width, shape.k) for width in _widths(shape, cuts)):
        found = split_k_early.best(own, dtype)
        total += split_k_early.cost_us(found[0], own) if found else _LAUNCH_US
    return total


def _lines(config: Config) -> int:
    """Lines of B that a tile reads."""
    return config.tile[0] if config.swap_ab else config.tile[1]


def _tiles(config: Config, shape: Shape, cuts: tuple[int, ...]) -> int:
    """Of all parts, none of which is smaller than one."""
    return sum(ceil_div(width, _lines(config)) for width in _widths(shape, cuts))


def _tiled(config: Config, shape: Shape, cuts: tuple[int, ...]) -> Shape:
    """One product with as many tiles."""
    return Shape(shape.m, _tiles(config, shape, cuts) * _lines(config), shape.k)


def launch(
    config: Config, shape: Shape, cuts: tuple[int, ...], lines: Lines | None = None, early: bool = False
) -> Launch:
    """How to launch it. Addresses of `OPERANDS` are wanted beside those of `epilogue.launch`.

    Args:
        lines: leading dimensions; that of B is each part's.
        early: B and the norm's weight were written before the launch ahead of this one began.
    """
    made = epilogue.launch(config, shape, lines=lines)
    second, third = (*cuts, shape.n)[:2]
    scalars = {"second_column": second, "third_column": third, "early": int(early)}
    maps, (x, y, z) = dict(made.tensor_maps), made.grid
    if maps:
        tiles = _tiles(config, shape, cuts)
        y, z = (y, tiles) if config.swap_ab else (tiles, z)
        scalars |= {"tiles_each": tiles} if config.swap_ab else {}
        name = "map_a" if config.swap_ab else "map_b"
        rows = {name: second, "map_second": third - second, "map_third": shape.n - third or third - second}
        for to, count in rows.items():
            operand = maps[name].operand if to == name else to.removeprefix("map_")
            maps[to] = replace(maps[name], operand=operand, dims=(maps[name].dims[0], count, 1))
    return replace(made, grid=(x, y, z), scalars={**made.scalars, **scalars}, tensor_maps=maps)
