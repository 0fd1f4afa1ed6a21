"""What the chooser has learnt for shapes never tuned: boosted trees over a shape and a configuration.

Two sets of trees: one predicts log(torch's time / a plain launch's time), the other what a mode of launching
adds to that. They are trained apart because a sweep times modes for its leaders alone: one model of both
would take a mode for the mark of a leader. A third set predicts the same as the first for layers of programs:
B from memory, other kernels before and after, where the times are not those of calls back to back. Trained by
``benchmarks/choosers.py --train`` (scikit-learn); here they are evaluated with NumPy alone. The file is
``.npz`` without pickle.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.core.files import write_whole

from ..configs import cost
from ..configs.base import PLAIN, Mode
from ..configs.fields import ConfigurationList, read_list
from ..configs.registry import Config
from ..problem.launch import MULTIPROCESSORS
from ..problem.shape import LAYOUTS, Shape
from .correction import Correction
from .dataset import DATA, stem

#: of the columns of `features`: a model of another number is not used
VERSION = 6
_FAMILIES = ("small", "fallback", "split_k", "persistent", "unaligned", "split_k_two_pass", "stream")
#: the column of a family's index in `_FAMILIES`
_FAMILY = 11
#: attributes of a configuration or of its instance, 0 where a kernel has none. ``share`` and ``shared`` are
#: of kernels that are gone; split-K kernels have 1 for the former, and in one pass for ``split_k``
_NUMBERS = (
    "cluster", "warps_m", "warps_n", "warps_k", "mma_m", "mma_n", "k_steps", "stages", "math_warpgroups",
    "ping_pong", "cluster_m", "cluster_n", "split_k", "share", "share", "group", "divisible", "shared",
    "store_stages", "alignment", "k_blocks", "band",
)  # fmt: skip


def families_in(found: np.ndarray) -> list[str]:
    """Names of the families that rows of `features` are of: what a model learns of from these rows."""
    return [_FAMILIES[int(index)] for index in np.unique(found[:, _FAMILY])]


@lru_cache(maxsize=8192)
def _own(config: Config) -> tuple[float, ...]:
    """What does not depend on the shape."""
    numbers = []
    for name in _NUMBERS:
        gone = 1 if name in ("split_k", "share") and config.FAMILY.startswith("split_k") else 0
        numbers.append(getattr(config, name, getattr(config.instance, name, gone)))
    kinds = _FAMILIES.index(config.FAMILY), config.layout[0] == "n", config.swap_ab
    return *kinds, *config.tile, config.threads, config.shared_bytes, *numbers


def _both(config: Config, shape: Shape) -> tuple[float, ...]:
    """What a shape and a configuration are together."""
    rows, columns = config.tile
    tiles_m, tiles_n = config.tiles(shape)
    tiles, slices, seen = tiles_m * tiles_n, config.ranges, config.seen(shape)
    waves = tiles * slices / MULTIPROCESSORS
    filled = seen.m / (tiles_m * rows), seen.n / (tiles_n * columns)
    estimate, loaded = config.estimate_us(shape), shape.k * (rows + columns) * 2.0 * tiles
    bound = estimate, estimate / cost.least_us(shape)
    rounds = _together(config, tiles_m, tiles_n), *_rounds(config, shape)
    work = slices, tiles, waves, math.ceil(waves) / waves, *filled, shape.k / slices, loaded
    return *work, *bound, tiles_m, tiles_n, *rounds


#: kernels that fill the GPU once, whatever the shape
_FILLING = ("persistent", "split_k_two_pass")


def _rounds(config: Config, shape: Shape) -> tuple[float, float]:
    """CTAs that are launched over those that run at once, and what the last round adds; 0 for kernels that
    fill the GPU. 18 clusters of six are 108 CTAs for 132 multiprocessors, and take two rounds: 17 find room.
    Three rows of tiles in bands of four are launched as four: CTAs with nothing to do take their turn."""
    if config.FAMILY in _FILLING:
        return 0.0, 0.0
    down, across = config.tiles(shape)
    band = max(1, getattr(config, "band", 0))
    resident = cost.residents(config.threads, config.shared_bytes)
    launched = math.ceil(down / band) * band * across * config.cluster
    rounds = launched / cost.at_once(config.cluster, resident)
    return rounds, math.ceil(rounds) / rounds


#: CTAs of a GPC, where each has a multiprocessor of its own
_NEIGHBOURS = 16


def _together(config: Config, tiles_m: int, tiles_n: int) -> float:
    """Rows and columns of operands for each of 16 CTAs in a row, each counted once: what their GPC fetches.
    0 for clusters, which are dealt to GPCs in turn."""
    if config.cluster > 1:
        return 0.0
    rows, columns = config.tile
    band = getattr(config, "band", 0)
    if config.FAMILY == "split_k_two_pass":
        down = min(tiles_m, _NEIGHBOURS if tiles_m <= tiles_n else max(1, _NEIGHBOURS // tiles_n))
        across = min(tiles_n, max(1, _NEIGHBOURS // down))
    elif band:
        down, across = min(band, tiles_m), min(tiles_n, max(1, _NEIGHBOURS // band))
    else:
        across = min(tiles_n, _NEIGHBOURS)
        down = min(tiles_m, max(1, _NEIGHBOURS // across))
    return (down * rows + across * columns) / (down * across)


def _aligned(shape: Shape) -> tuple[float, ...]:
    """Elements that rows of k and of n are whole multiples of, 8 at most, and the smaller: cuBLAS has other
    kernels for 1, 2, 4 and 8, and torch's time jumps between them."""
    k, n = math.gcd(shape.k, 8), math.gcd(shape.n, 8)
    return k, n, min(k, n)


