"""`GemmSpace` as JSON: a schema for constrained answers, exact errors for those that break it.

The fields of a configuration are read from its dataclass and its instance's, so that a new kernel family
needs nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from sassafras.core import Candidate

from .answer import AnswerError, last_json


class ConfigLike(Protocol):
    """What is needed of a configuration: a dataclass with an ``instance`` that is one too, and a name."""

    @property
    def name(self) -> str:
        """Unique among configurations."""
        ...


Config = TypeVar("Config", bound=ConfigLike)
Fields = dict[str, Any]


def to_fields(config: Any) -> Fields:
    """A configuration as a flat JSON object: its family, then its own and its instance's fields.

    What JSON has no word for is given as text.
    """
    family = type(config).__name__.removesuffix("Config").lower()
    found: Fields = {"family": family}
    for part in (config.instance, config):
        for field in fields(part):
            if field.name != "instance":
                value = getattr(part, field.name)
                found[field.name] = value if isinstance(value, (str, int, float)) else str(value)
    return found


class JsonConfigs(Generic[Config]):
    """The configurations of a space, by their fields.

    Args:
        configs: those that are legal for the shape.
        all_configs: every configuration that exists, for errors that say why one is not legal here.
        why_illegal: why a configuration cannot run the shape, or None.
    """

    def __init__(
        self, configs: Sequence[Config], all_configs: Sequence[Config] = (), why_illegal: Any = None
    ) -> None:
        self._legal = {_key(to_fields(c)): c for c in configs}
        self._others = {_key(to_fields(c)): c for c in all_configs}
        self._why_illegal = why_illegal
        self._values: dict[str, dict[str, list[Any]]] = {}
        for config in configs:
            given = to_fields(config)
            family = self._values.setdefault(given["family"], {})
            for name, value in given.items():
                if value not in family.setdefault(name, []):
                    family[name].append(value)

    def schema(self) -> dict[str, Any]:
        """JSON schema of a whole configuration. Fields are independent in it, legality is not: see `read`."""
        options = []
        for family, values in self._values.items():
            properties: dict[str, Any] = {
                name: {"enum": sorted(allowed, key=_order)}
                for name, allowed in values.items()
                if name != "family"
            }
            properties = {"family": {"enum": [family]}, **properties}
            options.append(
                {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                    "additionalProperties": False,
                }
            )
        return options[0] if len(options) == 1 else {"anyOf": options}

    def read(self, text: str, parent: Config | None = None) -> Config:
        """The configuration that an answer names: a whole one, or an edit of `parent`.

        Raises:
            AnswerError: which field is wrong, what it may be, or why the whole is not legal.
        """
        given = last_json(text)
        if isinstance(inner := given.get("edit"), Mapping):
            given = dict(inner)
        base = to_fields(parent) if parent is not None else {}
        family = given.get("family", base.get("family"))
        if not isinstance(family, str) or family not in self._values:
            raise AnswerError(
                f"family {family!r} does not exist", hint=f"one of {', '.join(map(repr, self._values))}"
            )
        values = self._values[family]
        if unknown := [name for name in given if name not in values]:
            raise AnswerError(
                f"there is no field {unknown[0]!r} in family {family!r}", hint="it has " + ", ".join(values)
            )
        whole = {**({} if base.get("family") != family else base), **given, "family": family}
        if missing := [name for name in values if name not in whole]:
            raise AnswerError(f"the field {missing[0]!r} is missing", hint=_one_of(values[missing[0]]))
        for name, value in whole.items():
            if not any(value == v and type(value) is type(v) for v in values[name]):
                raise AnswerError(f"{name} may not be {json.dumps(value)}", hint=_one_of(values[name]))
        key = _key(whole)
        if (config := self._legal.get(key)) is not None:
            return config
        other = self._others.get(key)
        why = self._why_illegal(other) if other is not None and self._why_illegal is not None else None
        raise AnswerError(
            f"no such kernel is legal for this shape: {why or self._nearest(whole)}",
            hint="each field alone is fine, their combination is not",
        )

    def _nearest(self, whole: Fields) -> str:
        """A legal configuration that differs in the fewest fields, in words."""
        best, differs = None, len(whole) + 1
        for config in self._legal.values():
            mine = to_fields(config)
            if mine["family"] == whole["family"]:
                count = sum(mine[n] != whole.get(n) for n in mine)
                if count < differs:
                    best, differs = mine, count
        if best is None:
            return "nothing of this family is"
        changed = {n: v for n, v in best.items() if v != whole.get(n)}
        return f"the nearest legal one has {json.dumps(changed)}"


def _key(given: Fields) -> str:
    return json.dumps(given, sort_keys=True)


def _order(value: Any) -> tuple[str, Any]:
    return (type(value).__name__, value)


def _one_of(values: Sequence[Any]) -> str:
    shown = sorted(values, key=_order)
    return "one of " + ", ".join(json.dumps(v) for v in shown[:24]) + (" ..." if len(shown) > 24 else "")


class GemmProposals:
    """A `GemmSpace` that a proposer can fill: a `core.Space` whose states are shown and read as JSON.

    Args:
        space: any space whose states are configurations, with ``configs`` and ``shape``.
    """

    def __init__(self, space: Any) -> None:
        from sassafras.gemm.configs import registry

        self.space = space
        self._tried: set[str] = set()
        shape = space.shape
        self._json: JsonConfigs[Any] = JsonConfigs(
            space.configs, tuple(registry.configurations()), lambda config: config.why_illegal(shape)
        )

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """See `JsonConfigs.schema`."""
        return self._json.schema()

    @property
    def description(self) -> str:
        """What makes two of these spaces the same."""
        return f"{len(self.space.configs)} HGEMM configurations for {self.space.shape}"

    def choices(self) -> tuple[str, ...]:
        """Every answer that is legal and was not tried, for proposers that choose among texts."""
        return tuple(self.show(c) for c in self.space.configs if c.name not in self._tried)

    def start(self) -> Any:
        """The configuration that the static estimate likes best."""
        return self.space.start()

    def sample(self, state: Any, rng: np.random.Generator) -> Any:
        """A legal change of one parameter."""
        return self.space.sample(state, rng)

    def apply(self, state: Any, move: Any) -> Any:
        """The changed configuration."""
        return self.space.apply(state, move)

    def candidate(self, state: Any) -> Candidate:
        """The compiled kernel."""
        made: Candidate = self.space.candidate(state)
        self._tried.add(state.name)
        return made

    def brief(self) -> str:
        """The task in words."""
        shape = self.space.shape
        return (
            "Choose the configuration of an HGEMM kernel on an NVIDIA H200 (132 SMs): C = A x B with "
            f"M={shape.m}, N={shape.n}, K={shape.k}, FP16 in and out, FP32 accumulation. "
            f"{shape.flop:.3g} FLOP, {shape.nbytes} bytes.\n"
            "Answer with one JSON object: a whole configuration, or only the fields that you change."
        )

    def show(self, state: Any) -> str:
        """The configuration as JSON."""
        return json.dumps(to_fields(state))

    def read(self, text: str, parent: Any, origin: str = "answer") -> Any:
        """See `JsonConfigs.read`."""
        return self._json.read(text, parent)

    def notes(self) -> str:
        """What our docs say of such kernels."""
        return (
            "- Few tiles and a long K: split K (warps_k, cluster), or most SMs idle.\n"
            "- A tile larger than M or N wastes work; a wave that fills half of the SMs wastes time.\n"
            "- Small problems are bound by latency: fewer dependent loads, more k steps loaded at once.\n"
            "- Larger tiles read each operand fewer times from L2."
        )
