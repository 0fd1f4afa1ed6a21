"""MaskablePPO on assembly games, with its chance kept to itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HumanOutputFormat, KVWriter, Logger, TensorBoardOutputFormat
from stable_baselines3.common.vec_env import DummyVecEnv

from sassafras.core import SearchError, ToolMissing

from . import checkpoint
from .game import AssemblyGame, ObservationLayout
from .graphed import Graphed
from .network import GamePolicy, PaperNetwork, RowNetwork
from .settings import Preset


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


def maker(
    preset: Preset, layout: ObservationLayout, size: Mapping[str, int] | None = None
) -> Callable[[], Any]:
    """What makes the network that a preset names, for games of this layout; `size`: other width and depth."""
    if preset.network == "paper":
        return partial(PaperNetwork, layout.rows, layout.columns, layout.actions)
    if preset.network == "rows":
        return partial(RowNetwork, layout.columns, layout.links, layout.actions, **(size or {}))
    raise SearchError(f"there is no network {preset.network!r}", hint="paper or rows")


class GamePPO(MaskablePPO):
    """sb3-contrib's MaskablePPO (2.9.2). On a GPU the network's work is launched as CUDA graphs (`graphed`)
    where the network can be recorded."""

    policy: GamePolicy  # type: ignore[assignment]

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.device.type == "cuda" and getattr(self.policy.network, "recordable", False):
            self.policy.graphed = Graphed(self)

    def train(self) -> None:
        """Learn from the rollout. See `MaskablePPO.train`."""
        if self.policy.graphed is not None and self.target_kl is None:
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
    preset: Preset,
    *,
    left: Callable[[], float],
    seed: int,
    tensorboard: str = "",
    size: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> GamePPO:
    """A MaskablePPO agent for these games.

    Args:
        games: all observations must have the same shape; they are played one after the other.
        preset: hyper-parameters.
        left: share of the budget that is left, 1 to 0: what the learning rate falls with.
        seed: of the games.
        tensorboard: folder to write metrics to, or "".
        size: width and depth of the kernel-independent network, where they are not the usual ones.
        device: of the network (`network_device`).

    Raises:
        ToolMissing: `tensorboard` is given but the package is not installed.
    """
    env = DummyVecEnv([lambda game=game: game for game in games])  # type: ignore[misc]
    env.seed(seed)

    def rate(_: float) -> float:
        return preset.rate * max(left(), 0.01)

    model = GamePPO(
        GamePolicy,
        env,
        learning_rate=rate,
        n_steps=preset.steps,
        batch_size=min(preset.batch, preset.steps * env.num_envs),
        n_epochs=preset.epochs,
        gamma=preset.gamma,
        gae_lambda=preset.lam,
        clip_range=preset.clip,
        clip_range_vf=preset.clip_value,
        ent_coef=preset.entropy,
        vf_coef=preset.value,
        max_grad_norm=preset.norm,
        target_kl=preset.target,
        # (sb3's own epsilon; fused, because CuAsmRL's network has 27 million weights: half the time)
        policy_kwargs={
            "make": maker(preset, games[0].layout, size),
            "optimizer_kwargs": {"eps": 1e-5, "fused": True},
        },
        device=device,
        verbose=0,
    )
    model.set_logger(_logger(tensorboard))
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


def size_of(path: Path) -> dict[str, int]:
    """Width and depth of the network that a checkpoint holds.

    Raises:
        SearchError: it cannot be read.
    """
    settings = checkpoint.load(path)[1].get("settings", {})
    return {name: int(settings[name]) for name in ("width", "depth") if name in settings}


def load_weights(model: GamePPO, path: Path) -> dict[str, Any]:
    """Put a checkpoint's weights into an agent's network; returns the checkpoint's description.

    Raises:
        SearchError: they do not fit.
    """
    arrays, description = checkpoint.load(path)
    network = model.policy.network
    fill(network, arrays, str(path))
    return description


def fill(network: torch.nn.Module, arrays: Mapping[str, np.ndarray], where: str) -> None:
    """Set a network's weights from arrays by name; others are ignored.

    Raises:
        SearchError: one is missing or has another shape.
    """
    wanted = network.state_dict()
    for name, value in wanted.items():
        if name not in arrays or arrays[name].shape != tuple(value.shape):
            raise SearchError(
                f"the policy does not fit this game: {name} should be {tuple(value.shape)}",
                where=where,
                hint="it was made by another version, for another set of moves, or for another network",
            )
    network.load_state_dict({name: torch.from_numpy(arrays[name].copy()) for name in wanted})


class Watch(BaseCallback):
    """Ends learning when the search does, and logs what the games say."""

    def __init__(self, more: Callable[[], bool], best: Callable[[], float]) -> None:
        super().__init__()
        self.more, self.best = more, best

    def _on_step(self) -> bool:
        return self.more()

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


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's own threads off within: several threads of ours share the cores, and one thread is exact."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
