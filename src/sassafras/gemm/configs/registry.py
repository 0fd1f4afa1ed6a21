"""All kernels together: what is compiled, what can be launched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from sassafras.core import SassafrasError

from ..problem.shape import LAYOUTS, Shape
from . import (
    fallback,
    few_rows,
    persistent,
    persistent_folded,
    persistent_pair,
    small,
    split_k,
    split_k_early,
    split_k_folded,
    split_k_two_pass,
    stream,
    unaligned,
)
from .fallback import FallbackConfig, FallbackInstance
from .persistent import PersistentConfig, PersistentInstance
from .persistent_folded import FoldedPersistentConfig, FoldedPersistentInstance
from .persistent_pair import PairConfig, PairInstance
from .small import SmallConfig, SmallInstance
from .split_k import SplitKConfig, SplitKInstance
from .split_k_early import EarlyInstance, EarlySplitKConfig
from .split_k_folded import FoldedInstance, FoldedSplitKConfig
from .split_k_two_pass import PartialsInstance, TwoPassSplitKConfig
from .stream import StreamConfig, StreamInstance
from .unaligned import UnalignedConfig, UnalignedInstance

Instance = (
    SmallInstance
    | FallbackInstance
    | SplitKInstance
    | PersistentInstance
    | UnalignedInstance
    | StreamInstance
)
Config = SmallConfig | FallbackConfig | SplitKConfig | PersistentConfig | UnalignedConfig | StreamConfig


def expression(names: str) -> re.Pattern[str]:
    """What finds names of kernels or configurations. Raises SassafrasError where it is none."""
    try:
        return re.compile(names)
    except re.error as error:
        raise SassafrasError(f"not a regular expression: {error}", where=names) from error


@dataclass(frozen=True)
class Kernel:
    """One kernel's dataclasses, and what of it is compiled.

    Attributes:
        configuration, instance: the classes.
        task: instances for the benchmark's task: FP16, B as k x n (nn) or n x k (tn), A row-major.
        other: for other callers: BF16, and A as k x m (nt, tt).
        epilogue: for calls that ask for an epilogue or batches (`epilogue`).
    """

    configuration: Any
    instance: Any
    task: tuple[Any, ...]
    other: tuple[Any, ...] = ()
    epilogue: tuple[Any, ...] = ()

    @property
    def instances(self) -> tuple[Any, ...]:
        """All of them."""
        return (*self.task, *self.other, *self.epilogue)


def _of(module: Any, configuration: Any, instance: Any, *more: Any) -> Kernel:
    """A module's kernel, and instances of it that further modules have."""

    def found(part: str) -> tuple[Any, ...]:
        lists = (getattr(m, f"{part}INSTANCES", ()) for m in (module, *more))
        return tuple(dict.fromkeys(i for instances in lists for i in instances))

    parts = map(found, ("", "OTHER_", "EPILOGUE_"))
    return Kernel(configuration, instance, *parts)


#: kernels by their names (`Configuration.FAMILY`)
KERNELS = {
    kernel.configuration.FAMILY: kernel
    for kernel in (
        _of(small, SmallConfig, SmallInstance),
        _of(fallback, FallbackConfig, FallbackInstance),
        _of(split_k, SplitKConfig, SplitKInstance, few_rows),
        _of(persistent, PersistentConfig, PersistentInstance),
        _of(unaligned, UnalignedConfig, UnalignedInstance),
        _of(split_k_two_pass, TwoPassSplitKConfig, PartialsInstance),
        _of(stream, StreamConfig, StreamInstance),
        _of(split_k_early, EarlySplitKConfig, EarlyInstance),
        _of(split_k_folded, FoldedSplitKConfig, FoldedInstance),
        _of(persistent_folded, FoldedPersistentConfig, FoldedPersistentInstance),
        _of(persistent_pair, PairConfig, PairInstance),
    )
}

#: `Kernel.task` of all, `Kernel.other`, `Kernel.epilogue`
INSTANCES: tuple[Instance, ...] = tuple(i for kernel in KERNELS.values() for i in kernel.task)
OTHER_INSTANCES: tuple[Instance, ...] = tuple(i for kernel in KERNELS.values() for i in kernel.other)
EPILOGUE_INSTANCES: tuple[Instance, ...] = tuple(i for kernel in KERNELS.values() for i in kernel.epilogue)


def configurations() -> Iterator[Config]:
    """Every configuration for the benchmark's task, in a fixed order, legal or not."""
    for kernel in KERNELS.values():
        yield from kernel.configuration.every(kernel.task)


def other_configurations() -> Iterator[Config]:
    """The same for `OTHER_INSTANCES`."""
    for kernel in KERNELS.values():
        yield from kernel.configuration.every(kernel.other)


def epilogue_configurations() -> Iterator[Config]:
    """The same for `EPILOGUE_INSTANCES`."""
    for kernel in KERNELS.values():
        yield from kernel.configuration.every(kernel.epilogue)


def with_dtype(config: Config, wanted: str, *, epilogue: bool = False) -> Config | None:
    """The configuration that differs in nothing but the type it multiplies; None where none is compiled.

    Args:
        epilogue: and that has an epilogue.
    """
    changes: dict[str, Any] = {"epilogue": True} if epilogue else {}
    if config.dtype != wanted:
        changes["dtype"] = wanted
    if not changes:
        return config
    instance: Any = config.instance
    if not {field.name for field in fields(instance)} >= set(changes):
        return None
    other = replace(instance, **changes)
    return replace(config, instance=other) if other in _compiled() else None


@lru_cache(maxsize=1)
def _compiled() -> frozenset[Instance]:
    return frozenset((*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES))


def legal(
    shape: Shape, *, waste: bool = False, dtype: str = "fp16", layouts: tuple[str, ...] = LAYOUTS
) -> list[Config]:
    """Configurations that can run a shape; without those that surely waste, unless `waste`.

    Args:
        dtype: ``fp16`` or ``bf16``.
        layouts: of nn, tn, nt, tt: the first letter says how B lies (t: n x k), the second how A (t: k x m).
    """
    found = list(configurations())
    if dtype != "fp16" or not set(layouts) <= set(LAYOUTS):
        found += other_configurations()
    return [
        c
        for c in found
        if c.layout in layouts
        and c.dtype == dtype
        and c.why_illegal(shape) is None
        and (waste or c.dominated(shape) is None)
    ]


def parse_instance(name: str) -> Instance:
    """The instance of an entry name, or a second kernel. Raises SassafrasError: there is none."""
    for instance in (*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES):
        for one in (instance, *instance.companions):
            if one.name == name:
                return one
    raise SassafrasError("no instance has this name", where=name)
