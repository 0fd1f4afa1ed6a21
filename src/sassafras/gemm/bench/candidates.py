"""Which of our configurations, and of cuBLASLt's algorithms, enter a selection: before anything is timed."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.cuda.cublas import LtAlgorithm

from ..configs import registry
from ..configs.backward import configurations, part
from ..configs.base import PLAIN
from ..configs.registry import Config
from ..problem.shape import Shape
from ..select.cost_model import estimate_us
from ..select.dataset import Dataset, shipped

#: whose shipped dataset and table propose candidates
_GPU = "NVIDIA H200"
#: with `Options.only`: an estimate so many times the best recorded time is hopeless
_HOPELESS = 2.0


def candidates_for(
    shape: Shape, layout: str, count: int, without: frozenset[str] = frozenset(), exclude: str = ""
) -> list[Config]:
    """The configurations of the first rung: neighbours' winners, then the estimate's favourites.

    The estimate ranks within a family; between families it is not to be trusted, so they take turns.

    Args:
        without: families (`families.kind`) that are left out.
        exclude: see `Options`.
    """
    banned = re.compile(exclude) if exclude else None

    def tried(config: Config) -> bool:
        return registry.kind(config) not in without and not (banned and banned.search(config.name))

    by_family: dict[str, list[Config]] = {}
    for config in filter(tried, ranked(shape, layout)):
        by_family.setdefault(registry.kind(config), []).append(config)
    winners = neighbours_winners(shape, layout)
    chosen: dict[Config, None] = dict.fromkeys(c for c in winners if tried(c))
    longest = max((len(members) for members in by_family.values()), default=0)
    for index in range(longest):
        for members in by_family.values():
            if index < len(members) and len(chosen) < count:
                chosen[members[index]] = None
    return list(chosen)


@lru_cache(maxsize=4)
def ranked(shape: Shape, layout: str) -> tuple[Config, ...]:
    """All legal configurations of a layout, best estimate first."""
    legal = registry.legal(shape, layouts=(layout,))
    return tuple(sorted(legal, key=lambda c: (estimate_us(c, shape), c.name)))


def neighbours_winners(shape: Shape, layout: str, count: int = 4) -> list[Config]:
    """What won at the nearest shapes of the shipped table, as far as it is legal here."""
    from ..select.selector import parsed
    from ..select.table import TunedTable, shipped_path

    path = shipped_path(_GPU, part((layout,)))
    if not path.is_file():
        return []
    if path not in _TABLES:
        _TABLES[path] = TunedTable.load(path)
    rows = [row for row in _TABLES[path].rows.values() if row.layout == layout and row.ours]
    here = np.log2([shape.m, shape.n, shape.k])
    rows.sort(key=lambda r: float(np.linalg.norm(np.log2([r.shape.m, r.shape.n, r.shape.k]) - here)))
    found = [parsed(row.ours[0][0]) for row in rows[:count]]
    plain = (replace(c, mode=PLAIN) for c in found if c is not None)
    return list(dict.fromkeys(c for c in plain if c.why_illegal(shape) is None))


_TABLES: dict[Any, Any] = {}


def recorded(shape: Shape, layout: str, count: int, exclude: str = "") -> list[Config]:
    """The `count` fastest of the shipped dataset, as far as they are legal; none for other shapes.

    They are proposals: a name means the same parameters whatever the kernels' text was when it was timed.
    """
    entry = _entry(shape, layout)
    if entry is None:
        return []
    banned = re.compile(exclude) if exclude else None
    found: list[Config] = []
    for name, _ in entry.ranked(layout):
        if len(found) == count:
            break
        try:
            config = registry.parse(name)
        except SassafrasError:  # a kernel that is gone
            continue
        legal = config.why_illegal(shape) is None
        if legal and not (banned and banned.search(name)):
            found.append(config)
    return found


def changed(shape: Shape, layout: str, only: str, count: int, exclude: str = "") -> list[Config]:
    """Configurations whose name `only` finds, best estimate first, `count` at most; no hopeless ones.

    Every second place goes to the favourite of another instance, so that one does not fill all of them.
    """
    banned = re.compile(exclude) if exclude else None
    entry = _entry(shape, layout)
    best = entry.ranked() if entry else []
    limit = _HOPELESS * best[0][1] if best else float("inf")
    ranked = sorted(
        (estimate_us(c, shape), c.name, c)
        for c in matching(only)
        if c.layout == layout
        and c.dominated(shape) is None
        and c.why_illegal(shape) is None  # the cheaper first
        and not (banned and banned.search(c.name))
    )
    hopeful = [config for us, _, config in ranked if us < limit]
    first: dict[str, Config] = {}
    for config in hopeful:
        first.setdefault(config.instance.name, config)
    favourites = list(first.values())
    taken: dict[Config, None] = {}
    for index in range(len(hopeful)):
        for one in (hopeful[index], *favourites[index : index + 1]):
            if len(taken) < count:
                taken[one] = None
    return list(taken)


def recorded_algorithm(shape: Shape, layout: str, version: int) -> LtAlgorithm | None:
    """cuBLASLt's fastest of the shipped dataset; None when unknown, or of another version of the library."""
    entry, dataset = _entry(shape, layout), _dataset(part((layout,)))
    if entry is None or dataset is None or dataset.header.get("cublaslt") != version:
        return None
    found = entry.lt.get(layout)
    return LtAlgorithm.from_json(found) if found else None


@lru_cache(maxsize=4)
def matching(only: str) -> tuple[Config, ...]:
    """Proven configurations whose name the expression finds. Raises SassafrasError when there are none."""
    try:
        wanted = re.compile(only)
    except re.error as error:
        raise SassafrasError(f"not a regular expression: {error}", where=only) from error
    every = itertools.chain(registry.configurations(), configurations())
    found = tuple(c for c in every if wanted.search(c.name))
    if not found:
        raise SassafrasError(
            "no configuration has such a name", where=only, hint="sassafras gemm configs SHAPE"
        )
    return found


@lru_cache(maxsize=2)
def _dataset(of: str) -> Dataset | None:
    try:
        return shipped(_GPU, of)
    except SassafrasError:
        return None


def _entry(shape: Shape, layout: str) -> Any:
    dataset = _dataset(part((layout,)))
    return dataset.entries.get(shape) if dataset else None
