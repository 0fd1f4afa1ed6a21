"""The agent on a real kernel and the timing model: it learns, repeats itself by seed, and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402

import sassafras  # noqa: E402
from sassafras import search  # noqa: E402
from sassafras.core import Budget, Candidate, Outcome, SearchError  # noqa: E402
from sassafras.search import Recorded  # noqa: E402
from sassafras.search.ppo import Hyperparameters  # noqa: E402
from sassafras.search.ppo.agent import agent, chance  # noqa: E402
from sassafras.search.ppo.game import AssemblyGame  # noqa: E402
from sassafras.search.ppo.network import PaperNetwork  # noqa: E402
from tests.search.ppo.small_kernel import Judge, best, space, workload  # noqa: E402


def games(count: int, judge: Judge, moves: str = "memory", **options: Any) -> list[AssemblyGame]:
    schedules = space(moves=moves, view="paper")
    return [
        AssemblyGame(schedules, lambda state: judge.evaluate(schedules.candidate(state)), **options)
        for _ in range(count)
    ]


class Returns(BaseCallback):
    """Rewards of the episodes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def _on_step(self) -> bool:
        self.seen += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True


@pytest.mark.usefixtures("few_rows")
def test_a_tiny_agent_learns_its_way_to_the_best_of_all_schedules() -> None:
    judge, returns = Judge(), Returns()
    played = games(8, judge, horizon=8)
    with chance(3):
        settings = Hyperparameters(envs=8, steps=16, batch=32, epochs=2, rate=1e-3, entropy=0.0)
        model = agent(played, settings, left=lambda: 1.0, seed=3)
        model.learn(512, callback=returns)
    assert min(g.best_cost for g in played) == pytest.approx(best(), abs=1e-9)
    # seeds 2, 3 and 5 gain 0.005 to 0.022 (over 768 moves -0.015 to 0.044)
    # which schedule the likeliest moves lead to is luck so early
    half = len(returns.seen) // 2
    assert np.mean(returns.seen[half:]) > np.mean(returns.seen[:half]) + 0.005
    assert sum(g.counts["refused"] + g.counts["failures"] for g in played) == 0


class Memory:
    """A search's record in memory."""

    def __init__(self) -> None:
        self.held: dict[str, Recorded] = {}

    def known(self, digest: str) -> Recorded | None:
        return self.held.get(digest)

    def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
        self.held[candidate.digest] = Recorded(outcome, took)
        return self.held[candidate.digest]


def curve(
    evaluations: int, seed: int = 0, record: Memory | None = None, **settings: Any
) -> tuple[list[str], int]:
    """Digests in the order of their evaluation, and how many came from the record."""
    judge = Judge()
    strategy = search.get("ppo", {"moves": "all", "envs": 4, "steps": 6, "epochs": 1} | settings)
    schedules = space(**strategy.space_options)  # type: ignore[attr-defined]
    digests: list[str] = []

    class Noted:
        def evaluate(self, candidate: Candidate) -> Outcome:
            return judge.evaluate(candidate)

    class Order(Memory):
        def known(self, digest: str) -> Recorded | None:
            digests.append(digest)
            return None if record is None else record.known(digest)

        def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
            return (record or Memory()).record(candidate, outcome, took)

    found = search.run(
        strategy, schedules, Noted(), Budget(evaluations=evaluations), seed=seed, recorder=Order()
    )
    assert found.evaluations <= evaluations and found.verdicts == {"modelled": found.evaluations}
    return digests, found.replayed


@pytest.mark.usefixtures("few_rows")
def test_the_same_seed_gives_the_same_search_and_another_another() -> None:
    first, _ = curve(30)  # the first update is after 24 moves
    assert first == curve(30)[0] and len(first) == 30
    assert first[:12] != curve(12, seed=1)[0]


@pytest.mark.usefixtures("few_rows")
def test_a_search_taken_up_again_has_the_same_curve() -> None:
    record = Memory()
    part, _ = curve(28, record=record)  # behind the first update
    assert len(record.held) == 28
    whole, replayed = curve(40, record=record)
    assert replayed == 28 and whole[:28] == part
    assert whole == curve(40)[0]


