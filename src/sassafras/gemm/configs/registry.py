"""All kernels together: what is compiled, what can be launched, what a name means."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from sassafras.core import SassafrasError

from ..problem.launch import SHARED_LIMIT
from ..problem.shape import LAYOUTS, Shape
from . import fallback, persistent, small, split_k, split_k_two_pass, unaligned
from .fallback import FallbackConfig, FallbackInstance
from .persistent import PersistentConfig, PersistentInstance
from .small import SmallConfig, SmallInstance
from .split_k import SplitKConfig, SplitKInstance
from .split_k_two_pass import TwoPassSplitKConfig
from .unaligned import UnalignedConfig, UnalignedInstance

Instance = SmallInstance | FallbackInstance | SplitKInstance | PersistentInstance | UnalignedInstance
Config = SmallConfig | FallbackConfig | SplitKConfig | PersistentConfig | UnalignedConfig

#: compiled for the benchmark's task: FP16, B as k x n (nn) or n x k (tn), A row-major
INSTANCES: tuple[Instance, ...] = (
    *small.INSTANCES,
    *fallback.INSTANCES,
    *split_k.INSTANCES,
    *persistent.INSTANCES,
    *unaligned.INSTANCES,
    *split_k_two_pass.INSTANCES,
)
#: compiled for other callers: BF16, and A as k x m (nt, tt)
OTHER_INSTANCES: tuple[Instance, ...] = (
    *split_k.OTHER_INSTANCES,
    *persistent.OTHER_INSTANCES,
    *split_k_two_pass.OTHER_INSTANCES,
)
#: compiled when a call asks for an epilogue or batches (`epilogue`)
EPILOGUE_INSTANCES: tuple[Instance, ...] = (
    *small.EPILOGUE_INSTANCES,
    *fallback.EPILOGUE_INSTANCES,
    *split_k.EPILOGUE_INSTANCES,
    *persistent.EPILOGUE_INSTANCES,
    *unaligned.EPILOGUE_INSTANCES,
)


def _split_k(name: str) -> Config:
    """An entry's name that ends in ``p`` leaves sums for a second launch."""
    leaves = name.partition("/")[0].endswith("p")
    return TwoPassSplitKConfig.parse(name) if leaves else SplitKConfig.parse(name)


_PARSERS: dict[str, Callable[[str], Config]] = {
    "lean": SmallConfig.parse,
    "staged": FallbackConfig.parse,
    "cs": _split_k,
    "ws": PersistentConfig.parse,
    "any": UnalignedConfig.parse,
}


def configurations() -> Iterator[Config]:
    """Every configuration for the benchmark's task, in a fixed order, legal or not."""
    return itertools.chain(
        small.configurations(),
        fallback.configurations(),
        split_k.configurations(split_k.INSTANCES),
        persistent.configurations(persistent.INSTANCES),
        unaligned.configurations(),
        split_k_two_pass.configurations(split_k_two_pass.INSTANCES),
    )


def other_configurations() -> Iterator[Config]:
    """The same for `OTHER_INSTANCES`."""
    return itertools.chain(
        split_k.configurations(split_k.OTHER_INSTANCES),
        persistent.configurations(persistent.OTHER_INSTANCES),
        split_k_two_pass.configurations(split_k_two_pass.OTHER_INSTANCES),
    )


def epilogue_configurations() -> Iterator[Config]:
    """The same for `EPILOGUE_INSTANCES`."""
    return itertools.chain(
        small.configurations(small.EPILOGUE_INSTANCES),
        fallback.configurations(fallback.EPILOGUE_INSTANCES),
        split_k.configurations(split_k.EPILOGUE_INSTANCES),
        persistent.configurations(persistent.EPILOGUE_INSTANCES),
        unaligned.configurations(unaligned.EPILOGUE_INSTANCES),
    )


def kind(config: Config) -> str:
    """The kernel that it is of, `Configuration.FAMILY`."""
    return config.FAMILY


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
    shape: Shape, *, waste: bool = False, dtype: str = "fp16", layouts: tuple[str, ...] = LAYOUTS
) -> list[Config]:
    """Configurations that can run a shape; without those that surely waste, unless `waste`.

    Args:
        dtype: ``fp16`` or ``bf16``.
        layouts: of nn, tn, nt, tt: the first letter says how B lies (t: n x k), the second how A (t: k x m).
    """
    found: Iterator[Config] = configurations()
    if dtype != "fp16" or not set(layouts) <= set(LAYOUTS):
        found = itertools.chain(found, other_configurations())
    return [
        c
        for c in found
        if c.layout in layouts
        and c.dtype == dtype
        and c.why_illegal(shape) is None
        and (waste or c.dominated(shape) is None)
    ]


@lru_cache(maxsize=1 << 16)
def parse(name: str) -> Config:
    """The configuration of a name. Raises SassafrasError."""
    family = name.split("_")[0]
    if family in _PARSERS:
        return _PARSERS[family](name)
    raise SassafrasError("no kernel has a configuration of this name", where=name)


@lru_cache(maxsize=1 << 16)
def renamed(name: str) -> str:
    """Today's name of what a data set, a table or a model calls by an earlier one; other names as they are.

    Earlier names of split-K kernels do not say the blocks of a stage. Their times are of a slower start.
    Where the sums of slices want room beside the stages, today's kernel has fewer of these.
    """
    if found := re.fullmatch(r"(cs_\w+_s)(\d+)(/c\d(?:g\d+)?(?:\+\w+)?)", name):
        stem, stages, rest = found.groups()
        for fewer in range(int(stages), 3, -1):
            try:
                config = parse(f"{stem}{fewer}q1{rest}")
            except SassafrasError:
                continue
            if config.shared_bytes <= SHARED_LIMIT:
                return config.name
    return name


def parse_instance(name: str) -> Instance:
    """The instance of an entry name, or a second kernel. Raises SassafrasError: there is none."""
    for instance in (*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES):
        for one in (instance, *getattr(instance, "companions", ())):
            if one.name == name:
                return one
    raise SassafrasError("no instance has this name", where=name)
