"""Several games side by side, evaluated by one thread while the policy thinks about the others.

The device judges one candidate at a time. So games are split into groups: while one group's moves are being
evaluated, the policy chooses the other's. Work goes through one queue in a fixed order, so that a search
remains a function of its seed alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecEnv

from .game import AssemblyGame
from .graphed import Graphed, masked


class Stepped(NamedTuple):
    """What came of one move in each game of a group."""

    observations: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    infos: list[dict[str, Any]]


class GameVecEnv(VecEnv):
    """Games of one layout as an sb3 vector environment, in one or two groups.

    Args:
        games: the games; all observations must have the same shape.
        groups: 2 to evaluate one half while the policy thinks about the other; 1 for one after the other.
        executor: makes the moves, one after the other in the order of submission; None: a thread of its own.
    """

    def __init__(self, games: Sequence[AssemblyGame], groups: int = 2, executor: Any = None) -> None:
        self.games = list(games)
        first = self.games[0]
        super().__init__(len(self.games), first.observation_space, first.action_space)
        count = max(1, min(groups, len(self.games)))
        edges = np.linspace(0, len(self.games), count + 1).astype(int)
        self.parts = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="evaluate")
        self._waiting: list[Future[Stepped]] = []

    def submit(self, part: slice, actions: np.ndarray) -> Future[Stepped]:
        """Start a move in each game of a group; the queue's single thread makes them in order."""
        future: Future[Stepped] = self._executor.submit(self._step, part, actions)
        return future

    def _step(self, part: slice, actions: np.ndarray) -> Stepped:
        seen, rewards, dones, infos = [], [], [], []
        for game, action in zip(self.games[part], actions, strict=True):
            observation, reward, ended, late, info = game.step(action)
            info["TimeLimit.truncated"] = late
            if ended or late:
                info["terminal_observation"] = observation
                observation, _ = game.reset()
            seen.append(observation)
            rewards.append(reward)
            dones.append(ended or late)
            infos.append(info)
        return Stepped(np.stack(seen), np.array(rewards, np.float32), np.array(dones), infos)

    def reset(self) -> np.ndarray:
        """Begin all episodes again."""
        seen = []
        for game, seed in zip(self.games, self._seeds, strict=True):
            seen.append(self._executor.submit(game.reset, seed=seed).result()[0])
        self._reset_seeds()
        return np.stack(seen)

    def masks(self, part: slice) -> np.ndarray:
        """bool (games of the group, actions)."""
        return np.stack([game.action_masks() for game in self.games[part]])

    def step_async(self, actions: np.ndarray) -> None:
        """See `VecEnv`."""
        self._waiting = [self.submit(part, actions[part]) for part in self.parts]

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:  # type: ignore[override]
        """See `VecEnv`."""
        came = [future.result() for future in self._waiting]
        seen, rewards, dones = (np.concatenate([c[n] for c in came]) for n in range(3))
        return seen, rewards, dones, [info for c in came for info in c.infos]

    def close(self) -> None:
        """End the evaluating thread; the games' spaces and devices stay their owner's."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """See `VecEnv`."""
        return [getattr(self.games[n], attr_name) for n in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """See `VecEnv`."""
        for n in self._get_indices(indices):
            setattr(self.games[n], attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """See `VecEnv`."""
        return [getattr(self.games[n], method_name)(*args, **kwargs) for n in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """See `VecEnv`: games are never wrapped."""
        return [False for _ in self._get_indices(indices)]


@dataclass
class _Turn:
    """What the policy saw and chose for one group, and what came of it."""

    part: slice
    observations: np.ndarray
    masks: np.ndarray
    starts: np.ndarray
    actions: np.ndarray
    values: torch.Tensor
    log_probs: torch.Tensor
    coming: Future[Stepped]
    rewards: np.ndarray | None = None
    infos: list[dict[str, Any]] | None = None


class VecEnvPPO(MaskablePPO):
    """sb3-contrib's MaskablePPO, with rollouts that keep the evaluating thread busy; see `GameVecEnv`.

    Differs from its parent in `collect_rollouts`, and on a GPU in how the network's work is launched
    (`graphed`) where the network can be recorded. Written against sb3-contrib 2.9.2.

    Attributes:
        turn: gives a context in which the network's work is done, all of it: what shares the network's device
            may have it wait there. When a context ends, nothing is left to do on the device.
    """

    turn: Callable[[], AbstractContextManager[Any]] = nullcontext
    graphed: Graphed | None = None

    def _setup_model(self) -> None:
        super()._setup_model()
        network = getattr(self.policy, "network", None)
        if self.device.type == "cuda" and getattr(network, "recordable", False):
            self.graphed = Graphed(self)

    def train(self) -> None:
        """Learn from the rollout. See `MaskablePPO.train`."""
        with self.turn():
            if self.graphed is not None and self.target_kl is None:
                self.graphed.train()
            else:
                super().train()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Let go of what the device holds besides weights: graphs go now, in this thread."""
        if self.graphed is not None:
            with self.turn():
                self.graphed.release()

    def collect_rollouts(  # type: ignore[override]
        self, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int, use_masking: bool = True
    ) -> bool:
        """One rollout of `n_rollout_steps` moves in every game. See `MaskablePPO.collect_rollouts`."""
        games: GameVecEnv = env
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        seen: np.ndarray = np.array(self._last_obs)  # type: ignore[has-type]
        starts: np.ndarray = np.array(self._last_episode_starts)  # type: ignore[has-type]
        before: list[_Turn] = []
        for _ in range(n_rollout_steps):
            turns = []
            for n, part in enumerate(games.parts):
                if before:
                    self._receive(before[n], seen, starts)
                turns.append(self._choose(games, part, seen, starts, use_masking))
            if before and not self._finish(before, rollout_buffer, callback):
                for turn in turns:
                    turn.coming.result()
                return False
            before = turns
        for turn in before:
            self._receive(turn, seen, starts)
        self._last_obs, self._last_episode_starts = seen, starts
        if not self._finish(before, rollout_buffer, callback):
            return False
        values = self._values(seen)
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=starts)
        callback.on_rollout_end()
        return True

    def _choose(
        self, games: GameVecEnv, part: slice, seen: np.ndarray, starts: np.ndarray, use_masking: bool
    ) -> _Turn:
        """Let the policy choose for a group, and hand its moves to the evaluating thread."""
        observations = seen[part].copy()
        masks = games.masks(part)
        if not use_masking:  # the update must know too that nothing was
            masks = np.ones_like(masks)
        chosen, values, log_probs = self._act(observations, masks if use_masking else None)
        return _Turn(
            part,
            observations,
            masks,
            starts[part].copy(),
            chosen,
            values,
            log_probs,
            games.submit(part, chosen),
        )

    def _act(
        self, observations: np.ndarray, masks: np.ndarray | None
    ) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        """Actions, values and log-probabilities, all on the CPU."""
        if self.graphed is None:
            with self.turn(), torch.no_grad():
                seen = torch.as_tensor(observations, device=self.device)
                actions, values, log_probs = self.policy(seen, action_masks=masks)
                return actions.cpu().numpy(), values.cpu(), log_probs.cpu()
        with self.turn():
            logits, values = self.graphed.look(observations)
        # drawn on the CPU, from the generator that a network there would draw from
        logs = masked(logits, None if masks is None else torch.from_numpy(masks).reshape(logits.shape))
        drawn = torch.multinomial(logs.softmax(-1), 1, replacement=True)
        return drawn[:, 0].numpy(), values, logs.gather(-1, drawn)[:, 0]

    def _values(self, observations: np.ndarray) -> torch.Tensor:
        """What states are worth (n, 1), on the CPU."""
        with self.turn(), torch.no_grad():
            if self.graphed is not None:
                return self.graphed.look(observations)[1]
            seen = torch.as_tensor(observations, device=self.device)
            return self.policy.predict_values(seen).cpu()

    def _receive(self, turn: _Turn, seen: np.ndarray, starts: np.ndarray) -> None:
        """Wait for a group's moves. Episodes cut by the horizon are paid the value of where they ended."""
        came = turn.coming.result()
        turn.rewards, turn.infos = came.rewards.copy(), came.infos
        for n, info in enumerate(came.infos):
            if info["TimeLimit.truncated"]:
                last = self._values(info["terminal_observation"][None])
                turn.rewards[n] += self.gamma * float(last[0])
        seen[turn.part], starts[turn.part] = came.observations, came.dones

    def _finish(self, turns: list[_Turn], buffer: Any, callback: Any) -> bool:
        """Keep a move of all groups; False when the callback wants no more."""
        infos = [info for turn in turns for info in turn.infos or ()]
        self.num_timesteps += len(infos)
        self._update_info_buffer(infos)
        callback.update_locals({"infos": infos})
        actions = np.concatenate([t.actions for t in turns])
        buffer.add(
            np.concatenate([t.observations for t in turns]),
            actions.reshape(-1, 1),
            np.concatenate([t.rewards for t in turns if t.rewards is not None]),
            np.concatenate([t.starts for t in turns]),
            torch.cat([t.values for t in turns]),
            torch.cat([t.log_probs for t in turns]),
            action_masks=np.concatenate([t.masks for t in turns]),
        )
        return bool(callback.on_step())
