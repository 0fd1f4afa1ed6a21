"""The strategy ``ppo``: an agent that learns to schedule (CuAsmRL, arXiv 2501.08071)."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sassafras.core import SearchError, Space, ToolMissing

from ..contract import Evaluate, Session
from . import checkpoint
from .settings import CUASMRL, TUNE, Preset


@dataclass(frozen=True, slots=True)
class Ppo:
    """Play the assembly game on the kernel itself, and learn while playing.

    Attributes:
        policy: ``pretrained`` (the kernel-independent network, trained on the timing model), ``fresh``
            (CuAsmRL's network and hyper-parameters, from nothing), ``untrained`` (as ``pretrained``, but
            untrained: what the training is worth is the difference), or the path of a checkpoint.
        envs, steps, epochs, horizon, rate, entropy, restart: of `settings.Preset`; None: the preset's own.
        moves, view: options that the schedule space is asked for; "": the preset's own.
        patience: turns (`Session.idle`: a move that is evaluated is two) without anything new after which the
            agent gives up: each costs a thought, and small sets of moves are exhausted.
        threads: of torch.
        on: where the network is: ``cpu``, or ``cuda`` or ``cuda:1``. The last bits differ.
        tensorboard: folder for metrics, or "". Not part of what makes two searches the same.
        digest: of the policy's file; set by itself.
    """

    policy: str = "pretrained"
    envs: int | None = None
    steps: int | None = None
    epochs: int | None = None
    horizon: int | None = None
    rate: float | None = None
    entropy: float | None = None
    restart: float | None = None
    moves: str = ""
    view: str = ""
    patience: int = 1500
    threads: int = 1
    on: str = "cpu"
    tensorboard: str = field(default="", metadata={"identity": False})
    digest: str = field(default="", repr=False)

    name: ClassVar[str] = "ppo"

    def __post_init__(self) -> None:
        path = checkpoint.find(self.policy)
        if path is not None:
            object.__setattr__(self, "digest", checkpoint.digest(path))

    @property
    def preset(self) -> Preset:
        """The hyper-parameters, with what was set otherwise."""
        own = {
            name: value
            for name in ("envs", "steps", "epochs", "horizon", "rate", "entropy", "restart", "moves", "view")
            if (value := getattr(self, name)) not in (None, "")
        }
        return dataclasses.replace(CUASMRL if self.policy == "fresh" else TUNE, **own)

    @property
    def space_options(self) -> dict[str, Any]:
        """What a schedule space should be made with for this strategy."""
        preset = self.preset
        return {"moves": preset.moves, "view": preset.view}

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            ToolMissing: torch, gymnasium or sb3-contrib is not installed.
            SearchError: the space cannot be played, the policy does not fit it, or there is no such GPU.
        """
        try:
            from .agent import Watch, agent, chance, load_weights, network_device, size_of
            from .game import AssemblyGame
        except ImportError as error:
            raise ToolMissing(
                f"the strategy ppo needs {error.name}", hint="in the checkout: pip install -e '.[rl]'"
            ) from error
        preset = self.preset
        if preset.envs < 1 or preset.steps < 1 or preset.horizon < 1:
            raise SearchError("envs, steps and horizon must be at least 1")
        where = network_device(self.on)
        baseline = session.best

        def begin(rng: np.random.Generator) -> tuple[Any, float]:
            found = session.best if rng.random() < preset.restart else baseline
            return found.state, found.cost

        # drawn here: the agent has no part in the search's own chance
        seed, first = (int(session.rng.integers(1 << 31)) for _ in range(2))
        path = checkpoint.find(self.policy)
        with ExitStack() as stack:
            stack.enter_context(chance(seed, self.threads, where))
            games = [
                AssemblyGame(space, evaluate, horizon=preset.horizon, trusted=False, begin=begin)
                for _ in range(preset.envs)
            ]
            model = agent(
                games,
                preset,
                left=lambda: 1.0 - session.progress,
                seed=first,
                tensorboard=self.tensorboard,
                size=None if path is None else size_of(path),
                device=where,
            )
            stack.callback(model.release)
            if path is not None:
                load_weights(model, path)
            watch = Watch(lambda: session.more() and session.idle < self.patience, lambda: session.best.cost)
            model.learn(1 << 40, callback=watch)
