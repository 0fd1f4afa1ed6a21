"""MaskablePPO on assembly games, with its chance kept to itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HumanOutputFormat, KVWriter, Logger, TensorBoardOutputFormat
from stable_baselines3.common.vec_env import DummyVecEnv

from sassafras.core import SearchError, ToolMissing

from .game import AssemblyGame
from .graphed import Graphed
from .network import GamePolicy, PaperNetwork
from .settings import Hyperparameters


def network_device(name: str) -> str:
    """The device of a network, checked: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        SearchError: it is none of these, or torch sees no such GPU.
    """
    kind, _, number = name.partition(":")
    if name == "cpu":
        return name
    if kind != "cuda" or not (number.isdecimal() or name == "cuda"):
        raise SearchError(f"no device is called {name!r}", hint="on=cpu, on=cuda or on=cuda:1")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= there:
        raise SearchError(f"the network cannot be on {name}: torch sees {there} GPUs", hint="on=cpu")
    return name


@contextmanager
def chance(seed: int, threads: int = 1, device: str = "cpu") -> Iterator[None]:
    """Seed the generators that torch and sb3 draw from, and leave them afterwards as they were.

    Args:
        seed: of the block's chance.
        device: whose generator is meant besides the processor's. On a GPU convolutions are those that repeat
            their results to the last bit.
        threads: of torch within the block; results may differ in the last bit between numbers of threads.
    """
    before = random.getstate(), np.random.get_state(), torch.get_num_threads()
    same = torch.backends.cudnn.deterministic
    with torch.random.fork_rng(devices=[] if device == "cpu" else [torch.device(device).index or 0]):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = same or device != "cpu"
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_num_threads(before[2])
            torch.backends.cudnn.deterministic = same


class GamePPO(MaskablePPO):
    """sb3-contrib's MaskablePPO (2.9.2). On a GPU the network's work is launched as CUDA graphs
    (`graphed`)."""

    policy: GamePolicy  # type: ignore[assignment]

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.device.type == "cuda":
            self.policy.graphed = Graphed(self)

    def train(self) -> None:
        """Learn from the rollout. See `MaskablePPO.train`."""
        if self.policy.graphed is not None:
            self.policy.graphed.train()
        else:
            super().train()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Let go of the recorded graphs."""
        if self.policy.graphed is not None:
            self.policy.graphed.release()


def agent(
    games: Sequence[AssemblyGame],
    settings: Hyperparameters,
    *,
    left: Callable[[], float],
    seed: int,
    tensorboard: str = "",
    device: str = "cpu",
    turns: str = "",
) -> GamePPO:
    """A MaskablePPO agent for these games.

    Args:
        games: all observations must have the same shape; they are played one after the other.
        settings: hyper-parameters.
        left: share of the budget that is left, 1 to 0: what the learning rate falls with.
        seed: of the games.
        tensorboard: folder to write metrics to, or "".
        device: of the network (`network_device`).
        turns: lock file held while the network works on a GPU, or "".

    Raises:
        ToolMissing: `tensorboard` is given but the package is not installed.
    """
    layout = games[0].layout
    env = DummyVecEnv([lambda game=game: game for game in games])  # type: ignore[misc]
    env.seed(seed)

    def rate(_: float) -> float:
        return settings.rate * max(left(), 0.01)

    model = GamePPO(
        GamePolicy,
        env,
        learning_rate=rate,
        n_steps=settings.steps,
        batch_size=min(settings.batch, settings.steps * env.num_envs),
        n_epochs=settings.epochs,
        gamma=settings.gamma,
        gae_lambda=settings.lam,
        clip_range=settings.clip,
        clip_range_vf=settings.clip_value,
        ent_coef=settings.entropy,
        vf_coef=settings.value,
        max_grad_norm=settings.norm,
        # (sb3's own epsilon; fused, because the network has up to 27 million weights: half the time)
        policy_kwargs={
            "make": partial(
                PaperNetwork, layout.rows, layout.columns, layout.actions, settings.pool, device, turns
            ),
            "optimizer_kwargs": {"eps": 1e-5, "fused": True},
        },
        device=device,
        verbose=0,
    )
    model.set_logger(_logger(tensorboard))
    if model.policy.graphed is not None:
        model.policy.graphed.turns = turns
    return model


def _logger(folder: str) -> Logger:
    if not folder:
        return Logger(None, [])
    formats: list[KVWriter] = []
    try:
        formats.append(TensorBoardOutputFormat(folder))
    except (ImportError, AssertionError) as error:
        raise ToolMissing("TensorBoard is not installed", hint="pip install tensorboard") from error
    Path(folder).mkdir(parents=True, exist_ok=True)
    formats.append(HumanOutputFormat(str(Path(folder) / "metrics.txt")))
    return Logger(folder, formats)


def weights(model: GamePPO) -> dict[str, np.ndarray]:
    """The network's weights, by name."""
    network = model.policy.network
    return {name: value.detach().cpu().numpy().copy() for name, value in network.state_dict().items()}


class Watch(BaseCallback):
    """Ends learning with the search, or after `total` moves (0: no limit), and logs what the games say."""

    def __init__(self, more: Callable[[], bool], best: Callable[[], float], total: int = 0) -> None:
        super().__init__()
        self.more, self.best, self.total = more, best, total

    def _on_step(self) -> bool:
        return self.more() and not 0 < self.total <= self.num_timesteps

    def _on_rollout_end(self) -> None:
        games = self.training_env.envs  # type: ignore[attr-defined]
        total: dict[str, int] = {}
        for game in games:
            for name, value in game.counts.items():
                total[name] = total.get(name, 0) + value
        for name, value in total.items():
            self.logger.record(f"game/{name}", value)
        self.logger.record("game/best_speedup", 1.0 / self.best())
        if buffered := list(self.model.ep_info_buffer or ()):
            self.logger.record("game/episode_reward", float(np.mean([e["r"] for e in buffered])))
            self.logger.record("game/episode_moves", float(np.mean([e["l"] for e in buffered])))
        self.logger.dump(self.num_timesteps)
