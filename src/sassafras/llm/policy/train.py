"""GRPO (arXiv 2402.03300) for the policy: groups of configurations of one shape, rewards from the table.

A group shares its shape and its history; what counts is how much better a configuration is than its group.
Histories have any length up to the longest that is tested, and hold configurations drawn partly by the
policy itself and partly at random, so that the policy learns what to do after bad starts too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..reward import reward
from .model import Policy
from .table import Problem


@dataclass(frozen=True, slots=True)
class GrpoSettings:
    """How the policy is trained.

    Attributes:
        steps: updates.
        shapes: groups an update.
        group: configurations drawn a group.
        longest: longest history.
        learning_rate: of Adam, decaying linearly to a tenth.
        clip: PPO's bound on how far a probability ratio counts.
        epochs: passes over each batch of groups.
        entropy: weight of the entropy bonus at the start, decaying linearly to zero.
        best_of: the advantage is raised for a group's best draw, since k measurements keep the best only.
    """

    steps: int = 500
    shapes: int = 8
    group: int = 16
    longest: int = 15
    learning_rate: float = 2e-3
    clip: float = 0.2
    epochs: int = 2
    entropy: float = 0.01
    best_of: float = 0.5


def train(
    policy: Policy,
    problems: Sequence[Problem],
    settings: GrpoSettings | None = None,
    *,
    seed: int = 0,
    shuffled: bool = False,
    report: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train in place; the mean reward of each update's draws.

    Args:
        policy: changed in place; its features are standardised on `problems`.
        problems: what may be learnt from.
        settings: see `GrpoSettings`.
        seed: of everything random.
        shuffled: exchange each shape's times at random first: the control that must learn nothing.
        report: called with (step, mean reward) now and then.
    """
    import torch

    chosen = settings or GrpoSettings()
    rng = np.random.default_rng(seed)
    policy.standardise(problems)
    inputs = [policy.inputs(problem) for problem in problems]
    rewards = [_rewards(problem, rng if shuffled else None) for problem in problems]
    optimiser = torch.optim.Adam(policy.net.parameters(), chosen.learning_rate)
    history: list[float] = []
    for step in range(chosen.steps):
        fade = 1.0 - step / chosen.steps
        for group in optimiser.param_groups:
            group["lr"] = chosen.learning_rate * max(0.1, fade)
        batch = []
        for index in rng.integers(len(problems), size=chosen.shapes):
            batch.append(_group(policy, inputs[index], rewards[index], chosen, rng))
        for _ in range(chosen.epochs):
            loss = torch.zeros(())
            for features, seen, speed, drawn, advantage, before, _ in batch:
                log = torch.log_softmax(policy.scores(features, seen, speed), 0)
                ratio = torch.exp(log[drawn] - before)
                clipped = torch.clamp(ratio, 1 - chosen.clip, 1 + chosen.clip)
                loss = loss - torch.minimum(ratio * advantage, clipped * advantage).mean()
                finite = log[torch.isfinite(log)]
                loss = loss + chosen.entropy * fade * (finite.exp() * finite).sum()
            optimiser.zero_grad()
            (loss / len(batch)).backward()
            torch.nn.utils.clip_grad_norm_(policy.net.parameters(), 1.0)
            optimiser.step()
        history.append(float(np.mean([b[6].mean() for b in batch])))
        if report is not None and (step + 1) % 50 == 0:
            report(step + 1, float(np.mean(history[-50:])))
    return history


def _rewards(problem: Problem, shuffle: np.random.Generator | None) -> np.ndarray:
    """Reward of each configuration against the rule-based chooser's first choice."""
    found = np.array([reward(float(problem.times[0] / time)) for time in problem.times])
    return found if shuffle is None else shuffle.permutation(found)


def _group(
    policy: Policy, features: Any, rewards: np.ndarray, settings: GrpoSettings, rng: np.random.Generator
) -> tuple[Any, ...]:
    """Draw a history, then a group of configurations after it."""
    import torch

    count = len(rewards)
    length = int(rng.integers(0, min(settings.longest, count - 2) + 1))
    if rng.random() < 0.3:
        length = 0  # the first choice matters most
    with torch.no_grad():
        # Gumbel's trick draws without replacement in one pass; a random temperature mixes good and bad starts
        first = policy.scores(features, [], []).double().numpy()
        keys = first * rng.choice([0.0, 0.3, 1.0]) + rng.gumbel(size=count)
        seen: list[int] = np.argsort(-keys, kind="stable")[:length].tolist()
        speed = _speed(rewards, seen)
        log = torch.log_softmax(policy.scores(features, seen, speed), 0)
        drawn = _draw(log, settings.group, rng)
    earned = rewards[drawn]
    spread = earned.std()
    advantage = (earned - earned.mean()) / (spread + 1e-4)
    if spread > 1e-9:
        advantage = advantage + settings.best_of * (earned >= earned.max())
    index = torch.as_tensor(drawn)
    return features, seen, speed, index, torch.as_tensor(advantage, dtype=torch.float32), log[index], earned


def _speed(rewards: np.ndarray, seen: Sequence[int]) -> list[float]:
    """Speeds of what was measured, relative to the first of them, as `Policy.choose` sees them."""
    return [float(rewards[i] - rewards[seen[0]]) for i in seen]


def _draw(logits: Any, count: int, rng: np.random.Generator) -> list[int]:
    """Independent draws from the softmax, by NumPy's generator."""
    values = logits.double().numpy()
    weights = np.exp(values - values.max())
    picks: list[int] = rng.choice(len(weights), size=count, p=weights / weights.sum()).tolist()
    return picks
