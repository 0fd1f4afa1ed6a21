"""All kernel families together: what is compiled, what can be launched, what a name means.

`UNPROVEN` families and `CANDIDATES` are apart: nothing here but `parse`, `parse_instance`,
`unproven_configurations` and `UNPROVEN_INSTANCES` knows them, so that nobody builds, tries or chooses one of
them without naming it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from sassafras.core import SassafrasError

from ..problem.shape import Shape
from . import fallback, persistent, small, split_k, split_k_two_pass, unaligned
from . import persistent_instances as warp
from . import split_k_instances as cluster
from .base import TRIAL
from .fallback import FallbackConfig, FallbackInstance
from .persistent import PersistentConfig
from .persistent_instances import PersistentInstance
from .small import SmallConfig, SmallInstance
from .split_k import SplitKConfig
from .split_k_instances import SplitKInstance
from .split_k_two_pass import TwoPassSplitKConfig
from .unaligned import UnalignedConfig, UnalignedInstance

Instance = SmallInstance | FallbackInstance | SplitKInstance | PersistentInstance | UnalignedInstance
Config = SmallConfig | FallbackConfig | SplitKConfig | PersistentConfig | UnalignedConfig

#: instances and configurations of families that no GPU has found right on all that they are meant for, or
#: that no sweep has timed; none at present
UNPROVEN: tuple[type, ...] = ()
#: single instances of proven families that no GPU has timed yet, before they become `INSTANCES`
CANDIDATES: frozenset[Instance] = frozenset(
    () if TRIAL else (*cluster.CANDIDATES, *warp.CANDIDATES, *split_k_two_pass.CANDIDATES)
)


def proven(item: Instance | Config) -> bool:
    """Whether an instance or a configuration may be used without being asked for by name."""
    return not isinstance(item, UNPROVEN) and getattr(item, "instance", item) not in CANDIDATES


_TASK: tuple[Instance, ...] = (
    *small.INSTANCES,
    *fallback.INSTANCES,
    *cluster.INSTANCES,
    *cluster.CANDIDATES,
    *warp.INSTANCES,
    *warp.CANDIDATES,
    *unaligned.INSTANCES,
    *split_k_two_pass.INSTANCES,
    *split_k_two_pass.CANDIDATES,
)
#: compiled for the benchmark's task: FP16, B as k x n (nn) or n x k (tn), A row-major
INSTANCES: tuple[Instance, ...] = tuple(filter(proven, _TASK))
#: compiled for other callers: BF16, and A as k x m (nt, tt)
OTHER_INSTANCES: tuple[Instance, ...] = (*cluster.OTHER_INSTANCES, *warp.OTHER_INSTANCES)

_EPILOGUE: tuple[Instance, ...] = (
    *small.EPILOGUE_INSTANCES,
    *fallback.EPILOGUE_INSTANCES,
    *cluster.EPILOGUE_INSTANCES,
    *warp.EPILOGUE_INSTANCES,
    *unaligned.EPILOGUE_INSTANCES,
)
#: compiled when a call asks for an epilogue or batches (`epilogue`)
EPILOGUE_INSTANCES: tuple[Instance, ...] = tuple(filter(proven, _EPILOGUE))
#: of `UNPROVEN` families, and `CANDIDATES`; what brings kernels up builds and runs them
UNPROVEN_INSTANCES: tuple[Instance, ...] = tuple(i for i in (*_TASK, *_EPILOGUE) if not proven(i))


def _cluster_split(name: str) -> Config:
    """An entry's name that ends in ``p`` leaves sums for a second launch."""
    leaves = name.partition("/")[0].endswith("p")
    return TwoPassSplitKConfig.parse(name) if leaves else SplitKConfig.parse(name)


_PARSERS: dict[str, Callable[[str], Config]] = {
    "lean": SmallConfig.parse,
    "staged": FallbackConfig.parse,
    "cs": _cluster_split,
    "ws": PersistentConfig.parse,
    "any": UnalignedConfig.parse,
}


