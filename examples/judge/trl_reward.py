"""The verdict and the measured gain as a reward of TRL's GRPOTrainer.

Each row of the data set has a ``prompt`` and the ``problem``'s file.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sassafras import Judge

judge_of = cache(Judge)


def reward(completions: list[Any], problem: list[str], **columns: Any) -> list[float]:
    """0 for what is not correct, 1 for what is, and more for a gain beyond the A/A control."""
    return [judge_of(path).reward(answer) for path, answer in zip(problem, completions, strict=True)]


# GRPOTrainer(model, reward_funcs=reward, train_dataset=rows, args=GRPOConfig(...)).train()