def features(configs: Sequence[Config], shape: Shape) -> np.ndarray:
    """float32 (configurations, features): plain numbers, of which trees need no logarithm."""
    m, n, k = shape.m, shape.n, shape.k
    of_shape = m, n, k, shape.flop, shape.nbytes, m % 16, n % 16, k % 64, *_aligned(shape)
    return np.array([of_shape + _own(c) + _both(c, shape) for c in configs], np.float32)


def with_mode(found: np.ndarray, modes: Sequence[Mode]) -> np.ndarray:
    """The features of plain launches with those of a mode each."""
    flags = [(mode.pdl, mode.trigger_late, mode.one_cta_per_sm) for mode in modes]
    return np.concatenate([found, np.array(flags, np.float32).reshape(-1, 3)], 1)


#: rows of A, least and most, and elements of B (n x k), at least: where the third set has learnt
PROGRAM_ROWS, PROGRAM_ELEMENTS = (65, 2048), 4 << 20


def in_program(shape: Shape, layout: str) -> bool:
    """Whether a product is a layer of the kind that was timed as programs have it."""
    least, most = PROGRAM_ROWS
    return layout == "tn" and least <= shape.m <= most and shape.n * shape.k >= PROGRAM_ELEMENTS


#: parts of `Trees` -> their types in a file, and in memory
_PARTS: dict[str, tuple[type, type]] = {
    "base": (np.float64, np.float64),
    "depth": (np.int64, np.int64),
    "roots": (np.int32, np.intp),
    "feature": (np.int16, np.intp),
    "threshold": (np.float64, np.float64),
    "children": (np.int32, np.intp),
    "value": (np.float32, np.float64),
}


