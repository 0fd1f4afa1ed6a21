"""The assembly game and its agent on a real GPU: nothing refused, wrong or crashed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("sb3_contrib")


@pytest.mark.parametrize("moves", ["memory", "all"])
def test_the_game_is_played_on_the_gpu(moves: str) -> None:
    import sassafras.api.assembly_game  # noqa: F401

    game = gymnasium.make(
        "sassafras/AssemblyGame-v0",
        workload="suite:softmax",
        device="cuda",
        moves=moves,
        disable_env_checker=True,
    )
    rng = np.random.default_rng(0)
    seen, _ = game.reset(seed=0)
    for _ in range(40):
        mask = game.get_wrapper_attr("action_masks")()
        action = rng.choice(np.flatnonzero(mask[:-1]))
        seen, reward, ended, late, info = game.step(action)
        assert np.isfinite(seen).all() and np.isfinite(reward) and info["cost"] > 0
        if ended or late:
            game.reset()
    counts: dict[str, int] = game.unwrapped.counts
    assert counts["refused"] == counts["failures"] == 0
    game.close()


@pytest.mark.slow
@pytest.mark.parametrize("moves, on", [("memory", "cpu"), ("memory", "cuda"), ("all", "cuda")])
def test_the_agent_searches_on_the_gpu(moves: str, on: str, tmp_path: Any) -> None:
    import sassafras

    result = sassafras.optimize(
        "suite:quantise_fp8", strategy="ppo", settings={"moves": moves, "patience": 400, "on": on},
        budget="200e", device="cuda", store=tmp_path / "store.sqlite",
    )  # fmt: skip
    if result.failed_after_validation and (folder := os.environ.get("SASSAFRAS_GPU_RESULTS")):
        result.save(folder)  # the code that failed, too
    assert set(result.verdicts) == {"correct"} and result.failed_after_validation == 0, result.notes
    assert result.evaluations > 20
