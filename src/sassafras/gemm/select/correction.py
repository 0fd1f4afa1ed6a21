"""How the times of one GPU change on another: learnt from a sample, applied to the first one's table.

log(time here / time there) is a linear function, fitted by ridge regression, of what bounds a product
(memory, tensor cores, launch), of the kernel, and of its tile, split and waves. It covers torch and cuBLASLt,
too, so a corrected table decides between them and ours as a measured one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sassafras.core import SassafrasError

from ..configs.registry import KERNELS, Config
from ..problem.launch import MULTIPROCESSORS
from ..problem.shape import Shape
from .dataset import Dataset, DatasetEntry
from .table import TableRow, TunedTable

#: FLOP and bytes a microsecond, and a launch's microseconds, of the parts of a product's time (an H200's)
_FLOP, _BYTES, _LAUNCH = 790e6, 4.3e6, 2.0
#: bytes from which operands come from memory, roughly (L2: 50 MB)
_L2 = 40e6
#: libraries, beside our kernels
LIBRARIES = ("torch", "lt_autotune")
_MEMBERS = (*LIBRARIES, *KERNELS)
#: strength of the regression's prior (no change), in times of a sample
_PRIOR = 3.0
#: pairs that a fit needs
_LEAST = 60


def _of_shape(shape: Shape) -> list[float]:
    """What bounds it."""
    memory, products = shape.nbytes / _BYTES, shape.flop / _FLOP
    whole = memory + products + _LAUNCH
    beyond = 1 / (1 + (_L2 / shape.nbytes) ** 4)
    stored = 2 * shape.m * shape.n / shape.nbytes
    mem, mul = memory / whole, products / whole
    return [1.0, mem, mul, mem * beyond, mul * beyond, stored * mem, stored * mem * beyond]


def _of_config(config: Config | None, shape: Shape, layout: str) -> list[float]:
    """What the configuration does; zeros for a library."""
    if config is None:
        return [float(layout == "nn"), *([0.0] * 7)]
    rows, columns = config.tile
    tiles_m, tiles_n = config.tiles(shape)
    waves = tiles_m * tiles_n * config.ranges / MULTIPROCESSORS
    return [
        0.0,
        1.0,
        float(layout == "nn"),
        math.log2(rows * columns) / 14,
        math.log2(config.ranges) / 4,
        math.log2(config.cluster) / 3,
        math.ceil(waves) / waves - 1 if waves < 8 else 0.0,
        float(config.mode.pdl),
    ]


def features(member: str, shape: Shape, layout: str, config: Config | None = None) -> list[float]:
    """Of a time: of which member (`_MEMBERS`), of which shape and layout, by which configuration of ours."""
    of_shape = _of_shape(shape)
    own = [value if member == one else 0.0 for one in _MEMBERS for value in of_shape[:4]]
    return [*of_shape, *own, *_of_config(config, shape, layout)]


@dataclass(frozen=True, slots=True)
class Correction:
    """The fitted function.

    Attributes:
        weights: float64 (features,).
        pairs: times that it was fitted to.
        error: RMS of what is left, in logarithms.
    """

    weights: np.ndarray
    pairs: int
    error: float

    def of(self, member: str, shape: Shape, layout: str, config: Config | None = None) -> float:
        """log(time here / time there)."""
        return float(np.dot(features(member, shape, layout, config), self.weights))

    def over_torch(self, configs: Sequence[Config], shape: Shape) -> np.ndarray:
        """What is added to log(torch's time / configuration's), float64 (configurations,)."""
        torch_too = {layout: self.of("torch", shape, layout) for layout in {c.layout for c in configs}}
        return np.array([torch_too[c.layout] - self.of(c.FAMILY, shape, c.layout, c) for c in configs])

    def row(self, row: TableRow) -> TableRow:
        """A row with the times that are expected here, fastest first."""

        def here(us: float | None, member: str, config: Config | None = None) -> float | None:
            return us and us * math.exp(self.of(member, row.shape, row.layout, config))

        ours = [(c, here(us, c.FAMILY, c) or us) for c, us in row.ours]
        return replace(
            row,
            ours=tuple(sorted(ours, key=lambda pair: pair[1])),
            torch_us=here(row.torch_us, "torch"),
            lt_us=here(row.lt_us, "lt_autotune"),
        )

    @classmethod
    def fit(cls, there: Dataset, here: Dataset) -> Correction:
        """From times of one GPU (`times_of` a table) and times of some of its shapes on another.

        Raises:
            SassafrasError: too few times.
        """
        rows, target = [], []
        for member, shape, layout, config, before, now in _pairs(there, here):
            rows.append(features(member, shape, layout, config))
            target.append(math.log(now / before))
        if len(rows) < _LEAST:
            raise SassafrasError(f"{len(rows)} times are too few", hint="a larger --budget")
        x, y = np.array(rows), np.array(target)
        weights = np.linalg.solve(x.T @ x + _PRIOR * np.eye(x.shape[1]), x.T @ y)
        # once more: a time that is far off (the clock fell, the algorithm is another one here) counts less
        far = np.abs(y - x @ weights)
        scale = 1 / np.maximum(1.0, far / (2.5 * np.median(far) + 1e-9))
        weights = np.linalg.solve((x.T * scale) @ x + _PRIOR * np.eye(x.shape[1]), (x.T * scale) @ y)
        return cls(weights, len(y), float(np.sqrt(np.mean((y - x @ weights) ** 2))))

    def to_json(self) -> dict[str, Any]:
        """For the header of a table."""
        return {
            "members": list(_MEMBERS),
            "weights": [round(float(w), 6) for w in self.weights],
            "pairs": self.pairs,
            "error": round(self.error, 5),
        }

    @classmethod
    def from_json(cls, given: Any) -> Correction | None:
        """The reverse; None for one of other kernels than this version's."""
        width = len(features("torch", Shape(64, 64, 64), "nn"))
        if not isinstance(given, dict) or given.get("members") != list(_MEMBERS):
            return None
        weights = np.array(given["weights"], float)
        return cls(weights, int(given["pairs"]), float(given["error"])) if weights.shape == (width,) else None