@dataclass(frozen=True, slots=True)
class Trees:
    """A sum of binary trees as flat arrays over all nodes of all trees.

    Attributes:
        base: added to the sum.
        depth: steps from a root to the deepest leaf.
        roots: the node where each tree begins.
        feature, threshold: of a node: `x[feature] > threshold` leads to its second child.
        children: (nodes, 2); a leaf's are itself.
        value: of a leaf; 0 elsewhere.
    """

    base: float
    depth: int
    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    children: np.ndarray
    value: np.ndarray

    def predict(self, found: np.ndarray) -> np.ndarray:
        """float64 (rows,)."""
        values = np.asarray(found, np.float64)
        flat, width = values.ravel(), values.shape[1]
        start = (np.arange(len(values)) * width)[:, None]
        node = np.broadcast_to(self.roots, (len(values), len(self.roots)))
        children = self.children.ravel()
        for _ in range(self.depth):
            right = flat.take(start + self.feature.take(node)) > self.threshold.take(node)
            node = children.take(2 * node + right)
        total: np.ndarray = self.base + self.value.take(node).sum(1)
        return total

    def plus(self, other: Trees) -> Trees:
        """One set of trees that predicts the sum of both."""
        return self._sum([self, other])

    @classmethod
    def mean(cls, several: Sequence[Trees]) -> Trees:
        """One set of trees that predicts the mean of several."""
        total, count = cls._sum(several), len(several)
        return replace(total, base=total.base / count, value=total.value / count)

    @classmethod
    def _sum(cls, several: Sequence[Trees]) -> Trees:
        first = itertools.accumulate((len(one.feature) for one in several[:-1]), initial=0)
        moved = [(one.roots + at, one.children + at) for one, at in zip(several, first, strict=True)]
        return cls(
            sum(one.base for one in several),
            max(one.depth for one in several),
            np.concatenate([roots for roots, _ in moved]),
            np.concatenate([one.feature for one in several]),
            np.concatenate([one.threshold for one in several]),
            np.concatenate([children for _, children in moved]),
            np.concatenate([one.value for one in several]),
        )

    def arrays(self, name: str) -> dict[str, Any]:
        """For a file."""
        return {f"{name}.{part}": np.asarray(getattr(self, part), kept) for part, (kept, _) in _PARTS.items()}

    @classmethod
    def of_arrays(cls, name: str, data: Any) -> Trees:
        """The reverse. Raises ValueError when an index leads out of its array."""
        got = {part: data[f"{name}.{part}"].astype(used) for part, (_, used) in _PARTS.items()}
        nodes = len(got["feature"])
        whole = {len(got["threshold"]), len(got["children"]), len(got["value"])} == {nodes}
        inside = all(got[p].min() >= 0 and got[p].max() < nodes for p in ("roots", "children"))
        if not (whole and inside and got["feature"].min() >= 0):
            raise ValueError(f"the trees {name!r} are damaged")
        return cls(**{**got, "base": float(got["base"]), "depth": int(got["depth"])})


