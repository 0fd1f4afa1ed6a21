"""Walks through the schedules of kernels that evaluate some moves of each state: what imitation learns from.

A walk is a function of its kernel and its seeds, and knows nothing of the network. So walks can be made in
other processes, and ahead of the network's training. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core import Outcome
from sassafras.search.ppo.game import AssemblyGame


@dataclass(frozen=True, slots=True)
class TrainingKernel:
    """A kernel to train on.

    Attributes:
        name: for the log.
        family: kernels of one family are drawn as often as those of another, however many there are.
        space: a `core.Playable` space.
        evaluate: what a state is worth.
    """

    name: str
    family: str
    space: Any
    evaluate: Callable[[Any], Outcome]


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How to train.

    Attributes:
        width, depth: of the network.
        kernels: walks an iteration, each on a kernel that is drawn.
        moves: moves of a walk.
        samples_per_state: legal moves evaluated in each state.
        temperature: percent of runtime; a move's target is exp(gain / temperature), up to a factor.
        greed: chance that a walk follows the best move seen, if it gains anything; else any that was seen.
        passes: over an iteration's states.
        batch: states of a minibatch.
        rate: learning rate.
        value: weight of the value's loss.
    """

    width: int = 64
    depth: int = 3
    kernels: int = 4
    moves: int = 10
    samples_per_state: int = 10
    temperature: float = 0.03
    greed: float = 0.7
    passes: int = 6
    batch: int = 10
    rate: float = 1e-3
    value: float = 0.1


@dataclass
class LabelledState:
    """A state and what its moves gain: observation, actions tried, gains in percent, gain still to come."""

    observation: np.ndarray
    actions: np.ndarray
    gains: np.ndarray
    ahead: float = 0.0


@dataclass(frozen=True)
class Walk:
    """A walk's states, on which kernel it was, and how many evaluations it took."""

    name: str
    family: str
    states: list[LabelledState]
    evaluations: int


def walk(kernel: TrainingKernel, settings: TrainingSettings, seeds: Sequence[int]) -> Walk:
    """Walk through a kernel's schedules, and evaluate some moves of each.

    Raises:
        SearchError: the unmodified kernel cannot be evaluated, or the validator refused a legal move.
    """
    rng = np.random.default_rng(list(seeds))
    game = AssemblyGame(kernel.space, kernel.evaluate, horizon=settings.moves + 1, noise=0.0)
    observation, _ = game.reset(seed=int(rng.integers(1 << 31)))
    states: list[LabelledState] = []
    costs, evaluations = [game.cost], 0
    for _ in range(settings.moves):
        gains, kept = [], []
        for action in _some(kernel.space.legal(game.state), settings.samples_per_state, rng):
            found = kernel.space.act(game.state, *divmod(int(action), game.layout.actions))
            if found is None:
                continue
            outcome = kernel.evaluate(kernel.space.apply(game.state, found[0]))
            evaluations += 1
            if outcome.cost is not None:
                gains.append(100.0 * (game.cost - outcome.cost))
                kept.append(int(action))
        if not kept:
            break
        states.append(LabelledState(observation, np.array(kept), np.array(gains, dtype=np.float32)))
        best = int(np.argmax(gains))
        greedy = gains[best] > 0 and rng.random() < settings.greed
        follow = best if greedy else int(rng.integers(len(kept)))
        observation, _, ended, late, _ = game.step(kept[follow])
        costs.append(game.cost)
        if ended or late:
            break
    for n, state in enumerate(states):
        state.ahead = 100.0 * (costs[n] - min(costs[n:]))
    return Walk(kernel.name, kernel.family, states, evaluations)


def _some(legal: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Some legal actions, half of them with every kind as likely, so that rare kinds are seen too."""
    actions = np.flatnonzero(legal)
    if len(actions) <= count:
        return actions
    kinds = actions % legal.shape[1]
    share = 1.0 / np.bincount(kinds, minlength=legal.shape[1])[kinds]
    odds = 0.5 * share / share.sum() + 0.5 / len(actions)
    chosen: np.ndarray = rng.choice(actions, size=count, replace=False, p=odds)
    return chosen
