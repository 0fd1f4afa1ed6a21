"""The papers' protocols: what they set, where they end, and how single settings change them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sassafras
from sassafras import search
from sassafras.core import SearchError


def test_presets_are_the_papers() -> None:
    cuasmrl, sip = search.preset("cuasmrl"), search.preset("sip")
    own: Any = search.get(cuasmrl.strategy, cuasmrl.settings)
    assert (own.gate, own.pool, own.mask, own.patience, own.total) == (False, False, True, 0, 15_000)
    assert (own.moves, own.view, own.batch, own.rate) == ("memory", "paper", 8, 2.5e-4)
    assert cuasmrl.budget == "15000e"
    annealed: Any = search.get(sip.strategy, sip.settings)
    assert (annealed.start, annealed.factor, annealed.moves) == (0.4, 0.997, "memory")
    assert search.get("sip", {"moves": "all"}).space_options == {"moves": "all"}  # type: ignore[attr-defined]
    with pytest.raises(SearchError, match=r"no preset 'sipp'.*cuasmrl, sip"):
        search.preset("sipp")
    with pytest.raises(SearchError, match="a preset names its strategy"):
        sassafras.optimize("suite:softmax", strategy="anneal", preset="sip")


@pytest.mark.parametrize("setting", [{"start": 0}, {"factor": 1.1}, {"throughput": 0}])
def test_sip_refuses_settings_that_anneal_nothing(setting: dict[str, float]) -> None:
    with pytest.raises(SearchError):
        search.get("sip", setting)


class TwoStates:
    """A state and its slower neighbour."""

    def sample(self, state: int, rng: np.random.Generator) -> int:
        return 1 - state

    def apply(self, state: int, move: int) -> int:
        return move


def walk(steps: int, **settings: Any) -> list[int]:
    """Neighbours that sip asked for; state 1 takes 1 % longer."""
    asked: list[int] = []

    def evaluate(state: int) -> Any:
        asked.append(state)
        return SimpleNamespace(cost=1.01 if state else 1.0)

    session: Any = SimpleNamespace(
        best=SimpleNamespace(state=0, cost=1.0),
        rng=np.random.default_rng(4),
        more=lambda: len(asked) < steps,
    )
    space: Any = TwoStates()
    search.get("sip", settings).search(space, evaluate, session)
    return asked


def test_sip_ends_at_its_last_temperature() -> None:
    assert len(walk(10_000)) == 693
    assert len(walk(10_000, least=0.0)) == 10_000


def test_sip_accepts_by_throughput_and_temperature() -> None:
    asked = walk(20_000, start=0.5, factor=1.0)
    tries = asked.count(1)
    accepted = asked.count(0)  # from the slower state it always goes back
    assert accepted / tries == pytest.approx(math.exp((100 / 1.01 - 100) / 0.5), rel=0.1)
    slower = walk(20_000, start=0.5, factor=1.0, throughput=20.0)
    assert slower.count(0) / slower.count(1) == pytest.approx(math.exp((20 / 1.01 - 20) / 0.5), rel=0.1)
