"""CuAsmRL's convolutional network.

Observations are laid out as `game.ObservationLayout` says. It plugs into sb3-contrib's masked actor-critic
policy (overriding `_build`, sb3-contrib 2.9.2): the network gives the logits of all choices and the state's
value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sassafras.core.files import locked

from .graphed import Graphed, check_finite, masked


class _AsIs(BaseFeaturesExtractor):
    """Hands observations through; the network itself reads them."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, features_dim=observation_space.shape[-1])

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return observations


class _Means(nn.Module):
    """Averages rows down as `AdaptiveAvgPool2d` does. On a GPU as a product: there the pool's gradients are
    added up in an unknown order, and a search would not repeat itself."""

    def __init__(self, rows: int, fewer: int) -> None:
        super().__init__()
        self.fewer = fewer
        table = torch.zeros(fewer, rows)
        for n in range(fewer):
            a, b = n * rows // fewer, -(-(n + 1) * rows // fewer)
            table[n, a:b] = 1.0 / (b - a)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, channels, rows, columns) -> (batch, channels, fewer, columns)."""
        if x.device.type == "cpu":
            return nn.functional.adaptive_avg_pool2d(x, (self.fewer, x.shape[3]))
        table: torch.Tensor = self.table  # type: ignore[assignment]
        return table @ x


def orthogonal(weight: torch.Tensor, gain: float, device: str = "cpu", turns: str = "") -> None:
    """`nn.init.orthogonal_`, drawn on the CPU and factorised on `device` in its turn (`core.files.locked`).

    One thread of a CPU takes 40 s for the 200 million weights of a long kernel.
    """
    drawn = torch.empty(len(weight), weight.numel() // len(weight)).normal_()
    wide = drawn.shape[0] < drawn.shape[1]
    with locked(turns if device != "cpu" else ""):
        q, r = torch.linalg.qr((drawn.T if wide else drawn).to(device))
        q = (q * r.diagonal().sign()).cpu()
    with torch.no_grad():
        weight.view(drawn.shape).copy_(q.T if wide else q).mul_(gain)


class PaperNetwork(nn.Module):
    """CuAsmRL's network (arXiv 2501.08071 and its public code): convolutions over (instruction, column),
    512 hidden units, linear actor and critic. Its weights fit one kernel only.

    Where a kernel has more than some 200 instructions, its last layer would hold hundreds of millions of
    weights; there the rows are averaged down to 48 first (a deviation of ours).

    Args:
        rows, columns, actions: as in `game.ObservationLayout`; of the columns only the space's own are read.
        pool: average the rows of long kernels.
        device, turns: where weights are factorised (`orthogonal`).
    """

    ROWS, LEAST = 48, 12

    def __init__(
        self,
        rows: int,
        columns: int,
        actions: int,
        pool: bool = True,
        device: str = "cpu",
        turns: str = "",
    ) -> None:
        super().__init__()
        self.columns = columns
        self.latent_dim_pi = self.latent_dim_vf = 1  # what sb3 asks of an mlp_extractor; not used
        self.convolve = nn.Sequential(
            nn.Conv2d(1, 32, (5, 3), stride=(2, 1), padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, padding=(1, 1)),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=(1, 0)),
            nn.ReLU(),
        )
        with torch.no_grad():
            high, wide = self.convolve(torch.zeros(1, 1, max(rows, self.LEAST), columns)).shape[2:]
        pool = pool and high > self.ROWS
        self.pool = _Means(high, self.ROWS) if pool else nn.Identity()
        high = self.ROWS if pool else high
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(64 * high * wide, 512), nn.ReLU())
        self.actor, self.critic = nn.Linear(512, rows * actions + 1), nn.Linear(512, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                orthogonal(module.weight, 2**0.5, device, turns)
                nn.init.zeros_(module.bias)
        orthogonal(self.actor.weight, 0.01, device, turns)
        orthogonal(self.critic.weight, 1.0, device, turns)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """observation (batch, rows, width) -> logits (batch, rows * actions + 1), value (batch, 1)."""
        seen = observation[:, None, :, : self.columns]
        if seen.shape[2] < self.LEAST:
            seen = nn.functional.pad(seen, (0, 0, 0, self.LEAST - seen.shape[2]))
        x = self.hidden(self.pool(self.convolve(seen)))
        logits, value = self.actor(x), self.critic(x)
        if logits.device.type == "cpu":  # (a recorded graph cannot be asked; `Graphed.look` asks its outputs)
            check_finite(logits)
        return logits, value

    def forward_actor(self, observation: torch.Tensor) -> torch.Tensor:
        """The logits alone."""
        return self.forward(observation)[0]

    def forward_critic(self, observation: torch.Tensor) -> torch.Tensor:
        """The value alone."""
        return self.forward(observation)[1]


class GamePolicy(MaskableActorCriticPolicy):
    """A masked actor-critic policy around `PaperNetwork`.

    Args:
        make: makes the network, on the CPU; the other arguments are sb3's.

    Attributes:
        graphed: launches the network's work on a GPU as CUDA graphs; None: it is launched piece by piece.
    """

    graphed: Graphed | None = None

    def __init__(self, *args: Any, make: Any, **kwargs: Any) -> None:
        self._make = make
        super().__init__(*args, features_extractor_class=_AsIs, **kwargs)

    def _build(self, lr_schedule: Any) -> None:
        # the network's outputs are the logits and the value themselves
        self.mlp_extractor = self._make()
        self.action_net = nn.Identity()  # type: ignore[assignment]
        self.value_net = nn.Identity()  # type: ignore[assignment]
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def forward(
        self, obs: torch.Tensor, deterministic: bool = False, action_masks: np.ndarray | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choices, values and log-probabilities, all on the CPU. See `MaskableActorCriticPolicy.forward`."""
        if self.graphed is None:
            choices, values, logs = super().forward(obs, deterministic, action_masks)
            return choices.cpu(), values.cpu(), logs.cpu()
        logits, values = self.graphed.look(obs)
        # drawn on the CPU, from the generator that a network there would draw from
        logs = masked(logits, None if action_masks is None else torch.from_numpy(action_masks))
        drawn = torch.multinomial(logs.softmax(-1), 1, replacement=True)
        return drawn[:, 0], values, logs.gather(-1, drawn)[:, 0]

    def predict_values(self, obs: Any) -> torch.Tensor:
        """What states are worth (n, 1), on the CPU."""
        return super().predict_values(obs).cpu() if self.graphed is None else self.graphed.look(obs)[1]

    @property
    def network(self) -> nn.Module:
        """The network itself."""
        network: nn.Module = self.mlp_extractor
        return network
