"""Training of the kernel-independent policy on many kernels by imitation.

On walks through the schedules of many kernels, some legal moves of each state are all evaluated, and the
network learns to give each a probability that grows with what it gains; an evaluation teaches something even
where it found nothing.

Everything random in iteration `i` follows from (seed, i), so a run that is stopped and taken up again at an
iteration's end goes on as if it had not been stopped, and many processes learn the same as one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sassafras.core import SearchError
from sassafras.search.ppo import checkpoint
from sassafras.search.ppo.agent import chance, fill, one_thread
from sassafras.search.ppo.game import AssemblyGame
from sassafras.search.ppo.network import RowNetwork

from .holdout import Holdout
from .imitation import Learner, parts
from .random_walks import TrainingSettings
from .walk_workers import Makers, Place, WalkTable, WalkWorkers


class Trainer:
    """Trains one network; its state is a checkpoint. Close it when done: it may own processes.

    Args:
        makers: makers of kernels by family: they are opened when first drawn. With more than one worker the
            makers travel to other processes.
        settings: how to train.
        seed: of everything random.
        path: checkpoint to write, and to go on from if it exists; None: keep nothing.
        workers: processes that walk. What is learnt does not depend on it.
        threads: of the network's update. What is learnt does not depend on it either.

    Raises:
        SearchError: the checkpoint was made with other settings or another seed.
    """

    def __init__(
        self,
        makers: Makers,
        settings: TrainingSettings | None = None,
        seed: int = 0,
        path: Path | None = None,
        workers: int = 1,
        threads: int = 1,
    ) -> None:
        if not makers or not all(makers.values()):
            raise SearchError("there are no kernels to train on")
        self.makers, self.settings, self.seed, self.path = makers, settings or TrainingSettings(), seed, path
        self.unusable: dict[Place, str] = {}
        table = WalkTable(makers)
        first, _ = table.first([(family, n) for family in sorted(makers) for n in range(len(makers[family]))])
        self.layout = AssemblyGame(first.space, first.evaluate).layout
        with chance(seed):
            self.network = RowNetwork(
                self.layout.columns,
                self.layout.links,
                self.layout.actions,
                self.settings.width,
                self.settings.depth,
            )
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.settings.rate, eps=1e-5)
        self.iteration = self.evaluations = 0
        self.seconds = self.waited = 0.0
        self.log: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._resume(path)
        self._keep()
        self.learner = Learner(self.network, self.optimizer, self.layout, self.settings, threads)
        self.workers = WalkWorkers(makers, workers, table)

    def close(self) -> None:
        """End its processes and threads."""
        self.workers.close()
        self.learner.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def iterate(self) -> dict[str, Any]:
        """Walk on some kernels and learn from what was found; returns the iteration's metrics."""
        begun, settings = time.monotonic(), self.settings
        ahead = [[self.seed, self.iteration + n] for n in range(1, 4)]
        found = self.workers.walks(settings, [self.seed, self.iteration], ahead)
        waited = time.monotonic() - begun
        self.unusable |= found.unusable
        states = [state for walk in found.walks for state in walk.states]
        self.evaluations += sum(walk.evaluations for walk in found.walks)
        rng = np.random.default_rng([self.seed, self.iteration])
        losses, gains = [], []
        with one_thread():
            for _ in range(settings.passes):
                for chosen in parts(rng.permutation(len(states)).tolist(), settings.batch):
                    loss, gain = self.learner.step([states[n] for n in chosen])
                    losses.append(loss)
                    gains.append(gain)
        self.iteration += 1
        self.seconds += time.monotonic() - begun
        self.waited += waited
        row = {
            "iteration": self.iteration,
            "evaluations": self.evaluations,
            "loss": round(float(np.mean(losses)), 5),
            "gain_over_uniform": round(float(np.mean(gains)), 5),
            "states": len(states),
        }
        self.log.append(row)
        self._keep()
        return row

    def _keep(self) -> None:
        """Remember the state at an iteration's end: what `save` writes, even in the middle of the next."""
        arrays = {name: value.numpy().copy() for name, value in self.network.state_dict().items()}
        adam = {
            f"adam/{n}/{name}": value.numpy().copy()
            for n, held in self.optimizer.state_dict()["state"].items()
            for name, value in held.items()
        }
        described = {
            "network": "rows",
            "layout": asdict(self.layout),
            "settings": asdict(self.settings),
            "seed": self.seed,
            "iteration": self.iteration,
            "evaluations": self.evaluations,
            "seconds": round(self.seconds, 1),
            "families": sorted(self.makers),
            "unusable": len(self.unusable),
        }
        self._kept = (arrays, adam, described, list(self.log))

    def save(self, path: Path | None = None, *, optimizer: bool = True, **facts: Any) -> None:
        """Write the checkpoint, as of the last iteration's end.

        Args:
            path: None: the trainer's own.
            optimizer: False leaves out what only training needs.
            facts: added to the description.
        """
        arrays, adam, described, log = self._kept
        target = path or self.path
        if target is not None:
            more = {"log": log} if optimizer else {}
            held = {**arrays, **(adam if optimizer else {})}
            checkpoint.save(target, held, {**described, **facts, **more})

    def _resume(self, path: Path) -> None:
        arrays, described = checkpoint.load(path)
        if described["settings"] != asdict(self.settings) or described["seed"] != self.seed:
            raise SearchError(
                "this checkpoint was made with other settings or another seed",
                where=str(path),
                hint="name another file, or give the same settings",
            )
        fill(self.network, arrays, str(path))
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in arrays.items():
            if name.startswith("adam/"):
                _, n, what = name.split("/")
                state.setdefault(int(n), {})[what] = torch.from_numpy(np.array(value))
        if state:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.iteration, self.evaluations = described["iteration"], described["evaluations"]
        self.seconds, self.log = described["seconds"], described.get("log", [])

    def train(
        self,
        *,
        iterations: int | None = None,
        seconds: float | None = None,
        every: int = 20,
        say: Callable[[str], None] = print,
        holdout: Holdout | None = None,
        saved: Callable[[], None] = lambda: None,
        save_s: float = 120.0,
    ) -> None:
        """Train until so many iterations are done in all, or the time is up.

        However it ends (an exception too), the state at the last iteration's end is written.

        Args:
            iterations: counted from the training's very beginning; None: no limit.
            seconds: of this sitting; None: no limit.
            every: iterations between two lines said.
            say: takes lines of JSON.
            holdout: scored with every line.
            saved: called after each checkpoint.
            save_s: seconds between two checkpoints.
        """
        begun = written = time.monotonic()
        try:
            while (iterations is None or self.iteration < iterations) and (
                seconds is None or time.monotonic() - begun < seconds
            ):
                row = self.iterate()
                if self.iteration % every == 0:
                    shown = {**row, "seconds": round(self.seconds, 1), "waited": round(self.waited, 1)}
                    say(json.dumps(shown | (holdout.score(self.network, self.layout) if holdout else {})))
                if time.monotonic() - written > save_s:
                    written = time.monotonic()
                    self.save()
                    saved()
        finally:
            self.save()
            saved()