def configurations() -> Iterator[Config]:
    """Every configuration of the proven families for the benchmark's task, in a fixed order, legal or not."""
    return filter(proven, _task())


def unproven_configurations() -> Iterator[Config]:
    """The same for `UNPROVEN` families and `CANDIDATES`."""
    return itertools.filterfalse(proven, _task())


def _task() -> Iterator[Config]:
    return itertools.chain(
        small.configurations(),
        fallback.configurations(),
        split_k.configurations((*cluster.INSTANCES, *cluster.CANDIDATES)),
        persistent.configurations((*warp.INSTANCES, *warp.CANDIDATES)),
        unaligned.configurations(),
        split_k_two_pass.configurations(),
    )


def other_configurations() -> Iterator[Config]:
    """The same for `OTHER_INSTANCES`."""
    return itertools.chain(
        split_k.configurations(cluster.OTHER_INSTANCES),
        persistent.configurations(warp.OTHER_INSTANCES),
    )


def epilogue_configurations() -> Iterator[Config]:
    """The same for `EPILOGUE_INSTANCES`."""
    return filter(proven, _epilogue())


def _epilogue() -> Iterator[Config]:
    return itertools.chain(
        small.configurations(small.EPILOGUE_INSTANCES),
        fallback.configurations(fallback.EPILOGUE_INSTANCES),
        split_k.configurations(cluster.EPILOGUE_INSTANCES),
        persistent.configurations(warp.EPILOGUE_INSTANCES),
        unaligned.configurations(unaligned.EPILOGUE_INSTANCES),
    )


def kind(config: Config) -> str:
    """The family; kernels whose CTAs share operands are one of their own, being hard to estimate."""
    shared = "+shared" if getattr(config.instance, "shared", False) else ""
    return type(config).__name__ + shared


def dtype(config: Config) -> str:
    """``fp16`` or ``bf16``: what a configuration multiplies."""
    return str(getattr(config.instance, "dtype", "fp16"))


def with_dtype(config: Config, wanted: str) -> Config | None:
    """The configuration that differs in nothing but the type it multiplies; None where none is compiled."""
    if dtype(config) == wanted:
        return config
    instance = config.instance
    if not any(field.name == "dtype" for field in fields(instance)):
        return None
    other: Any = replace(instance, **{"dtype": wanted})  # type: ignore[arg-type]
    return replace(config, instance=other) if other in _compiled() else None


@lru_cache(maxsize=1)
def _compiled() -> frozenset[Instance]:
    return frozenset((*INSTANCES, *OTHER_INSTANCES))


def legal(
    shape: Shape, *, waste: bool = False, dtype: str = "fp16", layouts: tuple[str, ...] = ("nn", "tn")
) -> list[Config]:
    """Configurations that can run a shape; without those that surely waste, unless `waste`; proven ones.

    Args:
        dtype: ``fp16`` or ``bf16``.
        layouts: of nn, tn, nt, tt: the first letter says how B lies (t: n x k), the second how A (t: k x m).
    """
    task = dtype == "fp16" and set(layouts) <= {"nn", "tn"}
    found: Iterator[Config] = configurations()
    if not task:
        found = itertools.chain(found, other_configurations())
    return [
        c
        for c in found
        if c.layout in layouts
        and getattr(c, "dtype", "fp16") == dtype
        and c.why_illegal(shape) is None
        and (waste or c.dominated(shape) is None)
    ]


@lru_cache(maxsize=1 << 16)
def parse(name: str) -> Config:
    """The configuration of a name, of an `UNPROVEN` family, too. Raises SassafrasError."""
    family = name.split("_")[0]
    if family in _PARSERS:
        return _PARSERS[family](name)
    raise SassafrasError("no family has a configuration of this name", where=name)


def parse_instance(name: str) -> Instance:
    """The instance of an entry name, of an `UNPROVEN` family, too; or a second kernel.

    Raises SassafrasError: there is none.
    """
    for instance in (*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES, *UNPROVEN_INSTANCES):
        for one in (instance, *getattr(instance, "companions", ())):
            if one.name == name:
                return one
    raise SassafrasError("no instance has this name", where=name)
