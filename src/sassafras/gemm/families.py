"""All kernel families together: what is compiled, what can be launched, what a name means."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from sassafras.core import SassafrasError

from . import lean, staged
from .lean import LeanConfig, LeanInstance
from .shapes import Shape
from .staged import StagedConfig, StagedInstance

Instance = LeanInstance | StagedInstance
Config = LeanConfig | StagedConfig

#: all that are compiled
INSTANCES: tuple[Instance, ...] = (*lean.INSTANCES, *staged.INSTANCES)


def configurations() -> Iterator[Config]:
    """Every configuration of every family, in a fixed order, legal or not."""
    return itertools.chain(lean.configurations(), staged.configurations())


def legal(shape: Shape, *, waste: bool = False) -> list[Config]:
    """Configurations that can run a shape; without those that surely waste, unless `waste`."""
    return [c for c in configurations() if c.reject(shape) is None and (waste or c.wasteful(shape) is None)]


def parse(name: str) -> Config:
    """The configuration of a name. Raises SassafrasError."""
    if name.startswith("lean_"):
        return LeanConfig.parse(name)
    if name.startswith("staged_"):
        return StagedConfig.parse(name)
    raise SassafrasError("no family has a configuration of this name", where=name)


def parse_instance(name: str) -> Instance:
    """The instance of an entry name. Raises SassafrasError."""
    for instance in INSTANCES:
        if instance.name == name:
            return instance
    raise SassafrasError("no instance has this name", where=name)
