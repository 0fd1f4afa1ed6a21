"""Products that share A in one launch (JOINED of `kernels/sm90_gemm_stream.cuh`): queries, keys and values.

Up to three matrices B, which stay where they are, with a bias each or none; their products lie side by side
in C.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ..problem.launch import Launch
from ..problem.shape import Shape
from . import epilogue, stream
from .epilogue import Lines
from .registry import Config
from .source import EPILOGUE_PARAMETERS, Parameters, all_of
from .stream import StreamConfig, StreamInstance

#: columns of C that a part begins at a multiple of
UNIT = 16
#: elements of B from which a part alone takes so long that a launch saved is little
MOST_ELEMENTS = 1 << 24
#: what launches give by name; the first part is `b`, with `bias`
OPERANDS = ("second", "third", "second_bias", "third_bias")
_PARTS: Parameters = (*all_of("*fp16", *OPERANDS), *all_of("i32", "second_column", "third_column"))


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
        return (*super().parameters[: -len(EPILOGUE_PARAMETERS)], *_PARTS, *EPILOGUE_PARAMETERS)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.warps, self.stages, self.k_chunk, self.dtype == "bf16", True, self.norm, True


def _joined(instance: Any, kind: Any) -> Any:
    """The instance that differs in nothing but the parts."""
    return kind(**{field.name: getattr(instance, field.name) for field in fields(instance)})


INSTANCES: tuple[JoinedStreamInstance, ...] = tuple(
    _joined(instance, JoinedStreamInstance) for instance in stream.EPILOGUE_INSTANCES
)


def why_illegal(shape: Shape, cuts: tuple[int, ...]) -> str | None:
    """Why products cannot be joined whose columns of C begin at 0 and `cuts`; None when they can."""
    if not 1 <= len(cuts) <= 2:
        return f"{len(cuts) + 1} products: two or three are joined"
    widths = [end - begin for begin, end in pairwise((0, *cuts, shape.n))]
    if any(width < UNIT or width % UNIT for width in widths):
        return f"{widths} columns: no multiples of {UNIT}"
    return None


def chosen(config: Config | None, shape: Shape, cuts: tuple[int, ...]) -> Config | None:
    """The configuration for joined products, of that for one product of all their columns; None where that
    kernel does not join."""
    if why_illegal(shape, cuts) or not isinstance(config, StreamConfig):
        return None
    instance = _joined(replace(config.instance, epilogue=True), JoinedStreamInstance)
    return replace(config, instance=instance) if instance in INSTANCES else None


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
    return replace(made, scalars={**made.scalars, **scalars})