@dataclass(frozen=True, slots=True)
class Model:
    """The sets of trees, and where they come from (``gpu``, ``date``, ``commit``, ``pairs``, ...).

    ``correction``: from the GPU that it learnt from to another one, without tables.
    ``program``: of layers as programs have them; None: it learnt from calls back to back alone.
    ``families`` in the header: the kernels (`Configuration.FAMILY`) that it has learnt of.
    """

    plain: Trees
    modes: Trees
    header: dict[str, Any]
    correction: Correction | None = None
    program: Trees | None = None

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts of what it learnt from."""
        return tuple(self.header.get("layouts", LAYOUTS))

    def knows(self, config: Config) -> bool:
        """Whether it has learnt of a configuration's kernel: what it says of others means nothing."""
        return config.FAMILY in self.header.get("families", _FAMILIES)

    @property
    def known(self) -> list[tuple[Shape, str, tuple[Config, ...]]]:
        """(shape, layout, configurations that won there) of what it learnt from beside the dispatch table."""
        listed = read_list(self.header.get("configurations", ()))
        return [
            (Shape(m, n, k), layout, tuple(c for place in places if (c := listed[place]) is not None))
            for m, n, k, layout, places in self.header.get("known", ())
        ]

    @staticmethod
    def knowing(known: Sequence[tuple[Shape, str, Sequence[Config]]]) -> dict[str, Any]:
        """The part of a header that `known` is read from."""
        listed = ConfigurationList(config for _, _, winners in known for config in winners)
        rows = [[s.m, s.n, s.k, layout, [listed.place(c) for c in winners]] for s, layout, winners in known]
        return {"configurations": listed.to_json(), "known": rows}

    def speedups(
        self, configs: Sequence[Config], shape: Shape, *, program: bool = False
    ) -> list[tuple[float, Config]]:
        """(torch's time over it, configuration) in the best mode that each has, best first.

        Args:
            configs: any; their modes do not count.
            shape: the problem.
            program: between other kernels, where launches that overlap gain nothing, if that was learnt.
        """
        stems = list(dict.fromkeys(replace(config, mode=PLAIN) for config in configs))
        if not stems:
            return []
        found = features(stems, shape)
        between = self.program if program else None
        plain = (between or self.plain).predict(found)
        if self.correction is not None:
            plain = plain + self.correction.over_torch(stems, shape)
        # modes are looked at where they could still matter
        near = [int(i) for i in np.argsort(-plain, kind="stable")[:_WITH_MODES]]
        asked = [(i, config) for i in near for config in modes_that_may_pay(stems[i], shape)]
        score = {stems[i]: (float(plain[i]), stems[i]) for i in range(len(stems))}
        if asked:
            gains = self.modes.predict(with_mode(found[[i for i, _ in asked]], [c.mode for _, c in asked]))
            for (i, config), gain in zip(asked, gains, strict=True):
                score[stems[i]] = max(score[stems[i]], (float(plain[i] + gain), config), key=itemgetter(0))
        if between:
            score = {c: (float(plain[i]), score[c][1]) for i, c in enumerate(stems)}
        ranked = sorted(score.values(), key=lambda pair: (-pair[0], pair[1].rank))
        return [(math.exp(value), config) for value, config in ranked]

    def save(self, path: Path) -> None:
        """Write it; equal contents give equal bytes. Raises OSError; what was there before stays then."""
        header = np.frombuffer(json.dumps(self.header, sort_keys=True).encode(), np.uint8)
        packed = io.BytesIO()
        np.savez_compressed(
            packed,
            allow_pickle=False,
            version=np.int64(VERSION),
            header=header,
            **self.plain.arrays("plain"),
            **self.modes.arrays("modes"),
            **(self.program.arrays("program") if self.program else {}),
        )
        write_whole(path, packed.getvalue())

    @classmethod
    def load(cls, path: Path) -> Model:
        """Read it. Raises SassafrasError when it is missing, foreign or damaged."""
        try:
            with np.load(path, allow_pickle=False) as data:
                if int(data["version"]) != VERSION:
                    raise ValueError("it knows other features; train it again")
                header = json.loads(data["header"].tobytes())
                plain, modes = Trees.of_arrays("plain", data), Trees.of_arrays("modes", data)
                program = Trees.of_arrays("program", data) if "program.base" in data else None
                made = cls(plain, modes, header, program=program)
            _ = made.known, made.layouts  # read once here, so that a model that was loaded can be relied on
            if not isinstance(header.get("families", []), list):
                raise ValueError("it does not say what it has learnt of")
            return made
        except Exception as error:  # a damaged archive raises whatever zip, zlib and NumPy stumble over
            raise SassafrasError(f"not a chooser's model: {error}", where=path.name) from error


#: of how many configurations, by their plain launches, the modes are looked at
_WITH_MODES = 6


def modes_that_may_pay(config: Config, shape: Shape) -> list[Config]:
    """A configuration in modes other than the plain one. Where not all CTAs run at once, one a multiprocessor
    would take nearly twice as long."""
    launch = config.launch(shape)
    one_wave = math.prod(launch.grid) <= MULTIPROCESSORS
    return [other for other in config.in_modes()[1:] if one_wave or not other.mode.one_cta_per_sm]


def shipped_path(gpu: str, part: str = "") -> Path:
    """Where the package keeps a GPU's model; of nt and tt with `backward.PART`."""
    return DATA / f"{stem(gpu, part)}.chooser.npz"


@lru_cache(maxsize=4)
def shipped(gpu: str, part: str = "") -> Model | None:
    """The model that comes with the package, None for a GPU that has none.

    A file whose header names a ``base`` holds what is added to the prediction of that GPU's model.
    """
    path = shipped_path(gpu, part)
    if not path.is_file():
        return None
    try:
        own = Model.load(path)
        if (of := own.header.get("base")) is None:
            return own
        base = shipped(str(of), part)
        header = None if base is None else {**base.header, **own.header}
        return base and Model(base.plain.plus(own.plain), base.modes.plus(own.modes), header or {})
    except SassafrasError:  # of another version: the neighbours choose
        return None
