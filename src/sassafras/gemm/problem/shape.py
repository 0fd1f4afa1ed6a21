"""Problem sizes: the 1,000-shape grid of CUDA-L2 and its bands by work."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


def cuda_l2_grid() -> tuple[Shape, ...]:
    """The 1,000 shapes, smallest work first (ties by m, n, k)."""
    shapes = (Shape(*extents) for extents in itertools.product(EXTENTS, repeat=3))
    return tuple(sorted(shapes, key=lambda s: (s.flop, s)))


#: (n, k) of linear layers of language models: attention and feed-forward of 1B to 70B models
LAYERS = (
    (2048, 2048), (8192, 2048), (2048, 8192), (3072, 1024), (4096, 4096), (6144, 4096), (14336, 4096),
    (4096, 14336), (11008, 4096), (5120, 5120), (13824, 5120), (8192, 8192), (28672, 8192), (1024, 8192),
)  # fmt: skip


def off_grid() -> tuple[Shape, ...]:
    """60 shapes that are not on the grid and never tuned, smallest work first.

    42 are layers of language models with 1 to 300 tokens, 9 have odd extents, 9 are primes.
    """
    tokens = (1, 2, 3, 5, 8, 13, 16, 24, 33, 48, 65, 96, 100, 127, 144, 160, 192, 200, 240, 257, 300)
    shapes = [
        Shape(tokens[index % len(tokens)], *LAYERS[(3 * index + index // len(tokens)) % len(LAYERS)])
        for index in range(42)
    ]
    shapes += [
        Shape(*extents)
        for extents in (
            (65, 129, 257),
            (99, 1001, 513),
            (255, 511, 1023),
            (333, 777, 999),
            (1025, 65, 2049),
            (7, 4097, 4095),
            (1499, 1501, 301),
            (2047, 2049, 127),
            (4095, 1025, 511),
            (61, 67, 71),
            (127, 131, 1009),
            (257, 251, 4099),
            (509, 1021, 2053),
            (3, 8191, 1021),
            (1013, 1019, 1021),
            (97, 5003, 769),
            (2053, 127, 509),
            (13, 32003, 4099),
        )
    ]
    return tuple(sorted(set(shapes), key=lambda s: (s.flop, s)))


def _drawn(count: int, seed: int, without: Iterable[Shape]) -> tuple[Shape, ...]:
    """Shapes as programs have them: mostly few tokens times a layer, some of any size, some odd."""
    rng, known, found = np.random.default_rng(seed), set(without), set[Shape]()
    while len(found) < count:
        kind = rng.random()
        m = int(2 ** rng.uniform(0, 8.3 if kind < 0.6 else 13))
        n, k = (64 * int(2 ** rng.uniform(3, 8.8)) for _ in range(2))
        if kind > 0.8:  # any extents: rows are no multiple of 16 bytes
            m, n, k = (int(2 ** rng.uniform(5, 11.5)) for _ in range(3))
        shape = Shape(m, n, k)
        if shape not in known and shape.flop < 4e11:
            found.add(shape)
    return tuple(sorted(found, key=lambda s: (s.flop, s)))


def off_grid_anew() -> tuple[Shape, ...]:
    """60 further shapes off the grid, to judge with: the chooser has learnt from those of `off_grid`."""
    return _drawn(60, 2, (*cuda_l2_grid(), *off_grid()))


def for_learning() -> tuple[Shape, ...]:
    """300 shapes off the grid for the chooser to learn from; none is in `off_grid` or `off_grid_anew`."""
    return _drawn(300, 3, (*cuda_l2_grid(), *off_grid(), *off_grid_anew()))


def off_grid_third() -> tuple[Shape, ...]:
    """60 shapes that had no part in any choice: settings of the chooser were compared on `off_grid_anew`."""
    return _drawn(60, 4, (*cuda_l2_grid(), *off_grid(), *off_grid_anew(), *for_learning()))


#: sizes of vocabularies that are no multiple of 8, and what models multiply them with
VOCABULARIES = (50257, 51865, 32003, 49153, 21843, 30522)


def _odd(count: int, seed: int, without: Iterable[Shape]) -> tuple[Shape, ...]:
    """Shapes some of whose rows are no multiple of 16 bytes: of any size, few rows, vocabularies."""
    rng, known, found = np.random.default_rng(seed), set(without), set[Shape]()
    while len(found) < count:
        kind = rng.random()
        if kind < 0.45:
            m, n, k = (int(2 ** rng.uniform(5.5, 12)) for _ in range(3))
        elif kind < 0.85:
            m, n, k = (int(2 ** rng.uniform(*ends)) for ends in ((0, 8.3), (8, 13.5), (8, 13)))
        else:
            n, k = int(rng.choice(VOCABULARIES)), 64 * int(rng.integers(8, 65))
            m = int(2 ** rng.uniform(0, 9))
        even = rng.random()  # rows of one operand alone begin anywhere
        if even < 0.15:
            k = max(8, k // 8 * 8)
        elif even < 0.3 and kind < 0.85:
            n = max(8, n // 8 * 8)
        shape = Shape(m, n, k)
        if (n % 8 or k % 8) and shape not in known and shape.flop < 1.5e11:
            found.add(shape)
    return tuple(sorted(found, key=lambda s: (s.flop, s)))


def off_grid_odd() -> tuple[Shape, ...]:
    """40 shapes with rows that are no multiple of 16 bytes, to judge with."""
    return _odd(40, 5, (*off_grid(), *off_grid_anew(), *off_grid_third()))


def for_learning_odd() -> tuple[Shape, ...]:
    """150 more of them for the chooser to learn from; none is in the others."""
    others = (*off_grid(), *off_grid_anew(), *off_grid_third(), *for_learning(), *off_grid_odd())
    return _odd(150, 6, others)


def for_learning_few() -> tuple[Shape, ...]:
    """80 model layers with 65 to 320 rows, multiples of 8 in n and k, to learn from."""
    known = {*cuda_l2_grid(), *off_grid(), *off_grid_anew(), *off_grid_third(), *for_learning()}
    rng, found = np.random.default_rng(8), set[Shape]()
    while len(found) < 80:
        n, k = LAYERS[int(rng.integers(len(LAYERS)))]
        if rng.random() < 0.4:
            n, k = (64 * int(2 ** rng.uniform(4, 8.3)) for _ in range(2))
        shape = Shape(int(rng.integers(65, 321)), n, k)
        if shape not in known:
            found.add(shape)
    return tuple(sorted(found, key=lambda s: (s.flop, s)))


def _before_fourth() -> tuple[Shape, ...]:
    known = (*cuda_l2_grid(), *off_grid(), *off_grid_anew(), *off_grid_third(), *off_grid_odd())
    return (*known, *for_learning(), *for_learning_odd(), *for_learning_few())


def off_grid_fourth() -> tuple[Shape, ...]:
    """60 more that nothing has learnt from: the chooser's margins were settled with an eye on the third."""
    return _drawn(60, 10, _before_fourth())


