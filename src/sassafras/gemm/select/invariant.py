"""Batch invariance: which kernels may serve where a row's bits must not depend on the other rows.

Configurations that cut k at the same places give equal bits for equal rows (`Configuration.cuts`). So the
cuts follow from n and k alone, and each number of rows has the fastest configuration of that class.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import chain

from ..configs import few_rows, registry, stream
from ..configs.base import PLAIN, Mode, cuts_at
from ..configs.epilogue import ALONE, Batch
from ..configs.persistent_folded import FoldedPersistentConfig
from ..configs.registry import Config
from ..configs.split_k_folded import FoldedSplitKConfig
from ..configs.tma_wgmma import TILE_K
from ..problem.shape import Shape
from .epilogue_selector import flat
from .selector import Legal, Selector

#: columns of C from which tiles of few rows fill the GPU without a split; k below which a split costs more
_WIDE, _SHORT = 2560, 2048
#: a fold's speed over that of the same tile without a split: as measured, and as a model of the time says it
_SPEED = {FoldedSplitKConfig: 0.97, FoldedPersistentConfig: 0.98}


def ranges_of(n: int, k: int) -> int:
    """Into how many ranges k is cut for n columns of C, whatever the number of rows: 1, 4 or 8.

    Found by the shipped predictor, as the least loss over 1 to 128 rows. A rule of this version: where it
    changes, so do bits.
    """
    if n > _WIDE or k < _SHORT or 3 * k < 4 * n:
        return 1
    return 8 if k >= 8 * n else 4


def cuts_of(n: int, k: int) -> tuple[int, ...]:
    """Where k is cut for n columns of C (`Configuration.cuts`)."""
    return cuts_at(k, ranges_of(n, k), TILE_K)


#: kernels with an order of sums of their own (`Configuration.cuts` is None)
_OWN = ("small", "stream")


@lru_cache(maxsize=64)
def _compiled(layout: str, dtype: str, epilogue: bool, ranges: int) -> tuple[Config, ...]:
    """Configurations of so many ranges, legal or not, in a fixed order."""
    plain = (registry.configurations, registry.other_configurations)
    every = chain.from_iterable(f() for f in ((registry.epilogue_configurations,) if epilogue else plain))
    kinds = layout, dtype, ranges
    return tuple(c for c in every if c.FAMILY not in _OWN and (c.layout, c.dtype, c.ranges) == kinds)


def _unsplit(config: Config) -> Config:
    """A fold's tile without a split, which stands for it; else the configuration."""
    return config.unsplit if isinstance(config, FoldedSplitKConfig | FoldedPersistentConfig) else config


def members(shape: Shape, layout: str, dtype: str, legal: Legal, *, epilogue: bool = False) -> list[Config]:
    """Configurations of the class of (n, k) that may serve, without those that surely waste, if any is left.

    Args:
        legal: whether a configuration can serve the problem at hand.
        epilogue: of instances with an epilogue.
    """
    wanted = cuts_of(shape.n, shape.k)
    compiled = _compiled(layout, dtype, epilogue, len(wanted) + 1)
    able = [c for c in compiled if c.cuts(shape) == wanted]
    possible = [c for c in able if legal(c)]
    return [c for c in possible if _unsplit(c).dominated(shape) is None] or possible


_FEW = frozenset((*few_rows.INSTANCES, *few_rows.OTHER_INSTANCES))


def _few(shape: Shape) -> bool:
    rows, elements = stream.COLUMNS < shape.m <= few_rows.MOST, shape.n * shape.k
    return rows and elements >= stream.LEAST_ELEMENTS and ranges_of(shape.n, shape.k) == 1


def choose(
    chooser: Selector | None,
    shape: Shape,
    layout: str,
    dtype: str,
    legal: Legal,
    *,
    epilogue: bool = False,
    batch: Batch = ALONE,
) -> Config | None:
    """The fastest of `members`: as it was timed, or else predicted, or else estimated; None without any.

    A large B for few rows, with k whole: by `few_rows`'s cost model. On an H100 its tiles took 0.987 of the
    time of the predictor's, in geometric mean of 48 products of 16 to 64 rows where they differ.

    Args:
        chooser: the GPU's; None: estimates decide.
        batch: products of this shape.
    """
    found = members(shape, layout, dtype, legal, epilogue=epilogue)
    if not found:
        return None
    row = chooser.table.get(shape, layout) if chooser and batch.count == 1 else None
    for timed, _ in row.ours if row else ():
        same = registry.with_dtype(timed, dtype, epilogue=epilogue)
        if same is not None and same.stem in {c.stem for c in found}:
            return same
    few = [c for c in found if c.instance in _FEW] if batch.count == 1 and _few(shape) else []
    if few:
        return replace(min(few, key=lambda c: (few_rows.cost_us(c, shape), c.rank)), mode=Mode(pdl=True))
    model = chooser.model_of(layout) if chooser else None
    twins = {_unsplit(c): c for c in found}
    known = [twin for twin in twins if model is not None and model.knows(twin)]
    if model is None or not known or batch.count > 1:
        return min(found, key=lambda c: (c.estimate_us(flat(c, shape, batch)), c.rank))
    ranked = model.speedups(known, shape)
    plain = [(speedup, config, twins[replace(config, mode=PLAIN)]) for speedup, config in ranked]
    _, config, served = max(plain, key=lambda one: one[0] * _SPEED.get(type(one[2]), 1.0))
    return replace(served, mode=config.mode)