def test_by_default_it_is_the_papers_agent_and_leaves_global_chance_alone() -> None:
    own: Any = search.get("ppo")
    assert (own.envs, own.batch, own.restart, own.clip_value) == (1, 8, 0.0, 0.2)
    assert (own.horizon, own.steps, own.epochs, own.rate) == (32, 64, 4, 2.5e-4)
    assert (own.gamma, own.lam, own.clip, own.entropy) == (0.99, 0.95, 0.2, 0.01)
    before = np.random.get_state()[1].copy(), torch.get_rng_state().clone()
    digests, _ = curve(15, moves="memory", envs=1, steps=8)
    assert len(digests) == 15
    assert (np.random.get_state()[1] == before[0]).all()
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("on", ["gpu", "cuda:", "cuda:x", "cuda:63"])
def test_a_device_that_is_none_is_refused_before_anything_begins(on: str) -> None:
    schedules = space(moves="memory")
    strategy = search.get("ppo", {"on": on})
    with pytest.raises(SearchError, match=r"no device is called|torch sees"):
        search.run(strategy, schedules, Judge(), Budget(evaluations=20), seed=1)


def test_the_paper_network_takes_short_and_long_kernels() -> None:
    for rows in (3, 40, 400):
        logits, value = PaperNetwork(rows, 9, 2)(torch.zeros(2, rows, 9 + 12))
        assert logits.shape == (2, 2 * rows + 1) and value.shape == (2, 1)


@pytest.mark.usefixtures("few_rows")
def test_metrics_reach_tensorboard_or_say_what_is_missing(tmp_path: Path) -> None:
    from sassafras.core import ToolMissing

    try:
        curve(30, tensorboard=str(tmp_path / "board"))
    except ToolMissing as error:
        assert "tensorboard" in str(error).lower()
        return
    text = (tmp_path / "board" / "metrics.txt").read_text()
    assert "best_speedup" in text and "approx_kl" in text


@pytest.mark.usefixtures("few_rows")
def test_a_search_with_a_store_resumes_and_its_result_is_kept(tmp_path: Path) -> None:
    def go(budget: str) -> sassafras.Result:
        return sassafras.optimize(
            workload(),
            strategy="ppo",
            settings={"moves": "all", "envs": 2, "steps": 4},
            budget=budget,
            device="model",
            arch="sm_90a",
            store=tmp_path / "store.sqlite",
        )

    first, again = go("20e"), go("20e")
    assert first.evaluations == 20 and again.from_store and not first.from_store
    longer = go("40e")
    assert longer.replayed == 20 and longer.evaluations == 40
    assert set(longer.verdicts) == {"modelled"}


@pytest.mark.usefixtures("few_rows")
def test_a_failing_evaluator_ends_the_search_with_its_own_error() -> None:
    class Breaks(Judge):
        left = 6

        def evaluate(self, candidate: Candidate) -> Outcome:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("the device is gone")
            return super().evaluate(candidate)

    strategy = search.get("ppo", {"moves": "all", "envs": 2, "steps": 4})
    threads = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="device is gone"):
        search.run(strategy, space(), Breaks(), Budget(evaluations=30))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch": 1}, "at least 2"),
        ({"batch": 7}, "of 64 moves one is left"),
        ({"steps": 65}, "of 65 moves one is left"),
        ({"steps": 1}, "at least 2"),
        ({"epochs": 0}, "at least 1"),
        ({"threads": 0}, "no thread"),
        ({"clip_value": 0}, "above 0"),
        ({"gamma": 5}, "at most 1"),
    ],
)
def test_settings_that_nothing_can_be_learnt_with_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SearchError, match=says):
        search.get("ppo", settings)


@pytest.mark.usefixtures("few_rows")
def test_a_network_that_overflows_is_said_in_a_line() -> None:
    agent = search.get("ppo", {"rate": 1e30, "steps": 4, "batch": 2})
    with pytest.raises(SearchError, match="overflowed"):
        search.run(agent, space("memory", "paper"), Judge(), Budget(evaluations=60), seed=3)
