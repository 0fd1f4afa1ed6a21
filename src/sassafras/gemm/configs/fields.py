"""Configurations as JSON objects, as every file keeps them: the kernel, then its parameters by their words.

    {"kernel": "split_k", "layout": "tn", "tile_m": 64, "tile_n": 128, "stages": 8, "swap_ab": false, ...,
     "cluster_split_k": 2, "rasterization": null, "pdl": true, "trigger_late": true, "one_cta_per_sm": false}

Each kernel's dataclasses say which parameters there are. ``rasterization`` is null (row after row), or gives
the rows or columns of tiles in a band: ``{"rows": 4}``.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any

from sassafras.core import SassafrasError

from . import names, rasterization, registry
from .base import Mode
from .registry import Config

#: fields that files of earlier versions lack in configurations of some kernels
_ADDED = {"dtype": "fp16"}
#: attributes whose field is ``rasterization``
_BANDS = ("band", "group")


def _parameters(part: Any) -> Iterator[tuple[str, Any]]:
    """(field, value) of an instance, a configuration or a mode."""
    for field in fields(part):
        if field.name in _BANDS:
            yield "rasterization", rasterization.to_fields(getattr(part, field.name))
        elif field.name not in ("instance", "mode"):
            yield field.name, getattr(part, field.name)


def to_fields(config: Config) -> dict[str, Any]:
    """The configuration as a JSON object; `from_fields` is the reverse."""
    parts = (config.instance, config, config.mode)
    return {"kernel": config.FAMILY, **{name: value for part in parts for name, value in _parameters(part)}}


@cache
def _kinds(kernel: str) -> dict[str, type | None]:
    """Field -> type of its values, None where it checks them itself."""
    of = registry.KERNELS[kernel]
    given = to_fields(of.configuration(of.instances[0]))
    return {name: None if name == "rasterization" else type(value) for name, value in given.items()}


def from_fields(given: Any) -> Config:
    """The configuration of a JSON object.

    Raises:
        SassafrasError: it is no object, names no kernel of this version, or a field is unknown, missing or of
            another type; or no kernel is compiled with these parameters.
    """
    if not isinstance(given, Mapping):
        raise SassafrasError("a configuration is a JSON object of fields", where=repr(given)[:80])
    name = given.get("kernel")
    if not isinstance(name, str) or name not in registry.KERNELS:
        hint = "one of " + ", ".join(registry.KERNELS)
        raise SassafrasError(f"there is no kernel {name!r}", where="configuration", hint=hint)
    kinds = _kinds(name)
    given = {**{field: value for field, value in _ADDED.items() if field in kinds}, **given}
    unknown = [f"there is no field {field!r}" for field in given if field not in kinds]
    missing = [f"the field {field!r} is missing" for field in kinds if field not in given]
    typed = [
        f"{field} is {given[field]!r}, which is no {kind.__name__}"
        for field, kind in kinds.items()
        if kind is not None and field in given and type(given[field]) is not kind
    ]
    if wrong := [*unknown, *missing, *typed]:
        raise SassafrasError(wrong[0], where=f"{name} configuration", hint="it has " + ", ".join(kinds))
    kernel = registry.KERNELS[name]
    instance = kernel.instance(**{f.name: given[f.name] for f in fields(kernel.instance)})
    if instance not in kernel.instances:
        raise SassafrasError("no kernel of this version has these parameters", where=instance.name)
    own = {
        f.name: rasterization.from_fields(given["rasterization"]) if f.name in _BANDS else given[f.name]
        for f in fields(kernel.configuration)
        if f.name not in ("instance", "mode")
    }
    mode = Mode(**{f.name: given[f.name] for f in fields(Mode)})
    return kernel.configuration(instance, **own, mode=mode)  # type: ignore[no-any-return]


class ConfigurationList:
    """Distinct configurations of a file, which its rows name by their places.

    Args:
        configurations: of which places are given out in this order.
    """

    def __init__(self, configurations: Iterable[Config]) -> None:
        self._places = {c: i for i, c in enumerate(dict.fromkeys(configurations))}

    def place(self, config: Config) -> int:
        """Where it stands."""
        return self._places[config]

    def to_json(self) -> list[dict[str, Any]]:
        """What the file keeps."""
        return [to_fields(config) for config in self._places]


def read_list(given: Sequence[Any]) -> list[Config | None]:
    """The configurations of a file by their places; None for those that no kernel of this version has.

    Raises:
        SassafrasError: it is no list.
    """
    if not isinstance(given, list | tuple):
        raise SassafrasError("no list of configurations", where=repr(given)[:80])
    return [known(one) for one in given]


def known(given: Any) -> Config | None:
    """A configuration of a file, as fields or by the name that files of earlier versions have; None for one
    that no kernel of this version has."""
    if isinstance(given, str):
        return names.known(given)
    try:
        return _unpacked(marshal.dumps(given, 2))
    except (SassafrasError, ValueError):  # marshal raises the latter for what is no JSON
        return None


@lru_cache(maxsize=4096)
def _unpacked(given: bytes) -> Config:
    """Each is read once: every selector reads the same lists. marshal tells 1 from True."""
    return from_fields(marshal.loads(given))
