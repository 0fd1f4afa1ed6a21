"""Problem sizes: the 1,000-shape grid of CUDA-L2 and its bands by work."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sassafras.core import SassafrasError

#: every extent of the grid (arXiv 2512.02551)
EXTENTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)

#: the layouts of the benchmark's task; and those whose A lies as k x m (gradients of weights)
LAYOUTS = ("nn", "tn")
BACKWARD = ("nt", "tt")

#: name -> FLOP from (inclusive) and to (exclusive), 2 * M * N * K
BANDS: dict[str, tuple[float, float]] = {
    "<1e8": (0, 1e8),
    "1e8-1e9": (1e8, 1e9),
    "1e9-1e10": (1e9, 1e10),
    "1e10-1e11": (1e10, 1e11),
    "1e11-1e12": (1e11, 1e12),
    ">1e12": (1e12, float("inf")),
}


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """C (m x n) = A (m x k) * B (k x n)."""

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise SassafrasError("extents must be positive", where=f"shape {self}")

    @property
    def flop(self) -> int:
        """Floating-point operations: 2 * m * n * k."""
        return 2 * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        """Bytes of A, B and C in FP16."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def band(self) -> str:
        """Name of the band (`BANDS`)."""
        return next(name for name, (low, high) in BANDS.items() if low <= self.flop < high)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """``"64x128x256"``. Raises SassafrasError."""
        parts = text.lower().split("x")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise SassafrasError("not a shape", where=repr(text), hint="write MxNxK, for example 64x128x256")
        return cls(*map(int, parts))


class Product(NamedTuple):
    """A matrix product as a program calls it: activation(alpha * A B + addend + bias).

    Attributes:
        layout: of `LAYOUTS` or `BACKWARD`.
        dtype: ``fp16`` or ``bf16``.
        addend: whether a residual, or a factor of what C holds, is added.
        scaled: whether alpha is not 1.
    """

    shape: Shape
    layout: str
    dtype: str = "fp16"
    bias: bool = False
    activation: str | None = None
    addend: bool = False
    scaled: bool = False

    @property
    def plain(self) -> bool:
        """A product and nothing else."""
        return not (self.bias or self.activation or self.addend or self.scaled)

    def __str__(self) -> str:
        more = [name for name in ("bias", "addend", "scaled") if getattr(self, name)]
        return " ".join([str(self.shape), self.layout, self.dtype, *more, *filter(None, [self.activation])])

    def to_json(self) -> dict[str, Any]:
        """For a file; `from_json` is the reverse."""
        return {**self._asdict(), "shape": str(self.shape)}

    @classmethod
    def from_json(cls, given: Any) -> Product:
        """Raises SassafrasError, KeyError, TypeError: malformed; further keys are ignored."""
        fields = {name: given[name] for name in cls._fields}
        return cls(**{**fields, "shape": Shape.parse(given["shape"])})


def cuda_l2_grid() -> tuple[Shape, ...]:
    """The 1,000 shapes, smallest work first (ties by m, n, k)."""
    shapes = (Shape(*extents) for extents in itertools.product(EXTENTS, repeat=3))
    return tuple(sorted(shapes, key=lambda s: (s.flop, s)))


def in_bands(shapes: Iterable[Shape], bands: Sequence[str] | None) -> tuple[Shape, ...]:
    """The shapes of the named bands, all for None. Raises SassafrasError on an unknown band."""
    if bands is None:
        return tuple(shapes)
    unknown = [band for band in bands if band not in BANDS]
    if unknown:
        raise SassafrasError(f"no band {', '.join(unknown)}", hint="one of " + ", ".join(BANDS))
    return tuple(shape for shape in shapes if shape.band in bands)


def stratified(shapes: Sequence[Shape], count: int, seed: int = 0) -> tuple[Shape, ...]:
    """At most `count` shapes, as many of each band as its share (at least one), drawn without replacement."""
    if count >= len(shapes):
        return tuple(shapes)
    if count < 1:
        raise SassafrasError("a sample needs at least one shape")
    rng = np.random.default_rng(seed)
    groups = [group for band in BANDS if (group := [s for s in shapes if s.band == band])]
    chosen: list[Shape] = []
    for group in groups:
        take = min(len(group), max(1, round(count * len(group) / len(shapes))))
        chosen += [group[i] for i in rng.permutation(len(group))[:take]]
    if len(chosen) > count:  # rounding: drop evenly
        chosen = [chosen[i] for i in rng.permutation(len(chosen))[:count]]
    order = {shape: i for i, shape in enumerate(shapes)}
    return tuple(sorted(chosen, key=order.__getitem__))
