"""CuAsmRL's preset with its network on a GPU: recorded as CUDA graphs it does what it does unrecorded."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")


@pytest.fixture(autouse=True)
def _no_warning() -> Any:
    """What cannot be recorded says so in a warning: here that fails."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA graph.*")
        yield


def learnt(kind: str, rounds: int = 1, steps: int = 20) -> tuple[dict[str, np.ndarray], np.ndarray, Any]:
    """Weights, the last rollout's actions, and the agent, after so many rollouts and updates on the GPU.

    `kind`: ``graphs``, ``plain`` (the same functions, never recorded), or ``parent`` (sb3-contrib's own).
    """

    from sassafras.search.ppo import Hyperparameters, graphed
    from sassafras.search.ppo.agent import agent, chance, weights
    from sassafras.search.ppo.game import AssemblyGame
    from tests.search.ppo.small_kernel import Judge, space

    judge, schedules = Judge(), space(moves="memory", view="paper")
    preset = Hyperparameters(steps=steps, horizon=6)
    game, left = AssemblyGame(schedules, lambda s: judge.evaluate(schedules.candidate(s)), horizon=6), [1.0]
    with chance(11, 1, "cuda"):
        model = agent([game], preset, left=lambda: left[0], seed=11, device="cuda")
        assert model.policy.graphed is not None
        warm = graphed.WARM
        try:
            graphed.WARM = warm if kind == "graphs" else 1 << 60
            _, callback = model._setup_learn(1000)
            for _ in range(rounds):
                model.collect_rollouts(model.env, callback, model.rollout_buffer, preset.steps)
                actions = model.rollout_buffer.actions.copy()
                if kind == "parent":
                    super(type(model), model).train()
                else:
                    model.train()
                left[0] -= 0.3
        finally:
            graphed.WARM = warm
    return weights(model), actions.ravel(), model


def test_recorded_updates_are_those_that_are_launched_one_by_one() -> None:
    """Twenty moves: minibatches of 8, 8 and 4, each size a graph of its own."""
    graphs, acted, model = learnt("graphs")
    assert {n: r.graph is not None for (_, n), r in model.policy.graphed._updates.items()} == {
        8: True,
        4: True,
    }
    assert model.policy.graphed._looks[1].graph is not None
    plain, did, _ = learnt("plain")
    np.testing.assert_array_equal(acted, did)
    for name, value in plain.items():
        np.testing.assert_allclose(graphs[name], value, rtol=0, atol=2e-5, err_msg=name)
    parent, _, _ = learnt("parent")
    for name, value in parent.items():  # (other sums of the same terms, twelve steps of 2.5e-4)
        apart = np.abs(graphs[name] - value)
        assert float(apart.mean()) < 1e-5 and float(apart.max()) < 5e-4, (name, apart.mean(), apart.max())


@pytest.mark.slow
def test_recorded_searches_repeat_themselves_to_the_last_bit() -> None:
    one, acted, _ = learnt("graphs", 3)
    two, again, _ = learnt("graphs", 3)
    np.testing.assert_array_equal(acted, again)
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)


def test_a_short_search_with_its_network_on_the_gpu_repeats_itself() -> None:
    from sassafras import search
    from sassafras.core import Budget
    from tests.search.ppo.small_kernel import Judge, space

    found = []
    for _ in range(2):
        strategy = search.get("ppo", {"on": "cuda", "steps": 16})
        schedules = space(**strategy.space_options)  # type: ignore[attr-defined]
        found.append(search.run(strategy, schedules, Judge(), Budget(evaluations=40), seed=4))
    one, two = found
    assert one.evaluations == two.evaluations == 40
    assert (
        one.best.cost == two.best.cost and one.leaders[0].candidate.digest == two.leaders[0].candidate.digest
    )


@pytest.mark.alone
def test_milliseconds_of_a_look_and_of_an_update() -> None:
    """Prints them, and holds them to a loose bound: launched one by one they take 1.5 and 4 to 5 ms."""
    _, _, model = learnt("graphs", steps=64)
    seen = torch.zeros((1, *model.observation_space.shape))
    rows = torch.arange(8, device="cuda")
    ((terms, _), _) = next(iter(model.policy.graphed._updates.items()))
    took = {}
    for name, what in (("look", lambda: model.policy.graphed.look(seen)),
                       ("update", lambda: model.policy.graphed._update(terms, rows))):  # fmt: skip
        what()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(100):
            what()
        torch.cuda.synchronize()
        took[name] = 10 * (time.perf_counter() - begin)
    print(f"milliseconds: {took}", flush=True)
    assert took["look"] < 1.0 and took["update"] < 2.5
