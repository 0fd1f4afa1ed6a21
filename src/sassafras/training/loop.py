"""Training of the kernel-independent policy on many kernels, before it meets the one that matters.

Two lessons. *Look around*: on walks through the schedules of many kernels, some legal moves of each state
are all evaluated, and the network learns to give each a probability that grows with what it gains; an
evaluation teaches something even where it found nothing. *Play*: MaskablePPO on games of several kernels.

Everything random in iteration `i` follows from (seed, i), so a run that is stopped and taken up again at an
iteration's end goes on as if it had not been stopped, and many processes learn the same as one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sassafras.core import SearchError
from sassafras.search.ppo import checkpoint
from sassafras.search.ppo.agent import agent, chance, fill, one_thread
from sassafras.search.ppo.game import AssemblyGame
from sassafras.search.ppo.network import RowNetwork
from sassafras.search.ppo.settings import TUNE, Preset
from sassafras.search.ppo.vec_env import GameVecEnv

from .holdout import Holdout
from .imitation import Learner
from .random_walks import TrainingKernel, TrainingSettings
from .walk_workers import Makers, Place, WalkTable, WalkWorkers, draw

__all__ = ["Trainer", "TrainingKernel", "TrainingSettings"]


class Trainer:
    """Trains one network; its state is a checkpoint. Close it when done: it may own processes.

    Args:
        boards: the kernels, or makers of them by (family, name): they are opened when first drawn. With more
            than one worker the makers travel to other processes.
        lessons: how to train.
        seed: of everything random.
        path: checkpoint to write, and to go on from if it exists; None: keep nothing.
        workers: processes that look around. What is learnt does not depend on it.
        threads: of the network's update. What is learnt does not depend on it either.

    Raises:
        SearchError: the checkpoint was made with other lessons or another seed.
    """

    def __init__(
        self,
        boards: Makers,
        lessons: TrainingSettings | None = None,
        seed: int = 0,
        path: Path | None = None,
        workers: int = 1,
        threads: int = 1,
    ) -> None:
        if not boards or not all(boards.values()):
            raise SearchError("there are no kernels to train on")
        self.makers, self.lessons, self.seed, self.path = boards, lessons or TrainingSettings(), seed, path
        self.unusable: dict[Place, str] = {}
        self.table = WalkTable(boards)
        every = [(family, n) for family in sorted(boards) for n in range(len(boards[family]))]
        first, _ = self.table.first(every)
        layout = AssemblyGame(first.space, first.evaluate).layout
        with chance(seed):
            self.network = RowNetwork(
                layout.columns, layout.links, layout.verbs, self.lessons.width, self.lessons.depth
            )
        self.layout = layout
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.lessons.rate, eps=1e-5)
        self.iteration = self.evaluations = 0
        self.seconds = self.waited = 0.0
        self.log: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._resume(path)
        self._keep()
        self.learner = Learner(self.network, self.optimizer, layout, self.lessons, threads)
        self.crew = WalkWorkers(boards, workers, self.table)

    def close(self) -> None:
        """End its processes and threads."""
        self.crew.close()
        self.learner.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the first lesson

    def look_around(self) -> dict[str, Any]:
        """One iteration of the first lesson; returns its metrics."""
        begun, lessons = time.monotonic(), self.lessons
        ahead = [[self.seed, self.iteration + n] for n in range(1, 4)]
        found = self.crew.walks(lessons, [self.seed, self.iteration], ahead)
        waited = time.monotonic() - begun
        self.unusable |= found.unusable
        shown = [s for walk in found.walks for s in walk.shown]
        self.evaluations += sum(walk.evaluations for walk in found.walks)
        rng = np.random.default_rng([self.seed, self.iteration])
        losses, better = [], []
        with one_thread():
            for _ in range(lessons.passes):
                for part in _parts(rng.permutation(len(shown)), lessons.batch):
                    loss, gained = self.learner.step([shown[n] for n in part])
                    losses.append(loss)
                    better.append(gained)
        metrics = {"loss": np.mean(losses), "gain_over_uniform": np.mean(better), "states": len(shown)}
        return self._note("look", begun, metrics, waited=waited)

    # the second lesson

    def play(self) -> dict[str, Any]:
        """One iteration of the second lesson: PPO on some boards at once; returns its metrics."""
        begun, lessons = time.monotonic(), self.lessons
        rng = np.random.default_rng([self.seed, self.iteration])
        boards = []
        for _ in range(lessons.games):
            board, failed = self.table.first(draw(self.makers, rng))
            boards.append(board)
            self.unusable |= failed
        count = max(len(b.space.features(b.space.start())) for b in boards)
        games = [AssemblyGame(b.space, b.evaluate, rows=count, noise=0.0, trusted=True) for b in boards]
        lanes = GameVecEnv(games)
        preset = _play(lessons)
        with chance(int(rng.integers(1 << 31))):
            try:
                lanes.seed(int(rng.integers(1 << 31)))
                size = {"width": lessons.width, "depth": lessons.depth}
                model = agent(lanes, preset, left=lambda: 1.0, size=size)
                network = model.policy.network  # type: ignore[attr-defined]
                network.load_state_dict(self.network.state_dict())
                model.learn(preset.steps * len(games))
                self.network.load_state_dict(network.state_dict())
            finally:
                lanes.close()
        self.evaluations += sum(g.counts["moves"] for g in games)
        won = float(np.mean([100.0 * (1.0 - g.best_cost) for g in games]))
        ended = [e["r"] for e in (model.ep_info_buffer or ())]
        return self._note("play", begun, {"won": won, "episode_reward": np.mean(ended) if ended else 0.0})

    # the record

    def _note(
        self, lesson: str, begun: float, metrics: Mapping[str, Any], waited: float = 0.0
    ) -> dict[str, Any]:
        self.iteration += 1
        self.seconds += time.monotonic() - begun
        self.waited += waited
        row = {"iteration": self.iteration, "lesson": lesson, "evaluations": self.evaluations} | {
            name: round(float(value), 5) for name, value in metrics.items()
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
            "lessons": asdict(self.lessons),
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
        if described["lessons"] != asdict(self.lessons) or described["seed"] != self.seed:
            raise SearchError(
                "this checkpoint was made with other lessons or another seed",
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
        look: int | None = None,
        play: int = 0,
        seconds: float | None = None,
        every: int = 20,
        say: Callable[[str], None] = print,
        play_share: float = 0.2,
        exam: Holdout | None = None,
        saved: Callable[[], None] = lambda: None,
        save_s: float = 120.0,
    ) -> None:
        """Train until so many iterations of each lesson are done in all, or the time is up.

        However it ends (an exception too), the state at the last iteration's end is written.

        Args:
            look, play: iterations of the two lessons, counted from the training's very beginning; look None:
                as many as the time allows, with `play_share` of the time for play.
            seconds: of this sitting; None: no limit.
            every: iterations between two lines said.
            say: takes lines of JSON.
            play_share: of the time, for the second lesson.
            exam: sat with every line.
            saved: called after each checkpoint.
            save_s: seconds between two checkpoints.
        """
        begun = time.monotonic()
        end = None if seconds is None else begun + seconds
        written = begun
        try:
            while end is None or time.monotonic() < end:
                looked = sum(row["lesson"] == "look" for row in self.log)
                enough = look is not None and looked >= look
                share = 1.0 - play_share if look is None else 1.0
                late = seconds is not None and time.monotonic() - begun > share * seconds
                if not enough and not late:
                    row = self.look_around()
                elif (look is None and late) or self.iteration - looked < play:
                    row = self.play()
                else:
                    break
                if self.iteration % every == 0:
                    shown = {**row, "seconds": round(self.seconds, 1), "waited": round(self.waited, 1)}
                    say(json.dumps(shown | (exam.sit(self.network, self.layout) if exam else {})))
                if time.monotonic() - written > save_s:
                    written = time.monotonic()
                    self.save()
                    saved()
        finally:
            self.save()
            saved()


def _play(lessons: TrainingSettings) -> Preset:
    return replace(TUNE, steps=lessons.play_steps, rate=lessons.play_rate, anneal=False, restart=0.0)


def _parts(order: np.ndarray, size: int) -> list[np.ndarray]:
    return [order[n : n + size] for n in range(0, len(order), size)]
