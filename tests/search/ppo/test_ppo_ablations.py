"""Single parts of CuAsmRL's protocol: reward, mask, pooling, number of moves, patience."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from sassafras import search  # noqa: E402
from sassafras.core import Budget, Candidate, Interval, Modelled, Outcome  # noqa: E402
from sassafras.schedule import ScheduleSpace  # noqa: E402
from sassafras.search.ppo.game import AssemblyGame  # noqa: E402
from sassafras.search.ppo.network import PaperNetwork  # noqa: E402
from tests.search.ppo.small_kernel import Judge, space, workload  # noqa: E402


class Noisy(Judge):
    """The timing model's figures with an interval of 10 % on either side."""

    def evaluate(self, candidate: Candidate) -> Outcome:
        found = super().evaluate(candidate)
        assert isinstance(found, Modelled) and found.modelled_ratio is not None
        return replace(found, interval=Interval(found.modelled_ratio - 0.1, found.modelled_ratio + 0.1))


def game(judge: Judge, **options: Any) -> AssemblyGame:
    schedules = space(moves="memory", view="paper")
    return AssemblyGame(schedules, lambda state: judge.evaluate(schedules.candidate(state)), **options)


def rewards(played: AssemblyGame) -> tuple[list[float], list[float]]:
    """What 24 moves paid, and the relative runtimes before and after each."""
    rng, paid, costs = np.random.default_rng(3), [], []
    played.reset(seed=0)
    costs.append(played.cost)
    for _ in range(24):
        _, reward, ended, late, _ = played.step(int(rng.choice(np.flatnonzero(played.action_masks()[:-1]))))
        assert not ended and not late
        paid.append(reward)
        costs.append(played.cost)
    return paid, costs


@pytest.mark.usefixtures("few_rows")
def test_without_the_gate_every_change_is_paid() -> None:
    gated, _ = rewards(game(Noisy(), horizon=30))
    paid, costs = rewards(game(Noisy(), horizon=30, noise=0.0))
    assert set(gated) == {0.0}
    assert paid == pytest.approx([100 * (a - b) for a, b in itertools.pairwise(costs)])
    assert any(paid)


def test_without_the_mask_an_illegal_move_ends_the_episode_unrun() -> None:
    judged: list[str] = []

    class Counts(Judge):
        def evaluate(self, candidate: Candidate) -> Outcome:
            judged.append(candidate.digest)
            return super().evaluate(candidate)

    masked, played = game(Counts()), game(Counts(), mask=False)
    masked.reset(seed=0)
    played.reset(seed=0)
    legal, offered = masked.action_masks(), played.action_masks()
    assert (offered | legal == offered).all() and offered.sum() > legal.sum()
    rows = played.space.things(played.state)
    memory = np.isin(rows, played.space.movable)
    assert (offered[:-1].reshape(-1, 2) == memory[:, None]).all()
    illegal = int(np.flatnonzero(offered & ~legal)[0])
    before = len(judged)
    _, reward, ended, _, _ = played.step(illegal)
    assert (reward, ended, len(judged)) == (-1.0, True, before)
    assert played.counts["failures"] == 1


def test_without_pooling_the_last_layer_sees_all_rows() -> None:
    pooled, whole = PaperNetwork(400, 9, 2), PaperNetwork(400, 9, 2, pool=False)
    inner, outer = (n.hidden[1].in_features for n in (pooled, whole))
    assert outer > 1.5 * inner
    assert whole(torch.zeros(2, 400, 21))[0].shape == (2, 801)


class Counting(ScheduleSpace):
    """The small kernel's memory moves; counts those that are made."""

    made = 0

    def apply(self, state: Any, move: Any) -> Any:
        self.made += 1
        return super().apply(state, move)


def moves(**settings: Any) -> tuple[int, str]:
    """Moves made, to schedules seen before too, and why the search ended."""
    kernel = workload().build(workload().case(), "sm_90a")
    schedules = Counting(kernel, moves="memory", view="paper")
    strategy = search.get("ppo", {"steps": 8, "epochs": 1, **settings})
    found = search.run(strategy, schedules, Judge(), Budget(evaluations=10_000), seed=2)
    return schedules.made, found.reason


@pytest.mark.usefixtures("few_rows")
def test_learning_ends_after_its_moves_or_its_patience() -> None:
    asked, reason = moves(patience=0, total=96)
    # a stop is a move without a schedule
    assert 48 < asked <= 96 and reason == "returned"
    impatient, _ = moves(patience=10, total=2000)
    assert impatient < 2000
