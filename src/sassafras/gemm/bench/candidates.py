"""Which of our configurations, and of cuBLASLt's algorithms, enter a selection: before anything is timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from sassafras.core import SassafrasError
from sassafras.cuda.cublas import LtAlgorithm

from ..configs import registry
from ..configs.backward import configurations, part
from ..configs.base import PLAIN
from ..configs.registry import Config, expression
from ..problem.shape import Shape
from ..select.dataset import Dataset, DatasetEntry, shipped
from ..select.table import TableRow, TunedTable, shipped_path

#: whose shipped dataset and table propose candidates
_GPU = "NVIDIA H200"
#: with `Options.only`: an estimate so many times the best recorded time is hopeless
_HOPELESS = 2.0
#: of another GPU's data set: times its best that a candidate may take, and that another kernel's fastest may
_CLOSE, _OTHER_KERNEL = 1.06, 1.25
_load = cache(TunedTable.load)  # a file has both layouts


def _allowed(exclude: str) -> Callable[[Config], bool]:
    """Whether a configuration is none of `Options.exclude`."""
    banned = expression(exclude) if exclude else None
    return lambda config: not (banned and banned.search(config.name))


def candidates_for(
    shape: Shape, layout: str, count: int, without: frozenset[str] = frozenset(), exclude: str = ""
) -> list[Config]:
    """The configurations of the first rung: neighbours' winners, then the estimate's favourites.

    The estimate ranks within a family; between families it is not to be trusted, so they take turns.

    Args:
        without: kernels (`Configuration.FAMILY`) that are left out.
        exclude: see `Options`.
    """
    allowed = _allowed(exclude)

    def tried(configs: Iterable[Config]) -> Iterator[Config]:
        return (c for c in configs if c.FAMILY not in without and allowed(c))

    by_family: dict[str, list[Config]] = {}
    for config in tried(ranked(shape, layout)):
        by_family.setdefault(config.FAMILY, []).append(config)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_family.values()))
    winners = list(dict.fromkeys(tried(neighbours_winners(shape, layout))))
    return list(dict.fromkeys([*winners, *filter(None, turns)]))[: max(count, len(winners))]


@lru_cache(maxsize=4)
def ranked(shape: Shape, layout: str) -> tuple[Config, ...]:
    """All legal configurations of a layout, best estimate first."""
    legal = registry.legal(shape, layouts=(layout,))
    return tuple(sorted(legal, key=lambda c: (c.estimate_us(shape), c.rank)))


@cache
def _rows(layout: str) -> tuple[list[TableRow], np.ndarray]:
    """Those of the shipped table where a kernel of ours won, and their extents (rows x 3)."""
    path = shipped_path(_GPU, part((layout,)))
    rows = _load(path).rows.values() if path.is_file() else ()
    found = [row for row in rows if row.layout == layout and row.ours]
    return found, np.array([(row.shape.m, row.shape.n, row.shape.k) for row in found]).reshape(-1, 3)


def neighbours_winners(shape: Shape, layout: str, count: int = 4) -> list[Config]:
    """What won at the nearest shapes of the shipped table, as far as it is legal here."""
    rows, extents = _rows(layout)
    apart = np.log2(extents) - np.log2([shape.m, shape.n, shape.k])
    nearest = np.argsort(np.linalg.norm(apart, axis=1), kind="stable")[:count]
    plain = (replace(rows[at].ours[0][0], mode=PLAIN) for at in nearest)
    return list(dict.fromkeys(c for c in plain if c.why_illegal(shape) is None))


def recorded(shape: Shape, layout: str, count: int, exclude: str = "") -> list[Config]:
    """The `count` fastest of the shipped dataset, as far as they are legal; none for other shapes.

    They are proposals: the kernels' text may have been another when they were timed.
    """
    entry, allowed = _entry(shape, layout), _allowed(exclude)
    known = (config for config, _ in entry.ranked(layout)) if entry else ()
    legal = (c for c in known if c.why_illegal(shape) is None and allowed(c))
    return list(itertools.islice(legal, count))


def carried(shape: Shape, layout: str, gpu: str, count: int, exclude: str = "") -> list[Config]:
    """What may win on a GPU that has no data set, by that of another; none for shapes that it lacks.

    The `count` fastest there within `_CLOSE` of the best, each in its fastest mode; the fastest of every
    other kernel within `_OTHER_KERNEL`; of each of these kernels the estimate's favourite. The estimate needs
    no other bandwidth for this: what the memory takes is the same for all configurations of a shape.
    """
    entry, allowed = _entry(shape, layout, gpu), _allowed(exclude)
    timed = [(c, us) for c, us in (entry.ranked(layout) if entry else ()) if allowed(c)]
    stems: dict[Config, tuple[Config, float]] = {}
    for config, us in sorted(timed, key=lambda row: row[1]):
        if config.why_illegal(shape) is None:
            stems.setdefault(replace(config, mode=PLAIN), (config, us))
    if not stems:
        return []
    best = min(us for _, us in stems.values())
    kept = [config for config, us in stems.values() if us <= _CLOSE * best][:count]
    families = {config.FAMILY for config in kept}
    for config, us in stems.values():
        if us <= _OTHER_KERNEL * best and config.FAMILY not in families:
            families.add(config.FAMILY)
            kept.append(config)
    there = {replace(config, mode=PLAIN) for config in kept}
    favourites = {c.FAMILY: c for c in reversed(ranked(shape, layout)) if allowed(c)}
    return kept + [c for family, c in favourites.items() if family in families and c not in there]


def changed(shape: Shape, layout: str, only: str, count: int, exclude: str = "") -> list[Config]:
    """Configurations whose name `only` finds, best estimate first, `count` at most; no hopeless ones.

    Every second place goes to the favourite of another instance, so that one does not fill all of them.
    """
    entry, allowed = _entry(shape, layout), _allowed(exclude)
    best = entry.ranked() if entry else []
    limit = _HOPELESS * best[0][1] if best else float("inf")
    legal = [
        c
        for c in matching(only)
        if c.layout == layout
        and c.dominated(shape) is None
        and c.why_illegal(shape) is None  # the cheaper first
        and allowed(c)
    ]
    timed = [(us, c) for c in legal if (us := c.estimate_us(shape)) < limit]
    hopeful = [config for _, config in sorted(timed, key=lambda pair: (pair[0], pair[1].rank))]
    first: dict[str, Config] = {}
    for config in hopeful:
        first.setdefault(config.instance.name, config)
    both = itertools.chain.from_iterable(itertools.zip_longest(hopeful, first.values()))
    return list(dict.fromkeys(filter(None, both)))[:count]


def recorded_algorithm(shape: Shape, layout: str, version: int) -> LtAlgorithm | None:
    """cuBLASLt's fastest of the shipped dataset; None when unknown, or of another version of the library."""
    entry, known = _entry(shape, layout), _dataset(part((layout,)), _GPU).header.get("cublaslt")
    found = entry.lt.get(layout) if entry and known == version else None
    return LtAlgorithm.from_json(found) if found else None


@lru_cache(maxsize=4)
def matching(only: str) -> tuple[Config, ...]:
    """Proven configurations whose name the expression finds. Raises SassafrasError when there are none."""
    wanted = expression(only)
    every = itertools.chain(registry.configurations(), configurations())
    found = tuple(c for c in every if wanted.search(c.name))
    if not found:
        raise SassafrasError(
            "no configuration has such a name", where=only, hint="sassafras gemm configs SHAPE"
        )
    return found


@lru_cache(maxsize=2)
def _dataset(of: str, gpu: str) -> Dataset:
    try:
        return shipped(gpu, of)
    except SassafrasError:
        return Dataset({}, ())


def _entry(shape: Shape, layout: str, gpu: str = _GPU) -> DatasetEntry | None:
    return _dataset(part((layout,)), gpu).entries.get(shape)
