"""Hyper-parameters of the agent: CuAsmRL's published ones, and ours for a network that was trained before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """What MaskablePPO is run with.

    Attributes:
        network: ``paper`` (CuAsmRL's convolutions) or ``rows`` (the kernel-independent network).
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
        target: Kullback-Leibler divergence at 1.5 times which an update stops early; None: never.
        horizon: moves in an episode.
        restart: share of episodes that begin at the best state so far; the others begin at the baseline.
        moves, view: options that the schedule space is asked for (see `ScheduleSpace`).
    """

    network: str
    envs: int
    steps: int
    batch: int
    epochs: int
    rate: float
    clip_value: float | None
    entropy: float
    target: float | None
    restart: float
    moves: str
    view: str
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value: float = 0.5
    norm: float = 0.5
    horizon: int = 32


#: arXiv 2501.08071 and the defaults of its public code (github.com/hgl71964/cuasmrl): one environment,
#: minibatches of 8, value loss clipped too
CUASMRL = Preset(
    network="paper",
    envs=1,
    steps=64,
    batch=8,
    epochs=4,
    rate=2.5e-4,
    clip_value=0.2,
    entropy=0.01,
    target=None,
    restart=0.0,
    moves="memory",
    view="paper",
)

#: fine-tuning of a network that was trained on other kernels, and the same without training
TUNE = Preset(
    network="rows",
    envs=8,
    steps=16,
    batch=64,
    epochs=2,
    rate=1e-4,
    clip_value=None,
    entropy=0.003,
    target=0.03,
    restart=0.75,
    moves="all",
    view="all",
)