def times_of(table: TunedTable) -> Dataset:
    """What a table says of times, as a dataset."""
    entries: dict[Shape, DatasetEntry] = {}
    for (shape, layout), row in table.rows.items():
        entry = entries.setdefault(shape, DatasetEntry(shape, {}, {name: {} for name in LIBRARIES}))
        entry.ours.update({config: (us, 0) for config, us in row.ours})
        for name, us in zip(LIBRARIES, (row.torch_us, row.lt_us), strict=True):
            entry.baselines[name].update({layout: us} if us else {})
    return Dataset(table.header, entries.values())


def _pairs(there: Dataset, here: Dataset) -> Iterable[tuple[str, Shape, str, Config | None, float, float]]:
    """(member, shape, layout, configuration, microseconds there, microseconds here)."""
    for now in here:
        before = there.entries.get(now.shape)
        if before is None:
            continue
        for config, (us, _) in now.ours.items():
            if (was := before.us(config)) is not None:
                yield config.FAMILY, now.shape, config.layout, config, was, us
        for name in LIBRARIES:
            for layout, us in now.baselines.get(name, {}).items():
                if was := before.baseline_us(name, layout):
                    yield name, now.shape, layout, None, was, us


def corrected(there: TunedTable, correction: Correction, here: Dataset) -> TunedTable:
    """A table for the GPU of `here`: rows as timed where they were, else those of `there`, corrected."""
    timed = TunedTable.from_dataset(here)
    rows = [timed.rows.get(at) or correction.row(row) for at, row in there.rows.items()]
    if timed.header.get("cublaslt") != there.header.get("cublaslt"):
        # algorithms of another version are not to be called, and the header is about to name this one's
        rows = [row if (row.shape, row.layout) in timed.rows else replace(row, lt=None) for row in rows]
    kept = ("gpu", "cublaslt", "torch", "kernels", "date", "commit")
    header = {key: timed.header[key] for key in kept if timed.header.get(key)}
    near = {"near": there.header.get("gpu"), "correction": correction.to_json(), "timed": len(here)}
    return TunedTable({**header, **near}, rows)


__all__ = ["Correction", "corrected", "features", "times_of"]