def off_grid_fifth() -> tuple[Shape, ...]:
    """60 more: the chooser's margins and features were settled with an eye on the fourth."""
    return _drawn(60, 11, (*off_grid_fourth(), *_before_fourth()))


def _rare(count: int, seed: int, without: Iterable[Shape]) -> tuple[Shape, ...]:
    """What the other draws hardly have: a few rows of any length, C a few columns wide, much work whose k is
    no multiple of a kernel's block, and small C with a long k."""
    rng, known, found = np.random.default_rng(seed), set(without), set[Shape]()
    while len(found) < count:
        kind = rng.random()
        if kind < 0.3:
            m, n, k = int(rng.integers(1, 17)), *(int(2 ** rng.uniform(6, 13.5)) for _ in range(2))
        elif kind < 0.5:
            n, m, k = int(rng.integers(1, 101)), *(int(2 ** rng.uniform(6, 13.5)) for _ in range(2))
        elif kind < 0.7:
            m, n = (int(2 ** rng.uniform(3, 9.5)) for _ in range(2))
            k = int(2 ** rng.uniform(12, 16))
        else:
            m, n = (64 * int(2 ** rng.uniform(4, 8)) for _ in range(2))
            k = int(2 ** rng.uniform(7, 13.5))
            if k % 64 == 0:
                continue
        if rng.random() < 0.6:  # rows of 16 bytes
            n, k = max(8, n // 8 * 8), max(8, k // 8 * 8)
        shape = Shape(m, n, k)
        if shape not in known and shape.flop < 1e12:
            found.add(shape)
    return tuple(sorted(found, key=lambda s: (s.flop, s)))


def off_grid_rare() -> tuple[Shape, ...]:
    """40 shapes of kinds that the other grids hardly have, to judge with."""
    return _rare(40, 12, (*off_grid_fifth(), *off_grid_fourth(), *_before_fourth()))


def for_learning_rare() -> tuple[Shape, ...]:
    """160 more of them for the chooser to learn from; none is in the others."""
    known = (*off_grid_rare(), *off_grid_fifth(), *off_grid_fourth(), *_before_fourth())
    return _rare(160, 13, known)


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
