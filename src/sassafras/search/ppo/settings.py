"""Hyper-parameters of the agent. The defaults are CuAsmRL's: arXiv 2501.08071 and its public code."""

from __future__ import annotations

from dataclasses import dataclass

from sassafras.core import SearchError


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What MaskablePPO is run with.

    Attributes:
        envs: games side by side.
        steps: moves in each game between two updates.
        batch: moves of a minibatch.
        epochs: passes over the moves of an update.
        rate: learning rate; it falls linearly to zero over the budget.
        gamma: discount of later rewards.
        lam: lambda of generalised advantage estimation.
        clip: how far the probability ratio may leave 1.
        clip_value: the same for the value; None for no limit.
        entropy: weight of the entropy bonus.
        value: weight of the value's loss.
        norm: most that the gradient's norm may be.
        horizon: moves in an episode.
        restart: share of episodes that begin at the best state so far; the others begin at the baseline.
        gate: withhold the reward of changes within the noise until they add up; CuAsmRL pays every change.
        mask: offer legal moves only. False: any move of an instruction that the space may move; an illegal
            one is refused unrun and ends the episode at -1.
        pool: average the rows of long kernels before the last layer; CuAsmRL does not.
        total: moves after which learning ends, which the learning rate falls over; 0: the budget's.

    Raises:
        SearchError: nothing can be learnt with these.
    """

    envs: int = 1
    steps: int = 64
    batch: int = 8
    epochs: int = 4
    rate: float = 2.5e-4
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    clip_value: float | None = 0.2
    entropy: float = 0.01
    value: float = 0.5
    norm: float = 0.5
    horizon: int = 32
    restart: float = 0.0
    gate: bool = True
    mask: bool = True
    pool: bool = True
    total: int = 0

    def __post_init__(self) -> None:
        moves = self.envs * self.steps
        if min(self.envs, self.steps, self.epochs, self.horizon) < 1 or moves < 2 or self.batch < 2:
            raise SearchError(
                f"ppo cannot learn with {self}",
                hint="envs, steps, epochs and horizon are at least 1, batch and envs * steps at least 2",
            )
        if moves % min(self.batch, moves) == 1:
            raise SearchError(
                f"ppo cannot learn with batch={self.batch}: of {moves} moves one is left at the end",
                hint="a minibatch needs two moves, as advantages are divided by their standard deviation",
            )
        if max(self.gamma, self.lam, self.restart) > 1 or self.clip_value == 0:
            raise SearchError(
                f"ppo cannot learn with {self}",
                hint="gamma, lam and restart are at most 1, clip_value is above 0",
            )
