"""How a network learns from labelled states, on several threads; and how well it chooses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from sassafras.search.ppo.game import ObservationLayout
from sassafras.search.ppo.network import RowNetwork

from .random_walks import LabelledState, TrainingSettings, Walk

Item = TypeVar("Item")

#: states that go through the network at once. Sums over parts are taken in their order, so that what is
#: learnt does not depend on the number of threads
_PART = 4


@dataclass(frozen=True, slots=True)
class ChoiceQuality:
    """What a network makes of one state whose moves have been looked at.

    Attributes:
        loss: cross-entropy to the targets; stop is one more action, and gains nothing.
        gain: percent that its choice among the moves looked at gains over a uniform one, in expectation.
    """

    loss: float
    gain: float


class Learner:
    """Gradient descent on states, each thread with parts of a minibatch.

    Args:
        network: what learns; it is changed in place.
        optimizer: of its parameters.
        layout: of observations; its number of rows does not matter.
        settings: temperature, weight of the value.
        threads: of this process.
    """

    def __init__(
        self,
        network: RowNetwork,
        optimizer: torch.optim.Optimizer,
        layout: ObservationLayout,
        settings: TrainingSettings,
        threads: int = 1,
    ) -> None:
        self.network, self.optimizer, self.layout, self.settings = network, optimizer, layout, settings
        self._pool = ThreadPoolExecutor(max(1, threads))

    def step(self, states: Sequence[LabelledState]) -> tuple[float, float]:
        """One step on a minibatch: (loss, percent that its choice gains over a uniform one)."""
        parameters = list(self.network.parameters())

        def part(some: Sequence[LabelledState]) -> tuple[tuple[torch.Tensor, ...], float, float]:
            loss, choices = judge(self.network, some, self.layout, self.settings)
            gradient = torch.autograd.grad(loss / len(states), parameters)
            return gradient, float(loss.detach()), sum(c.gain for c in choices)

        # neighbours in size go together: less padding
        order = sorted(states, key=lambda s: len(s.observation))
        found = list(self._pool.map(part, parts(order, _PART)))
        for n, parameter in enumerate(parameters):
            parameter.grad = torch.stack([gradient[n] for gradient, _, _ in found]).sum(dim=0)
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        self.optimizer.step()
        total = len(states)
        return sum(loss for _, loss, _ in found) / total, sum(gain for _, _, gain in found) / total

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def judge(
    network: RowNetwork,
    states: Sequence[LabelledState],
    layout: ObservationLayout,
    settings: TrainingSettings,
) -> tuple[torch.Tensor, list[ChoiceQuality]]:
    """The sum of the states' losses (with the value's), and what the network makes of each."""
    rows = max(len(s.observation) for s in states)
    batch = torch.from_numpy(np.stack([pad(s.observation, rows, layout) for s in states]))
    logits, values = network(batch)
    losses, choices = [], []
    for n, one in enumerate(states):
        chosen = torch.cat([logits[n, torch.from_numpy(one.actions)], logits[n, -1:]])
        gains = torch.from_numpy(np.append(one.gains, np.float32(0.0)))
        target = (gains / settings.temperature).clamp(-20, 20).softmax(dim=0)
        loss = -(target * chosen.log_softmax(dim=0)).sum()
        taken = chosen[:-1].detach().softmax(dim=0)
        losses.append(loss)
        gain = float((taken * gains[:-1]).sum() - gains[:-1].mean())
        choices.append(ChoiceQuality(float(loss.detach()), gain))
    ahead = torch.tensor([s.ahead for s in states], dtype=torch.float32)
    # Huber's loss: gains have heavy tails
    value = torch.nn.functional.huber_loss(values.flatten(), ahead, reduction="sum")
    return torch.stack(losses).sum() + settings.value * value, choices


def choices(
    network: RowNetwork, walks: Iterable[Walk], layout: ObservationLayout, settings: TrainingSettings
) -> Iterator[tuple[Walk, list[ChoiceQuality]]]:
    """What a network makes of each state of each walk; nothing is learnt."""
    with torch.no_grad():
        for walk in walks:
            if walk.states:
                yield walk, judge(network, walk.states, layout, settings)[1]


def pad(observation: np.ndarray, rows: int, layout: ObservationLayout) -> np.ndarray:
    """An observation with so many rows."""
    out = np.zeros((rows, observation.shape[1]), dtype=np.float32)
    out[:, observation.shape[1] - layout.links :] = -1.0
    out[: len(observation)] = observation
    return out


def parts(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Items in parts of `size`."""
    return [items[n : n + size] for n in range(0, len(items), size)]
