"""The network's work on a GPU as CUDA graphs: each is launched whole, where Python would launch a hundred
kernels one by one and take ten times as long as they do.

The mathematics are plain functions (`masked`, `losses`, `update`), on any device the same as sb3-contrib
2.9.2's `MaskablePPO.train`, to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.utils import explained_variance
from torch import nn

from sassafras.core import SearchError
from sassafras.core.failed_capture import captured
from sassafras.core.files import locked

#: calls of a function before it is recorded: they load what is loaded late, and make the optimizer's state
WARM = 3
#: log-odds of what is masked, as in sb3-contrib
_NEVER = -1e8


class Minibatch(NamedTuple):
    """Moves to learn from: observations (n, rows, width), masks bool (n, actions), actions int64 (n,), the
    rest (n,)."""

    observations: torch.Tensor
    actions: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    action_masks: torch.Tensor


@dataclass(frozen=True, slots=True)
class Terms:
    """Constants of the loss; see `settings.Hyperparameters`. `normalise`: each minibatch's advantages."""

    clip: float
    clip_value: float | None
    entropy: float
    value: float
    norm: float
    normalise: bool


def check_finite(outputs: torch.Tensor) -> None:
    """Raise where a network's outputs on the CPU are no numbers: no choice can be drawn from them.

    Raises:
        SearchError: see above.
    """
    if not bool(outputs.isfinite().all()):
        raise SearchError(
            "the agent's network has overflowed: its outputs are no numbers any more",
            hint="take a smaller rate, or smaller weights of entropy and value",
        )


def masked(logits: torch.Tensor, masks: torch.Tensor | None) -> torch.Tensor:
    """Log-probabilities (n, actions) of the actions that bool masks (n, actions) leave; None leaves all."""
    logs = logits - logits.logsumexp(-1, keepdim=True)
    if masks is None:
        return logs
    logs = logs.masked_fill(~masks, _NEVER)
    return logs - logs.logsumexp(-1, keepdim=True)


