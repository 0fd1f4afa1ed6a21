"""A sweep's measurements as arrays: for each shape its configurations, their features and their times.

Learning and choosing then need no GPU: a "measurement" is a look into the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.gemm.configs import registry
from sassafras.gemm.problem.launch import MULTIPROCESSORS
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.cost_model import estimate_us
from sassafras.gemm.select.dataset import layout_of

from ..gemm_json import to_fields


@dataclass(frozen=True, slots=True)
class Problem:
    """One shape.

    Attributes:
        shape: the problem.
        names: configurations, sorted by the static estimate (the rule-based chooser's order).
        features: float32 (configurations, features): of shape and configuration, not standardised.
        times: float64, microseconds by configuration.
    """

    shape: Shape
    names: tuple[str, ...]
    features: np.ndarray
    times: np.ndarray

    @property
    def best(self) -> float:
        """The shortest time."""
        return float(self.times.min())

    def fraction(self, chosen: Sequence[int]) -> float:
        """Best time / shortest time among the chosen: 1 when the best is among them."""
        return self.best / float(self.times[list(chosen)].min())


class Table:
    """Problems with features of equal width.

    Args:
        times: shape -> configuration name -> microseconds.
        source: where the figures come from.
        measured: False for a stand-in: nothing that was learnt from it may be published.

    Raises:
        SassafrasError: no shape has two configurations.
    """

    def __init__(
        self, times: Mapping[Shape, Mapping[str, float]], *, source: str, measured: bool = True
    ) -> None:
        self.source, self.measured = source, measured
        usable = {shape: row for shape, row in times.items() if len(row) >= 2}
        if not usable:
            raise SassafrasError(
                "a table to learn from needs shapes with at least two timed configurations each",
                where=source,
                hint="the sweep's dataset has them; hgemm-offline.json holds each shape's winner only",
            )
        names = sorted({name for row in usable.values() for name in row})
        self._configs: dict[str, Any] = {name: registry.parse(name) for name in names}
        self.columns = columns()
        self.problems = [self._problem(shape, row) for shape, row in sorted(usable.items())]

    def config(self, name: str) -> Any:
        """The configuration of a name that occurs."""
        return self._configs[name]

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def pairs(self) -> int:
        """(shape, configuration) pairs."""
        return sum(len(problem.names) for problem in self.problems)

    def _problem(self, shape: Shape, row: Mapping[str, float]) -> Problem:
        estimates = {name: estimate_us(self._configs[name], shape) for name in row}
        names = sorted(row, key=lambda name: (estimates[name], name))
        found = features([self._configs[n] for n in names], shape, [estimates[n] for n in names])
        return Problem(shape, tuple(names), found, np.array([row[n] for n in names], float))

    @classmethod
    def of_dataset(cls, dataset: Any) -> Table:
        """A sweep's dataset (`sassafras.gemm.select.dataset.Dataset`): entries with ``shape`` and ``ours``.

        Plain launches only: a sweep times the modes in which launches overlap for its leaders alone, so that
        a mode among the choices would give the leaders away. Without configurations of kernels that are gone.
        """
        times = {
            entry.shape: {
                name: float(us) for name, (us, _) in entry.ours.items() if "+" not in name and layout_of(name)
            }
            for entry in dataset
        }
        header = dataset.header
        source = f"{header.get('gpu')}, {header.get('date')}, commit {header.get('commit')}"
        return cls(times, source=source, measured=not header.get("modelled"))

    @classmethod
    def stand_in(cls, shapes: Iterable[Shape], *, most: int = 128, seed: int = 0) -> Table:
        """The static estimate, distorted by a smooth random function: to try the machinery, never a result.

        Args:
            shapes: problems.
            most: configurations a shape, those that the estimate likes best and some at random.
            seed: of the distortion.
        """
        rng = np.random.default_rng(seed)
        times: dict[Shape, dict[str, float]] = {}
        weights: np.ndarray | None = None
        for shape in shapes:
            configs = registry.legal(shape)
            configs.sort(key=lambda c: (estimate_us(c, shape), c.name))
            if len(configs) > most:
                half = most // 2
                rest = rng.permutation(len(configs) - half)[: most - half] + half
                configs = configs[:half] + [configs[i] for i in sorted(rest)]
            row = {}
            for config in configs:
                estimate = estimate_us(config, shape)
                found = pair_features(config, shape, estimate)
                if weights is None:
                    weights = rng.normal(size=(found.size, 6))
                bend = float(np.sin(found @ weights).mean())
                row[config.name] = estimate * math.exp(0.4 * bend)
            if len(row) >= 2:
                times[shape] = row
        return cls(times, source="the static estimate, distorted: a stand-in", measured=False)


#: columns of `pair_features`, and which of them (from the end) holds the static estimate
_PAIR_COLUMNS = 16
ESTIMATE = -2


def split(config: Any, shape: Shape) -> float:
    """Into how many parts k is split."""
    return float(getattr(config, "ranges", config.slices))


def pair_features(config: Any, shape: Shape, estimate: float) -> np.ndarray:
    """What a shape and a configuration are together, (`_PAIR_COLUMNS`,), mostly logarithms to base 2."""
    rows, columns = config.tile
    tiles_m, tiles_n = config.tiles(shape)
    tiles = tiles_m * tiles_n
    slices = split(config, shape)
    waves = tiles * slices / MULTIPROCESSORS
    depth = shape.k / slices
    values = [
        math.log2(shape.m),
        math.log2(shape.n),
        math.log2(shape.k),
        math.log2(shape.flop),
        math.log2(tiles),
        math.log2(waves),
        math.log2(math.ceil(waves) / waves),
        shape.m / (tiles_m * rows) if not config.swapped else shape.n / (tiles_m * rows),
        shape.n / (tiles_n * columns) if not config.swapped else shape.m / (tiles_n * columns),
        math.log2(depth),
        math.log2(rows * columns / (rows + columns)),
        math.log2(shape.k * (rows + columns) * 2.0 * tiles),  # bytes that cross L2
        math.log2(config.threads),
        math.log2(max(1, config.shared_bytes) / 1024 + 1),
        math.log2(estimate),
        math.log2(max(shape.flop / 790e6, shape.nbytes / 4.3e6) / estimate),
    ]
    return np.array(values, np.float64)


@lru_cache(maxsize=1)
def _layout() -> dict[tuple[str, Any], int]:
    """(field, word or None) -> column, over all configurations there are: the same for every table."""
    found: dict[tuple[str, Any], int] = {}
    for config in registry.configurations():
        for field, value in to_fields(config).items():
            found.setdefault((field, value) if isinstance(value, str) else (field, None), len(found))
    return found


def columns() -> int:
    """Features a (shape, configuration) pair has."""
    return len(_layout()) + 2 + _PAIR_COLUMNS


def features(configs: Sequence[Any], shape: Shape, estimates: Sequence[float]) -> np.ndarray:
    """float32 (configurations, `columns`): logarithms of numbers, indicators of words, `pair_features`."""
    where = _layout()
    found = np.zeros((len(configs), columns()), np.float32)
    for row, config, estimate in zip(found, configs, estimates, strict=True):
        for field, value in to_fields(config).items():
            if isinstance(value, str):
                row[where[field, value]] = 1.0
            else:
                number = float(value)  # negative ones are kinds (orders of tiles), not sizes
                row[where[field, None]] = math.copysign(math.log2(1.0 + abs(number)), number)
        row[len(where)] = math.log2(max(1, config.slices))
        row[len(where) + 1] = float(config.layout == "nn")
        row[-_PAIR_COLUMNS:] = pair_features(config, shape, estimate)
    return found


def unmeasured(shape: Shape, *, most: int = 512) -> tuple[Problem, list[Any]]:
    """A shape that nobody measured, with the configurations that the estimate likes best: times are NaN.

    Raises:
        SassafrasError: no configuration can run it.
    """
    configs = sorted(registry.legal(shape), key=lambda c: (estimate_us(c, shape), c.name))[:most]
    if not configs:
        raise SassafrasError("no configuration can run this shape", where=str(shape))
    found = features(configs, shape, [estimate_us(c, shape) for c in configs])
    names = tuple(c.name for c in configs)
    return Problem(shape, names, found, np.full(len(configs), np.nan)), configs


def held_out(problems: Sequence[Problem], axis: str, values: Iterable[int]) -> tuple[list[int], list[int]]:
    """(training, test) indices: a test problem has one of `values` as its extent ``m``, ``n`` or ``k``.

    No shape with such an extent is trained on, so that a whole value is new to what was learnt.

    Raises:
        SassafrasError: one of the two would be empty.
    """
    chosen = set(values)
    test = [i for i, problem in enumerate(problems) if getattr(problem.shape, axis) in chosen]
    train = [i for i in range(len(problems)) if i not in set(test)]
    if not test or not train:
        raise SassafrasError(f"nothing is left to train on or to test with {axis} in {sorted(chosen)}")
    return train, test
