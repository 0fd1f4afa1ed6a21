"""The update and the look that a GPU records, here on the CPU: the same as sb3-contrib's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")


from sassafras.search.ppo import Hyperparameters  # noqa: E402
from sassafras.search.ppo.agent import agent, chance, weights  # noqa: E402
from sassafras.search.ppo.game import AssemblyGame  # noqa: E402
from sassafras.search.ppo.graphed import Graphed, GraphReplay  # noqa: E402
from sassafras.search.ppo.network import _Means  # noqa: E402
from tests.search.ppo.small_kernel import Judge, space  # noqa: E402


class Told(dict[str, Any]):
    """A logger that keeps what it is told."""

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        self[key] = value

    def dump(self, step: int = 0) -> None:
        pass


def learnt(graphed: bool, **changes: Any) -> tuple[dict[str, Any], Told, np.ndarray]:
    """Weights, metrics and the last rollout's actions after two rollouts and updates."""
    judge, schedules = Judge(), space(moves="memory", view="paper")
    preset = Hyperparameters(rate=1e-3, horizon=6, **({"steps": 20, "epochs": 3} | changes))
    played = [
        AssemblyGame(schedules, lambda s: judge.evaluate(schedules.candidate(s)), horizon=preset.horizon)
        for _ in range(preset.envs)
    ]
    told, left = Told(), [1.0]
    with chance(11):
        model = agent(played, preset, left=lambda: left[0], seed=11)
        if graphed:
            model.policy.graphed = Graphed(model)
        _, callback = model._setup_learn(100)
        model._logger = told  # type: ignore[assignment]
        for _ in range(2):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, preset.steps)
            actions = model.rollout_buffer.actions.copy()
            model.train()
            left[0] = 0.4  # the learning rate falls
    return weights(model), told, actions


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("changes", [{}, {"clip_value": None, "norm": 0.01, "envs": 2, "steps": 8}])
def test_an_update_is_the_parents_to_rounding(changes: dict[str, Any]) -> None:
    """Three passes over minibatches of 8 (the last of 20 moves is shorter), two updates, falling rate; also
    with rows that are averaged."""
    theirs, said, acted = learnt(False, **changes)
    ours, heard, did = learnt(True, **changes)
    np.testing.assert_array_equal(did, acted)  # the second rollout is played by the weights of the first
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=2e-6, err_msg=name)
    assert heard.keys() == said.keys() and len(said) >= 8
    for name, value in said.items():
        assert heard[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert heard["train/n_updates"] == 6 and heard["train/learning_rate"] == pytest.approx(4e-4)


def test_what_is_replayed_has_one_shape_and_on_a_cpu_is_called() -> None:
    calls = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return 2 * x

    replay = GraphReplay(twice, torch.device("cpu"))
    for _ in range(5):
        assert torch.equal(replay(torch.arange(3.0)), torch.tensor([0.0, 2.0, 4.0]))
    assert len(calls) == 5
    with pytest.raises(ValueError, match=r"recorded for a tensor of \(3,\), not \(1,\)"):
        replay(torch.zeros(1))


def test_rows_are_averaged_as_the_adaptive_pool_does() -> None:
    for rows in (48, 49, 100, 191):
        x = torch.randn(2, 3, rows, 5)
        means = _Means(rows, 48)
        torch.testing.assert_close(means.table @ x, means(x))
