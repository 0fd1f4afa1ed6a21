"""Training of the kernel-independent policy on many kernels, before it meets the one that matters.

Two lessons. *Look around*: on walks through the schedules of many kernels, some legal moves of each state
are all evaluated, and the network learns to give each a probability that grows with what it gains; an
evaluation teaches something even where it found nothing. *Play*: MaskablePPO on games of several kernels.

Everything random in iteration `i` follows from (seed, i), so a run that is stopped and taken up again at an
iteration's end goes on as if it had not been stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sassafras.core import Outcome, SearchError

from . import checkpoint
from .agent import agent, chance, fill
from .game import AssemblyGame, Layout
from .lanes import Lanes
from .network import RowNetwork
from .settings import TUNE, Preset


@dataclass(frozen=True, slots=True)
class Board:
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
class Lessons:
    """How to train.

    Attributes:
        width, depth: of the network.
        boards: kernels an iteration.
        moves: moves of a walk.
        looks: legal moves evaluated in each state.
        temperature: percent of runtime; a move's target is exp(gain / temperature), up to a factor.
        greed: chance that a walk follows the best move seen, if it gains anything; else any that was seen.
        passes: over an iteration's states.
        batch: states of a minibatch.
        rate: learning rate of the first lesson.
        play_steps: moves in each game of an iteration of the second lesson.
        play_rate: its learning rate.
        value: weight of the value's loss in the first lesson.
    """

    width: int = 64
    depth: int = 3
    boards: int = 4
    moves: int = 10
    looks: int = 10
    temperature: float = 0.03
    greed: float = 0.7
    passes: int = 6
    batch: int = 10
    rate: float = 1e-3
    play_steps: int = 32
    play_rate: float = 5e-5
    value: float = 0.1


@dataclass
class _Shown:
    """A state and what was learnt of it: observation, actions tried, gains in percent, gain still to come."""

    observation: np.ndarray
    actions: np.ndarray
    gains: np.ndarray
    ahead: float = 0.0


class Trainer:
    """Trains one network; its state is a checkpoint.

    Args:
        boards: the kernels, or makers of them by (family, name): they are opened when first drawn.
        lessons: how to train.
        seed: of everything random.
        path: checkpoint to write, and to go on from if it exists; None: keep nothing.

    Raises:
        SearchError: the checkpoint was made with other lessons or another seed.
    """

    def __init__(
        self, boards: Mapping[str, Sequence[Callable[[], Board]]], lessons: Lessons | None = None,
        seed: int = 0, path: Path | None = None,
    ) -> None:  # fmt: skip
        if not boards or not all(boards.values()):
            raise SearchError("there are no kernels to train on")
        self.makers, self.lessons, self.seed, self.path = boards, lessons or Lessons(), seed, path
        self._open: dict[tuple[str, int], Board] = {}
        first = self._board(next(iter(boards)), 0)
        layout = AssemblyGame(first.space, first.evaluate).layout
        with chance(seed):
            self.network = RowNetwork(
                layout.columns, layout.links, layout.verbs, self.lessons.width, self.lessons.depth
            )
        self.layout = layout
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.lessons.rate, eps=1e-5)
        self.iteration = self.evaluations = 0
        self.seconds = 0.0
        self.log: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._resume(path)

    def _board(self, family: str, n: int) -> Board:
        if (family, n) not in self._open:
            self._open[family, n] = self.makers[family][n]()
        return self._open[family, n]

    def _draw(self, rng: np.random.Generator) -> Board:
        families = sorted(self.makers)
        family = families[int(rng.integers(len(families)))]
        return self._board(family, int(rng.integers(len(self.makers[family]))))

    # the first lesson

    def look_around(self) -> dict[str, Any]:
        """One iteration of the first lesson; returns its metrics."""
        begun, lessons = time.monotonic(), self.lessons
        rng = np.random.default_rng([self.seed, self.iteration])
        shown = [s for _ in range(lessons.boards) for s in self._walk(self._draw(rng), rng)]
        losses, better = [], []
        with chance(int(rng.integers(1 << 31))):
            for _ in range(lessons.passes):
                for part in _parts(rng.permutation(len(shown)), lessons.batch):
                    loss, gained = self._learn([shown[n] for n in part])
                    losses.append(loss)
                    better.append(gained)
        return self._note("look", begun, {"loss": np.mean(losses), "gain_over_uniform": np.mean(better)})

    def _walk(self, board: Board, rng: np.random.Generator) -> Iterator[_Shown]:
        """A walk through a kernel's schedules, looking around in each."""
        lessons = self.lessons
        game = AssemblyGame(board.space, board.evaluate, horizon=lessons.moves + 1, noise=0.0, trusted=True)
        observation, _ = game.reset(seed=int(rng.integers(1 << 31)))
        walk: list[_Shown] = []
        costs = [game.cost]
        for _ in range(lessons.moves):
            actions = _some(board.space.legal(game.state), lessons.looks, rng)
            states, gains, kept = [], [], []
            for action in actions:
                found = board.space.act(game.state, *divmod(int(action), game.layout.verbs))
                if found is None:
                    continue
                state = board.space.apply(game.state, found[0])
                outcome = board.evaluate(state)
                self.evaluations += 1
                if outcome.cost is not None:
                    states.append((int(action), outcome.cost))
                    gains.append(100.0 * (game.cost - outcome.cost))
                    kept.append(int(action))
            if not kept:
                break
            walk.append(_Shown(observation, np.array(kept), np.array(gains, dtype=np.float32)))
            best = int(np.argmax(gains))
            follow = (
                best if gains[best] > 0 and rng.random() < lessons.greed else int(rng.integers(len(kept)))
            )
            observation, _, ended, late, _ = game.step(states[follow][0])
            costs.append(game.cost)
            if ended or late:
                break
        for n, one in enumerate(walk):
            one.ahead = 100.0 * (costs[n] - min(costs[n:]))
        yield from walk

    def _learn(self, shown: list[_Shown]) -> tuple[float, float]:
        """One step of gradient descent; (loss, gain expected of the policy over that of a uniform choice)."""
        lessons = self.lessons
        rows = max(len(s.observation) for s in shown)
        batch = torch.from_numpy(np.stack([_pad(s.observation, rows, self.layout) for s in shown]))
        logits, values = self.network(batch)
        losses, better = [], []
        for n, one in enumerate(shown):
            # stop is one more action, and gains nothing
            chosen = torch.cat([logits[n, torch.from_numpy(one.actions)], logits[n, -1:]])
            gains = torch.from_numpy(np.append(one.gains, np.float32(0.0)))
            target = (gains / lessons.temperature).clamp(-20, 20).softmax(dim=0)
            losses.append(-(target * chosen.log_softmax(dim=0)).sum())
            taken = chosen[:-1].detach().softmax(dim=0)
            better.append(float((taken * gains[:-1]).sum() - gains[:-1].mean()))
        ahead = torch.tensor([s.ahead for s in shown], dtype=torch.float32)
        value_loss = _huber(values.flatten(), ahead)
        loss = torch.stack(losses).mean() + lessons.value * value_loss
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
        self.optimizer.step()
        return float(loss.detach()), float(np.mean(better))

    # the second lesson

    def play(self) -> dict[str, Any]:
        """One iteration of the second lesson: PPO on some boards at once; returns its metrics."""
        begun, lessons = time.monotonic(), self.lessons
        rng = np.random.default_rng([self.seed, self.iteration])
        boards = [self._draw(rng) for _ in range(2 * lessons.boards)]
        count = max(len(b.space.features(b.space.start())) for b in boards)
        games = [AssemblyGame(b.space, b.evaluate, rows=count, noise=0.0, trusted=True) for b in boards]
        lanes = Lanes(games)
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

    def _note(self, lesson: str, begun: float, metrics: Mapping[str, Any]) -> dict[str, Any]:
        self.iteration += 1
        self.seconds += time.monotonic() - begun
        row = {"iteration": self.iteration, "lesson": lesson, "evaluations": self.evaluations} | {
            name: round(float(value), 5) for name, value in metrics.items()
        }
        self.log.append(row)
        return row

    def save(self, path: Path | None = None, *, optimizer: bool = True, **facts: Any) -> None:
        """Write the checkpoint; `optimizer=False` leaves out what only training needs."""
        arrays = {name: value.numpy().copy() for name, value in self.network.state_dict().items()}
        if optimizer:
            for n, held in self.optimizer.state_dict()["state"].items():
                for name, value in held.items():
                    arrays[f"adam/{n}/{name}"] = np.asarray(value)
        described = {
            "network": "rows", "layout": asdict(self.layout), "lessons": asdict(self.lessons),
            "seed": self.seed, "iteration": self.iteration, "evaluations": self.evaluations,
            "seconds": round(self.seconds, 1), "families": sorted(self.makers), **facts,
        }  # fmt: skip
        if optimizer:
            described["log"] = self.log
        target = path or self.path
        if target is not None:
            checkpoint.save(target, arrays, described)

    def _resume(self, path: Path) -> None:
        arrays, described = checkpoint.load(path)
        if described["lessons"] != asdict(self.lessons) or described["seed"] != self.seed:
            raise SearchError(
                "this checkpoint was made with other lessons or another seed", where=str(path),
                hint="name another file, or give the same settings",
            )  # fmt: skip
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
        self, *, look: int | None = None, play: int = 0, seconds: float | None = None, every: int = 20,
        say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        """Train until so many iterations of each lesson are done in all, or the time is up.

        Args:
            look, play: iterations of the two lessons, counted from the training's very beginning; look None:
                as many as the time allows, with the last fifth of the time for play.
            seconds: of this sitting; None: no limit.
            every: iterations between two checkpoints.
        """
        end = None if seconds is None else time.monotonic() + seconds
        share = 0.8 if look is None else 1.0
        begun = time.monotonic()
        while end is None or time.monotonic() < end:
            looked = sum(row["lesson"] == "look" for row in self.log)
            enough = look is not None and looked >= look
            late = end is not None and seconds and time.monotonic() - begun > share * seconds
            if not enough and not late:
                row = self.look_around()
            elif (look is None and late) or self.iteration - looked < play:
                row = self.play()
            else:
                break
            if self.iteration % every == 0:
                self.save()
                say(json.dumps(row))
        self.save()


def _huber(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Huber loss: gains have heavy tails."""
    return torch.nn.functional.huber_loss(a, b)


def _play(lessons: Lessons) -> Preset:
    return replace(TUNE, steps=lessons.play_steps, rate=lessons.play_rate, anneal=False, restart=0.0)


def _some(legal: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Some legal actions, half of them with every verb as likely, so that rare verbs are seen too."""
    actions = np.flatnonzero(legal)
    if len(actions) <= count:
        return actions
    verbs = actions % legal.shape[1]
    share = 1.0 / np.bincount(verbs, minlength=legal.shape[1])[verbs]
    odds = 0.5 * share / share.sum() + 0.5 / len(actions)
    chosen: np.ndarray = rng.choice(actions, size=count, replace=False, p=odds)
    return chosen


def _pad(observation: np.ndarray, rows: int, layout: Layout) -> np.ndarray:
    out = np.zeros((rows, observation.shape[1]), dtype=np.float32)
    out[:, observation.shape[1] - layout.links :] = -1.0
    out[: len(observation)] = observation
    return out


def _parts(order: np.ndarray, size: int) -> list[np.ndarray]:
    return [order[n : n + size] for n in range(0, len(order), size)]