def losses(network: nn.Module, batch: Minibatch, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and what is logged of it (6,): losses of entropy, policy and value, the approximate
    Kullback-Leibler divergence, the share of ratios that were clipped, and the loss."""
    logits, values = network(batch.observations)
    logs = masked(logits, batch.action_masks)
    taken = logs.gather(-1, batch.actions[:, None]).squeeze(-1)
    entropy = -(logs * logs.softmax(-1)).masked_fill(~batch.action_masks, 0.0).sum(-1)
    advantages = batch.advantages
    if terms.normalise:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    further = taken - batch.log_probs
    ratio = further.exp()
    clipped = ratio.clamp(1 - terms.clip, 1 + terms.clip)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
    values = values.flatten()
    if terms.clip_value is not None:
        values = batch.values + (values - batch.values).clamp(-terms.clip_value, terms.clip_value)
    value_loss = nn.functional.mse_loss(batch.returns, values)
    entropy_loss = -entropy.mean()
    loss = policy_loss + terms.entropy * entropy_loss + terms.value * value_loss
    with torch.no_grad():
        divergence = ((ratio - 1) - further).mean()
        share = ((ratio - 1).abs() > terms.clip).float().mean()
        told = torch.stack([entropy_loss, policy_loss, value_loss, divergence, share, loss])
    return loss, told


def update(
    network: nn.Module,
    parameters: Sequence[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    batch: Minibatch,
    terms: Terms,
) -> torch.Tensor:
    """One step of the optimizer on a minibatch, without waiting; returns what is logged of it (`losses`)."""
    with torch.enable_grad():
        loss, told = losses(network, batch, terms)
        gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        # (the fused step wants both laid out alike)
        alike = gradient.stride() == parameter.stride()
        parameter.grad = gradient if alike else torch.empty_like(parameter).copy_(gradient)
    nn.utils.clip_grad_norm_(parameters, terms.norm)
    optimizer.step()
    return told


class GraphReplay:
    """A function of tensors whose shapes never change: on a GPU it is recorded as a CUDA graph, and replayed.

    Its first calls (`WARM`) run it as it is, and so does every call of one that cannot be recorded (a warning
    says why, once).

    Args:
        function: of tensors on the device; must not wait for the GPU. What else it reads or changes must stay
            where it is.
        device: where.
    """

    def __init__(self, function: Callable[..., torch.Tensor], device: torch.device) -> None:
        self.function, self.device = function, device
        self.calls = 0
        self.graph: Any = None
        self._held: list[torch.Tensor] = []
        self._out: torch.Tensor | None = None
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, *values: torch.Tensor) -> torch.Tensor:
        """The function's result on the device, a tensor of the caller's own; `values` may be anywhere."""
        if not self._held:
            self._held = [torch.empty(v.shape, dtype=v.dtype, device=self.device) for v in values]
        for held, value in zip(self._held, values, strict=True):
            if held.shape != value.shape:
                raise ValueError(f"recorded for a tensor of {tuple(held.shape)}, not {tuple(value.shape)}")
            held.copy_(value)
        if self._side is None:
            return self.function(*self._held)
        with torch.cuda.device(self.device):
            if self.calls == WARM:
                self._record()
            self.calls += 1
            if self.graph is not None and self._out is not None:
                self.graph.replay()
                return self._out.clone()
            # on the stream of the recording, so that it finds all there as it will need it
            now = torch.cuda.current_stream()
            self._side.wait_stream(now)
            with torch.cuda.stream(self._side):
                out = self.function(*self._held)
            now.wait_stream(self._side)
            return out

    def _record(self) -> None:
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with captured(graph, stream=self._side):
                out = self.function(*self._held)
        except RuntimeError as error:
            torch.cuda.set_stream(now)
            self._side = torch.cuda.Stream(self.device)  # the other may not be fit for use
            warnings.warn(
                f"the network's work could not be recorded as a CUDA graph and goes on without: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self.graph, self._out = graph, out


class Graphed:
    """What an agent's network does, every kind of it a `GraphReplay`: looking at observations, and learning.

    Args:
        model: a MaskablePPO whose policy is a `network.GamePolicy`.

    Attributes:
        turns: lock file held while the GPU works, or "".
    """

    turns = ""

    def __init__(self, model: Any) -> None:
        self.model, self.device = model, torch.device(model.device)
        self.network, self.optimizer = model.policy.network, model.policy.optimizer
        self.parameters = list(model.policy.parameters())
        self._looks: dict[int, GraphReplay] = {}
        self._updates: dict[tuple[Terms, int], GraphReplay] = {}
        self._held: Minibatch | None = None
        self._rate: torch.Tensor | None = None

    def look(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (n, actions) and values (n, 1), on the CPU, of observations (n, rows, width)."""

        def both(seen: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return torch.cat(self.network(seen), dim=1)

        count = len(observations)
        if count not in self._looks:
            self._looks[count] = GraphReplay(both, self.device)
        with locked(self.turns):
            out = self._looks[count](observations.float()).cpu()
        check_finite(out)
        return out[:, :-1], out[:, -1:]

    def train(self) -> None:
        """Learn from the rollout buffer: `MaskablePPO.train` with ``target_kl=None``. Draws the same
        minibatches, and logs the same names."""
        with locked(self.turns):
            self._train()

    def _train(self) -> None:
        model, buffer = self.model, self.model.rollout_buffer
        model.policy.set_training_mode(True)
        left = model._current_progress_remaining
        rate, clip = model.lr_schedule(left), model.clip_range(left)
        clip_value = None if model.clip_range_vf is None else model.clip_range_vf(left)
        model.logger.record("train/learning_rate", rate)
        if self._rate is None:
            self._rate = torch.zeros((), device=self.device)
        self._rate.fill_(rate)
        for group in self.optimizer.param_groups:
            # a tensor, which a recorded step reads each time
            group["lr"], group["capturable"] = self._rate, self.device.type == "cuda"
        terms = Terms(
            clip, clip_value, model.ent_coef, model.vf_coef, model.max_grad_norm, model.normalize_advantage
        )
        self._fill(buffer)
        count = buffer.buffer_size * buffer.n_envs
        told: list[torch.Tensor] = []
        for _ in range(model.n_epochs):
            begun = len(told)
            order = torch.from_numpy(np.random.permutation(count)).to(self.device)
            told += [self._update(terms, rows) for rows in order.split(model.batch_size)]
            model._n_updates += 1
        entropy, policy, value, divergence, share, loss = torch.stack(told).cpu().double().numpy().T
        record = model.logger.record
        record("train/entropy_loss", np.mean(entropy))
        record("train/policy_gradient_loss", np.mean(policy))
        record("train/value_loss", np.mean(value))
        record("train/approx_kl", np.mean(divergence[begun:]))  # as there: of the last pass
        record("train/clip_fraction", np.mean(share))
        record("train/loss", float(loss[-1]))
        record(
            "train/explained_variance", explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        )
        record("train/n_updates", model._n_updates, exclude="tensorboard")
        record("train/clip_range", clip)
        if clip_value is not None:
            record("train/clip_range_vf", clip_value)

    def release(self) -> None:
        """Let go of what was recorded; what is asked for later is recorded again."""
        self._looks.clear()
        self._updates.clear()
        self._held = None

    def _fill(self, buffer: Any) -> None:
        """Bring the rollout to the device, once for all minibatches of an update."""
        found = []
        for name in Minibatch._fields:
            array = getattr(buffer, name)
            flat = array if buffer.generator_ready else buffer.swap_and_flatten(array)
            one = torch.from_numpy(np.ascontiguousarray(flat))
            one = one.bool() if name == "action_masks" else one.long() if name == "actions" else one.float()
            found.append(one if one.dim() > 2 or name == "action_masks" else one.flatten())
        if self._held is None:
            self._held = Minibatch(*(torch.empty_like(one, device=self.device) for one in found))
        for held, one in zip(self._held, found, strict=True):
            held.copy_(one)

    def _update(self, terms: Terms, rows: torch.Tensor) -> torch.Tensor:
        """One minibatch: these rows of what `_fill` has brought."""

        def step(chosen: torch.Tensor) -> torch.Tensor:
            assert self._held is not None
            batch = Minibatch(*(one.index_select(0, chosen) for one in self._held))
            return update(self.network, self.parameters, self.optimizer, batch, terms)

        # (a last minibatch that is shorter is recorded for itself)
        kind = (terms, len(rows))
        if kind not in self._updates:
            self._updates[kind] = GraphReplay(step, self.device)
        return self._updates[kind](rows)
