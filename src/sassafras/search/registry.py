"""Strategies by name, and a user's own."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sassafras.core import SearchError

from .anneal import Anneal
from .contract import Strategy
from .greedy import Greedy
from .guided import Guided
from .list_schedule import ListSchedule
from .ppo import Ppo
from .random_walk import RandomWalk
from .sip import Sip

_STRATEGIES: dict[str, Callable[..., Strategy]] = {
    RandomWalk.name: RandomWalk,
    Greedy.name: Greedy,
    Anneal.name: Anneal,
    Guided.name: Guided,
    Ppo.name: Ppo,
    ListSchedule.name: ListSchedule,
    Sip.name: Sip,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Preset:
    """A paper's protocol: a strategy, its settings, and the budget where none is named."""

    strategy: str
    settings: Mapping[str, Any]
    budget: str


#: ``cuasmrl`` (arXiv 2501.08071, public code github.com/hgl71964/cuasmrl): memory moves, its network and
#: hyper-parameters, 100 * (time before - time after) / (the baseline's) as reward whatever the noise, 15,000
#: moves. ``sip``: see `search.sip`; its code's limit is 1,000 candidates.
PRESETS = {
    "cuasmrl": Preset("ppo", {"gate": False, "pool": False, "patience": 0, "total": 15_000}, "15000e"),
    "sip": Preset(Sip.name, {}, "1000e"),
}


def preset(name: str) -> Preset:
    """A preset by name.

    Raises:
        SearchError: there is none of this name.
    """
    if name not in PRESETS:
        raise SearchError(f"there is no preset {name!r}", hint="one of " + ", ".join(PRESETS))
    return PRESETS[name]


def names() -> list[str]:
    """The names that `get` knows."""
    return sorted(_STRATEGIES)


def get(strategy: str | Strategy | type, settings: Mapping[str, Any] | None = None) -> Strategy:
    """A strategy: by name, from a class, or the object itself.

    Args:
        strategy: a name of `names()`, a strategy class, or a strategy.
        settings: fields to set; for an object, `settings` must be empty.

    Raises:
        SearchError: there is no such strategy, it has no such setting, or the object is no strategy.
    """
    settings = dict(settings or {})
    make: Callable[..., Any] | None = None
    if isinstance(strategy, str):
        make = _STRATEGIES.get(strategy)
        if make is None:
            raise SearchError(
                f"there is no strategy {strategy!r}", hint=f"one of {', '.join(names())}, or your own object"
            )
    elif inspect.isclass(strategy):
        make = strategy
    elif settings:
        raise SearchError("settings go with a name or a class, not with a finished strategy")
    if make is not None:
        check_settings(make, settings)
        try:
            strategy = make(**settings)
        except TypeError as error:
            raise SearchError(f"cannot make the strategy: {error}") from error
    if not isinstance(strategy, Strategy):
        raise SearchError(
            f"{type(strategy).__name__} is no strategy",
            hint="it needs a `name` and `search(space, evaluate, session)`; see examples/custom_strategy.py",
        )
    return strategy


def check_settings(make: Callable[..., Any], settings: Mapping[str, Any], who: str | None = None) -> None:
    """Hold settings against what makes a strategy: its parameters, and the kind of their defaults.

    Args:
        make: a class, or another callable that makes the strategy from the settings.
        settings: by name.
        who: the strategy's name, for the message; by default the class's own.

    Raises:
        SearchError: there is no such setting, or its value is of another kind, or negative.
    """
    parameters = inspect.signature(make).parameters
    who = who or getattr(make, "name", None) or getattr(make, "__name__", "the strategy")
    known = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in settings.items():
        if name not in known:
            if anything:
                continue
            hint = f"it has {', '.join(known) or 'none'}"
            raise SearchError(f"{who} has no setting {name!r}", hint=hint)
        usual, number = parameters[name].default, not isinstance(value, bool)
        if isinstance(usual, bool):
            fits, kind = isinstance(value, bool), "true or false"
        elif isinstance(usual, int):
            fits, kind = number and isinstance(value, int) and 0 <= value < 2**63, "a whole number from 0 up"
        elif isinstance(usual, float):
            fits = number and isinstance(value, int | float) and 0 <= value <= sys.float_info.max
            kind = "a number from 0 up"
        elif isinstance(usual, str):
            fits, kind = isinstance(value, str), "a text"
        else:
            continue
        if not fits:
            raise SearchError(f"{who}'s {name} is {kind}, not {value!r}", hint=f"by default {usual!r}")


def settings_of(strategy: Strategy) -> dict[str, Any]:
    """A strategy's settings, JSON-able: part of what makes two searches the same.

    Fields of a dataclass with ``metadata={"identity": False}`` are left out.
    """
    if dataclasses.is_dataclass(strategy) and not isinstance(strategy, type):
        values = dataclasses.asdict(strategy)
        for own in dataclasses.fields(strategy):
            if not own.metadata.get("identity", True):
                del values[own.name]
    else:
        values = {k: v for k, v in getattr(strategy, "__dict__", {}).items() if not k.startswith("_")}
    values.pop("name", None)
    plain: dict[str, Any] = json.loads(json.dumps(values, sort_keys=True, default=repr))
    return plain


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Read ``["cycles=5", "start=0.001"]``, as the command line gives them.

    Raises:
        SearchError: a pair has no ``=``.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise SearchError(f"cannot read the setting {pair!r}", hint="for example --set cycles=5")
        try:
            settings[name.strip()] = json.loads(text)
        except ValueError:
            settings[name.strip()] = text
    return settings
