"""Records that the store returns."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from sassafras.core import Interval, Kernel, Modelled, StoreError

#: a stored recipe is never unpacked to more than this
MAX_RECIPE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One search, as `Store.runs` lists it.

    Attributes:
        id: number within this store.
        uid: the same in every store that this run was exported to.
        workload, case: what was optimised.
        kernel, arch, baseline: entry name, architecture and digest of the unmodified kernel.
        device, modelled: where candidates were judged, and whether that was a model.
        strategy, seed: how it searched.
        created: when it began, ISO 8601 in UTC.
        evaluations: how many outcomes are recorded.
        finished_budget: the budget it finished with, None while it can be resumed.
        result: what it reported then, or found before it was interrupted; None: nothing.
        spec, environment: everything that makes it the search that it is, and what it ran on.
        origin: ``local`` or ``import``.
    """

    id: int
    uid: str
    workload: str
    case: str
    kernel: str
    arch: str
    baseline: str
    device: str
    modelled: bool
    strategy: str
    seed: int
    created: str
    evaluations: int
    finished_budget: str | None
    result: Mapping[str, Any] | None
    spec: Mapping[str, Any] = field(repr=False)
    environment: Mapping[str, Any] = field(repr=False)
    origin: str = "local"


@dataclass(frozen=True, slots=True)
class StoredStep:
    """One evaluation of a run, in short.

    Attributes:
        digest: of the candidate's cubin.
        verdict: as text; None for a modelled outcome that was not refused.
        ratio: speed-up, measured or modelled as the run is; None where there is none.
        took: seconds of the search's budget.
        packed: the recipe, compressed; see `recipe`.
    """

    digest: str
    verdict: str | None
    ratio: float | None
    took: float
    packed: bytes = field(repr=False)

    @property
    def recipe(self) -> dict[str, Any]:
        """How the candidate came about; empty where the row is damaged."""
        try:
            engine = zlib.decompressobj()
            found = json.loads(engine.decompress(self.packed, MAX_RECIPE_BYTES))
        except (zlib.error, ValueError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedKernel:
    """A tuned kernel as the store keeps it.

    Attributes:
        id: number within this store.
        original: digest of the cubin it replaces.
        tuned: digest of the cubin to run instead.
        kernel: the original kernel, with the tuned cubin's launch facts (they are the same).
        workload, case: what it was tuned as.
        created: when it was saved, ISO 8601 in UTC.
        origin: ``import`` when it came from another machine: re-validate before use.
        facts: environment, strategy, recipe.
    """

    id: int
    original: str
    tuned: str
    kernel: Kernel
    workload: str
    case: str
    created: str
    origin: str
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner(TunedKernel):
    """One that was measured on a real GPU: the only thing that deployment may use.

    Attributes:
        gpu: GPU model it was measured on.
        speedup: baseline time / tuned time, from fresh processes.
        interval: 95 % interval of `speedup`.
        null: speed-up of the identity rewrite beside it.
        null_interval: its 95 % interval.
        samples: launches compared byte by byte.
    """

    gpu: str
    speedup: float
    interval: Interval
    null: float
    null_interval: Interval
    samples: int

    modelled = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledWinner(TunedKernel):
    """The best kernel on the timing model. Another type than `Winner`, which deployment never reads.

    Attributes:
        model: the timing model's name.
        modelled_ratio: modelled baseline cycles / modelled cycles; on draws that nothing was selected on,
            where there is an `interval`.
    """

    model: str
    modelled_ratio: float

    modelled = True

    @property
    def _redrawn(self) -> Mapping[str, Any]:
        given = self.facts.get("redrawn")
        return given if isinstance(given, Mapping) else {}

    @property
    def interval(self) -> Interval | None:
        """95 % interval of `modelled_ratio`; None where it is what a search selected on, not re-drawn."""
        return _pair(self._redrawn.get("interval"))

    @property
    def null_interval(self) -> Interval | None:
        """That of the baseline against itself on other draws."""
        return _pair(self._redrawn.get("null_interval"))

    @property
    def null(self) -> float | None:
        """The baseline against itself on other draws."""
        found = self._redrawn.get("null")
        return float(found) if isinstance(found, int | float) else None

    @property
    def draws(self) -> int:
        """Draws behind `modelled_ratio`; 0 where it was not re-drawn."""
        found = self._redrawn.get("draws")
        return found if isinstance(found, int) else 0


def redrawn_facts(outcome: Modelled) -> dict[str, Any]:
    """What a `ModelledWinner` says of its ratio's draws; nothing where the ratio was not re-drawn."""
    if outcome.interval is None:
        return {}
    return {
        "interval": _ends(outcome.interval),
        "null": None if outcome.null is None else float(outcome.null),
        "draws": int(outcome.draws),
        "null_interval": _ends(outcome.null_interval),
    }


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [float(interval.low), float(interval.high)]


def _pair(ends: Any) -> Interval | None:
    """An interval of facts, which may have come from another machine."""
    if isinstance(ends, list) and len(ends) == 2 and all(isinstance(e, int | float) for e in ends):
        return Interval(float(ends[0]), float(ends[1]))
    return None


R = TypeVar("R")
#: what a field of a record may hold, by its annotation; SQLite and JSON would give anything
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "float": (int, float),
    "bool": (bool,),
    "bytes": (bytes,),
    "Interval": (Interval,),
    "Kernel": (Kernel,),
    "Mapping[str, Any]": (Mapping,),
}


def typed(record: R) -> R:
    """The record, a dataclass, if its fields hold what their annotations say.

    A store may come from another machine, and what is read from it ends in pages and programs.

    Raises:
        StoreError: a field holds something else.
    """
    for field_ in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field_.name)
        plain, _, rest = str(field_.type).partition(" | ")
        allowed = _TYPES.get(plain)
        if allowed is None or (value is None and rest == "None"):
            continue
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise StoreError(
                f"the store is damaged: {field_.name} of a {type(record).__name__} is "
                f"{type(value).__name__} {str(value)[:40]!r}, not {plain}",
                hint="a store that was sent: do not use it",
            )
        if isinstance(value, Interval | Kernel):
            typed(value)
    return record
