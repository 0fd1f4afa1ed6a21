"""`GemmSpace`: the legal configurations of our HGEMM kernels for one shape, as `search` walks them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from sassafras.core import Candidate, Kernel, SassafrasError

from ..configs import registry
from ..configs.fields import to_fields
from ..configs.registry import Config
from ..problem.shape import Shape


@dataclass(frozen=True, slots=True)
class Replace:
    """A move: take this configuration instead."""

    config: Config


class GemmSpace:
    """Configurations for one shape. A move changes one parameter to another legal value.

    It is a `core.Space`; states are `Config`.

    Args:
        shape: the problem.
        build: configuration -> cubin, called only when a candidate is asked for.
        layout: ``"nn"``, ``"tn"``, or None for either.

    Raises:
        SassafrasError: no configuration is legal; it says why for the first ones.
    """

    def __init__(self, shape: Shape, build: Callable[[Config], bytes], *, layout: str | None = None) -> None:
        self.shape = shape
        self._build = build
        # a search rewrites one kernel: configurations of two launches are not its to choose
        legal = [c for c in registry.legal(shape) if layout in (None, c.layout) and len(c.instances) == 1]
        self.configs = [mode for c in legal for mode in c.in_modes()]
        if not self.configs:
            reasons = {c.why_illegal(shape) for c in registry.configurations()} - {None}
            raise SassafrasError(
                "no configuration can run this shape",
                where=str(shape),
                hint="; ".join(sorted(map(str, reasons))[:3]),
            )
        self.configs.sort(key=lambda c: (c.estimate_us(shape), c.rank))
        self._known = set(self.configs)
        self._values = [_parameters(c) for c in self.configs]
        self._moves: dict[Config, list[Replace]] = {}

    def start(self) -> Config:
        """The configuration that the static estimate likes best."""
        return self.configs[0]

    def moves(self, state: Config) -> Sequence[Replace]:
        """Every legal configuration that differs in exactly one parameter."""
        if state not in self._moves:
            own = _parameters(state)
            places = zip(self.configs, self._values, strict=True)
            self._moves[state] = [Replace(c) for c, values in places if _distance(c, state, values, own) == 1]
        return self._moves[state]

    def sample(self, state: Config, rng: np.random.Generator) -> Replace | None:
        """One of `moves`, or None where there is none."""
        moves = self.moves(state)
        return moves[int(rng.integers(len(moves)))] if moves else None

    def apply(self, state: Config, move: Replace) -> Config:
        """The configuration of the move. Raises SassafrasError when it is not of this space."""
        if move.config not in self._known:
            raise SassafrasError("not a legal configuration here", where=f"{move.config.name}, {self.shape}")
        return move.config

    def candidate(self, state: Config) -> Candidate:
        """The compiled kernel with its launch facts; the grid is in the recipe."""
        return Configured(
            kernel(state, self.shape, self._build(state)),
            {"config": to_fields(state), "shape": str(self.shape)},
        )


@dataclass(frozen=True, slots=True)
class Configured(Candidate):
    """A candidate of `GemmSpace`: one cubin serves several configurations, which are launched differently."""

    @property
    def digest(self) -> str:
        """sha256 of the cubin and of how it is launched."""
        how = json.dumps([self.recipe["config"], self.recipe["shape"]], sort_keys=True)
        return hashlib.sha256(self.kernel.cubin + b"\0" + how.encode()).hexdigest()


def kernel(config: Config, shape: Shape, cubin: bytes) -> Kernel:
    """A configuration as a `Kernel`. Raises SassafrasError when it cannot run the shape, or is two."""
    launch = config.launch(shape)
    if launch.then is not None:
        raise SassafrasError(
            f"a second kernel ({launch.then.instance.name}) adds up what the first one leaves",
            where=config.name,
            hint="choose a configuration of one launch",
        )
    return Kernel(
        cubin,
        config.instance.name,
        "sm_90a",
        launch.threads,
        launch.shared_bytes,
        launch.cluster,
        parameters=config.instance.parameters,
        meta={
            "config": to_fields(config),
            "grid": launch.grid,
            "scalars": launch.scalars,
            "overlap": launch.overlap,
            "tensor_maps": {name: described.to_json() for name, described in launch.tensor_maps.items()},
        },
    )


def _distance(one: Config, other: Config, values: tuple[Any, ...], others: tuple[Any, ...]) -> int:
    """Parameters (`_parameters`) in which two configurations differ; two families are neighbours where the
    rest agrees."""
    if type(one) is not type(other):
        same = (one.layout, one.tile, one.cluster) == (other.layout, other.tile, other.cluster)
        return 1 if same else 2
    return sum(x != y for x, y in zip(values, others, strict=True))


def _parameters(config: Config) -> tuple[Any, ...]:
    own = tuple(getattr(config, f.name) for f in fields(config) if f.name != "instance")
    return astuple(config.instance) + own
