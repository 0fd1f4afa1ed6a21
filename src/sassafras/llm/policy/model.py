"""The policy: a distribution over the configurations of a shape, given those that were measured already.

Each configuration gets a score from its features and, in the contrastive form, from how it differs from
each measured one and how fast that was: what CUDA-L1's prompt tells a language model, as numbers. To this
the static estimate is added with a weight of its own, so that learning begins at the rule-based chooser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .table import ESTIMATE, Problem


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Size and kind.

    Attributes:
        hidden: width of the layers.
        contrastive: look at what was measured; False is the plain policy, which does not.
    """

    hidden: int = 96
    contrastive: bool = True


def network(columns: int, settings: PolicySettings, seed: int) -> Any:
    """The torch module. Its forward takes (configurations, columns) and the history; see `Policy.scores`."""
    import torch
    from torch import nn

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = settings.hidden
            self.own = nn.Sequential(nn.Linear(columns, width), nn.SiLU(), nn.Linear(width, width))
            self.pair = nn.Sequential(nn.Linear(2 * columns + 2, width), nn.SiLU(), nn.Linear(width, width))
            self.out = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
            nn.init.zeros_(self.out[-1].weight)  # untrained, it is the rule-based chooser
            self.prior = nn.Parameter(torch.tensor(8.0))

        def forward(self, features: Any, seen: Any, speed: Any) -> Any:
            found = self.own(features)
            if settings.contrastive and len(seen):
                other = features[seen]  # (measured, columns)
                difference = features[:, None, :] - other[None, :, :]
                best = (speed == speed.max()).float()
                told = torch.stack([speed, best], -1)[None].expand(len(features), -1, -1)
                pair = torch.cat([difference, difference.abs(), told], -1)
                found = found + self.pair(pair).mean(1)
            return self.out(found).squeeze(-1) - self.prior * features[:, ESTIMATE]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Scores()


class Policy:
    """Scores, draws and chooses configurations.

    Args:
        columns: features a configuration.
        settings: size and kind.
        seed: of the initial weights.
    """

    def __init__(self, columns: int, settings: PolicySettings | None = None, seed: int = 0) -> None:
        self.settings = settings or PolicySettings()
        self.columns = columns
        self.net = network(columns, self.settings, seed)
        self._mean = np.zeros(columns, np.float32)
        self._scale = np.ones(columns, np.float32)

    def standardise(self, problems: Sequence[Problem]) -> None:
        """Take means and scales of the features from these problems (the training set)."""
        rows = np.concatenate([problem.features for problem in problems])
        self._mean = rows.mean(0)
        scale = rows.std(0)
        self._scale = np.where(scale > 1e-6, scale, 1.0).astype(np.float32)

    def inputs(self, problem: Problem) -> Any:
        """Standardised features as a tensor, clipped so that an unseen extent cannot blow up."""
        import torch

        from sassafras.core import SassafrasError

        if problem.features.shape[1] != self.columns:
            raise SassafrasError(
                f"the policy knows {self.columns} features, this problem has {problem.features.shape[1]}",
                where=str(problem.shape),
                hint="train it again: the kernel families have changed",
            )
        return torch.from_numpy(np.clip((problem.features - self._mean) / self._scale, -4, 4))

    def scores(self, features: Any, seen: Sequence[int], speed: Sequence[float]) -> Any:
        """Logits, (configurations,); -inf for what was measured.

        Args:
            features: from `inputs`.
            seen: measured configurations.
            speed: log(reference / time) of each, in the same order.
        """
        import torch

        index = torch.as_tensor(list(seen), dtype=torch.long)
        found = self.net(features, index, torch.as_tensor(list(speed), dtype=torch.float32))
        return found.index_fill(0, index, float("-inf")) if len(index) else found

    def choose(self, problem: Problem, count: int) -> list[int]:
        """Which configurations to measure, one after another, each with what came of those before."""
        import torch

        features = self.inputs(problem)
        seen: list[int] = []
        speed: list[float] = []
        reference = float(problem.times[0])  # the rule-based chooser's; unknown before it is measured
        with torch.no_grad():
            for _ in range(min(count, len(problem.names))):
                pick = int(torch.argmax(self.scores(features, seen, speed)))
                if not seen:
                    reference = float(problem.times[pick])
                seen.append(pick)
                speed.append(float(np.log(reference / problem.times[pick])))
        return seen

    def save(self, path: str | Path) -> None:
        """Weights as NumPy arrays (no pickle)."""
        arrays = {f"w:{name}": value.numpy() for name, value in self.net.state_dict().items()}
        with Path(path).open("wb") as file:
            np.savez(
                file,
                mean=self._mean,
                scale=self._scale,
                hidden=self.settings.hidden,
                contrastive=self.settings.contrastive,
                **arrays,
            )

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """What `save` wrote. Raises SassafrasError when it is no policy."""
        import torch

        from sassafras.core import SassafrasError

        try:
            with np.load(path, allow_pickle=False) as data:
                settings = PolicySettings(int(data["hidden"]), bool(data["contrastive"]))
                made = cls(len(data["mean"]), settings)
                made._mean, made._scale = data["mean"], data["scale"]
                weights = {n[2:]: torch.from_numpy(data[n]) for n in data.files if n.startswith("w:")}
            made.net.load_state_dict(weights)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise SassafrasError(f"not a policy: {error}", where=str(path)) from error
        return made
