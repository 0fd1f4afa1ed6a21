"""The strategy ``ppo``: an agent that learns to schedule (CuAsmRL, arXiv 2501.08071)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sassafras.core import SearchError, Space, ToolMissing

from ..contract import Evaluate, Session
from .settings import Hyperparameters


@dataclass(frozen=True, slots=True)
class Ppo(Hyperparameters):
    """Play the assembly game on the kernel itself, and learn while playing.

    Attributes:
        moves, view: options that the schedule space is asked for (see `ScheduleSpace`); CuAsmRL's by default.
        patience: turns (`Session.idle`: a move that is evaluated is two) without anything new after which the
            agent gives up: each costs a thought, and small sets of moves are exhausted. 0: it does not.
        threads: of torch.
        on: where the network is: ``cpu``, or ``cuda`` or ``cuda:1``. The last bits differ.
        tensorboard: folder for metrics, or "". Not part of what makes two searches the same.
        turns: lock file that is held while the network works on a GPU that other searches time on, or "".
            Not part either.
    """

    moves: str = "memory"
    view: str = "paper"
    patience: int = 1500
    threads: int = 1
    on: str = "cpu"
    tensorboard: str = field(default="", metadata={"identity": False})
    turns: str = field(default="", metadata={"identity": False})

    name: ClassVar[str] = "ppo"

    def __post_init__(self) -> None:
        Hyperparameters.__post_init__(self)
        if self.threads < 1:
            raise SearchError("ppo cannot run on no thread", hint="threads is at least 1")

    @property
    def space_options(self) -> dict[str, Any]:
        """What a schedule space should be made with for this strategy."""
        return {"moves": self.moves, "view": self.view}

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            ToolMissing: torch, gymnasium or sb3-contrib is not installed.
            SearchError: the space cannot be played, there is no such GPU, or the network's weights overflow.
        """
        try:
            from .agent import Watch, agent, chance, network_device
            from .game import AssemblyGame
        except ImportError as error:
            raise ToolMissing(
                f"the strategy ppo needs {error.name}", hint="in the checkout: pip install -e '.[rl]'"
            ) from error
        where = network_device(self.on)
        baseline = session.best

        def begin(rng: np.random.Generator) -> tuple[Any, float]:
            found = session.best if rng.random() < self.restart else baseline
            return found.state, found.cost

        # drawn here: the agent has no part in the search's own chance
        seed, first = (int(session.rng.integers(1 << 31)) for _ in range(2))
        with ExitStack() as stack:
            stack.enter_context(chance(seed, self.threads, where))
            games = [
                AssemblyGame(
                    space,
                    evaluate,
                    horizon=self.horizon,
                    noise=None if self.gate else 0.0,
                    trusted=False,
                    mask=self.mask,
                    begin=begin,
                )
                for _ in range(self.envs)
            ]
            watch = Watch(
                lambda: session.more() and (not self.patience or session.idle < self.patience),
                lambda: session.best.cost,
                self.total,
            )
            model = agent(
                games,
                self,
                left=lambda: 1.0 - (watch.num_timesteps / self.total if self.total else session.progress),
                seed=first,
                tensorboard=self.tensorboard,
                device=where,
                turns=self.turns,
            )
            stack.callback(model.release)
            model.learn(1 << 40, callback=watch)
