"""`GemmSpace` as JSON: a schema for constrained answers, exact errors for those that break it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sassafras.core import Candidate
from sassafras.gemm.configs import registry
from sassafras.gemm.configs.fields import to_fields
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.space import GemmSpace

from .answer import AnswerError, last_json

Fields = dict[str, Any]


class GemmJsonSpace(GemmSpace):
    """A `GemmSpace` that is `Promptable`: configurations are shown and read as JSON.

    Args:
        shape, build: see `GemmSpace`.
    """

    form = ""

    def __init__(self, shape: Shape, build: Callable[[Config], bytes]) -> None:
        super().__init__(shape, build)
        self._tried: set[str] = set()
        self._legal = {_key(to_fields(c)): c for c in self.configs}
        #: kernel -> field -> values that occur
        self._allowed: dict[str, dict[str, list[Any]]] = {}
        for config in self.configs:
            given = to_fields(config)
            kernel = self._allowed.setdefault(given["kernel"], {})
            for name, value in given.items():
                if value not in kernel.setdefault(name, []):
                    kernel[name].append(value)

    @property
    def description(self) -> str:
        """What makes two of these spaces the same."""
        return f"{len(self.configs)} HGEMM configurations for {self.shape}"

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON schema of a whole configuration. Fields are independent in it, legality is not: see `read`."""
        options = []
        for kernel, allowed in self._allowed.items():
            properties: dict[str, Any] = {"kernel": {"enum": [kernel]}}
            for name, values in allowed.items():
                if name != "kernel":
                    properties[name] = {"enum": sorted(values, key=_order)}
            options.append(
                {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                    "additionalProperties": False,
                }
            )
        return options[0] if len(options) == 1 else {"anyOf": options}

    def choices(self) -> tuple[str, ...]:
        """Every answer that is legal and was not tried, for proposers that choose among texts."""
        return tuple(self.show(c) for c in self.configs if c.name not in self._tried)

    def candidate(self, state: Config) -> Candidate:
        """See `GemmSpace.candidate`; the configuration is no longer among the `choices`."""
        made = super().candidate(state)
        self._tried.add(state.name)
        return made

    def brief(self) -> str:
        """The task in words, and what our docs say of such kernels."""
        shape = self.shape
        return (
            "Choose the configuration of an HGEMM kernel on an NVIDIA H200 (132 SMs): C = A x B with "
            f"M={shape.m}, N={shape.n}, K={shape.k}, FP16 in and out, FP32 accumulation. "
            f"{shape.flop:.3g} FLOP, {shape.nbytes} bytes.\n"
            "Answer with one JSON object: a whole configuration, or only the fields that you change.\n\n"
            "Notes:\n"
            "- Few tiles and a long K: split K (warps_k, cluster_split_k), or most SMs idle.\n"
            "- A tile larger than M or N wastes work; a wave that fills half of the SMs wastes time.\n"
            "- Small problems are bound by latency: fewer dependent loads, more k steps loaded at once.\n"
            "- Larger tiles read each operand fewer times from L2."
        )

    def show(self, state: Config) -> str:
        """The configuration as JSON."""
        return json.dumps(to_fields(state))

    def read(self, text: str, parent: Config, origin: str = "answer") -> Config:
        """The configuration that an answer names: a whole one, or an edit of `parent`.

        Raises:
            AnswerError: which field is wrong, what it may be, or why the whole is not legal.
        """
        given = last_json(text)
        if isinstance(inner := given.get("edit"), Mapping):
            given = dict(inner)
        base = to_fields(parent)
        kernel = given.get("kernel", base["kernel"])
        if not isinstance(kernel, str) or kernel not in self._allowed:
            raise AnswerError(
                f"kernel {kernel!r} does not exist", hint=f"one of {', '.join(map(repr, self._allowed))}"
            )
        allowed = self._allowed[kernel]
        if unknown := [name for name in given if name not in allowed]:
            raise AnswerError(
                f"there is no field {unknown[0]!r} in kernel {kernel!r}", hint="it has " + ", ".join(allowed)
            )
        whole = {**(base if base["kernel"] == kernel else {}), **given, "kernel": kernel}
        if missing := [name for name in allowed if name not in whole]:
            raise AnswerError(f"the field {missing[0]!r} is missing", hint=_one_of(allowed[missing[0]]))
        for name, value in whole.items():
            if not any(value == v and type(value) is type(v) for v in allowed[name]):
                raise AnswerError(f"{name} may not be {json.dumps(value)}", hint=_one_of(allowed[name]))
        if (config := self._legal.get(_key(whole))) is not None:
            return config
        raise AnswerError(
            f"no such kernel is legal for this shape: {self._why_illegal(whole)}",
            hint="each field alone is fine, their combination is not",
        )

    def _why_illegal(self, whole: Fields) -> str:
        """Why a configuration cannot run the shape; the nearest legal one where there is no such kernel."""
        for config in registry.configurations():
            if to_fields(config) == whole and (why := config.why_illegal(self.shape)):
                return str(why)
        same = [given for c in self.configs if (given := to_fields(c))["kernel"] == whole["kernel"]]
        nearest = min(same, key=lambda given: sum(given[name] != whole[name] for name in given))
        changed = {name: value for name, value in nearest.items() if value != whole[name]}
        return f"the nearest legal one has {json.dumps(changed)}"


def _key(given: Fields) -> str:
    return json.dumps(given, sort_keys=True)


def _order(value: Any) -> tuple[str, Any]:
    return (type(value).__name__, json.dumps(value) if isinstance(value, dict) else value)


def _one_of(values: Sequence[Any]) -> str:
    shown = sorted(values, key=_order)
    return "one of " + ", ".join(json.dumps(v) for v in shown[:24]) + (" ..." if len(shown) > 24 else "")
