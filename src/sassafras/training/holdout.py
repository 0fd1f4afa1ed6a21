"""Held-out kernels: labelled states that nothing was learnt from.

Mean gain of a network's choice among ten legal moves over a uniform choice, in percent of the runtime. The
moves are evaluated once; after that a score costs some passes through the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import SearchError
from sassafras.search.ppo import checkpoint
from sassafras.search.ppo.agent import fill, one_thread
from sassafras.search.ppo.game import ObservationLayout
from sassafras.search.ppo.network import RowNetwork

from .imitation import ChoiceQuality, choices
from .random_walks import TrainingSettings, Walk
from .walk_workers import Place, WalkWorkers

#: of the walks; always the same, so that policies are compared on the same states
SEED = 20261122
#: a longer walk would leave the neighbourhood of what compilers write
SETTINGS = TrainingSettings(moves=8, samples_per_state=10)


@dataclass(frozen=True)
class Holdout:
    """The states that policies are scored on.

    Attributes:
        walks: one a kernel.
        unusable: kernels left out: place -> why.
    """

    walks: list[Walk]
    unusable: Mapping[Place, str]

    @classmethod
    def prepare(cls, workers: WalkWorkers, each: int = 4, families: tuple[str, ...] | None = None) -> Holdout:
        """Walk on kernels of every family.

        Args:
            workers: whose kernels they are.
            each: kernels of a family, spread evenly over those there are.
            families: None: all.

        Raises:
            SearchError: none of the kernels can be used.
        """
        places = []
        for family in sorted(families or workers.makers):
            total = len(workers.makers[family])
            chosen = sorted({n * total // min(each, total) for n in range(min(each, total))})
            places += [(family, n) for n in chosen]
        found = workers.tour(places, SETTINGS, SEED)
        if not any(walk.states for walk in found.walks):
            raise SearchError(f"no kernel to score a policy with: {found.unusable}")
        return cls([walk for walk in found.walks if walk.states], found.unusable)

    @property
    def best(self) -> float:
        """Percent that the best of the moves evaluated gains over a uniform choice: no policy does better."""
        gains = [np.mean([s.gains.max() - s.gains.mean() for s in walk.states]) for walk in self.walks]
        return _balanced(self.walks, gains)

    def qualities(
        self, network: RowNetwork, layout: ObservationLayout
    ) -> list[tuple[Walk, list[ChoiceQuality]]]:
        """What a network makes of every state of every walk."""
        with one_thread():
            return list(choices(network, self.walks, layout, SETTINGS))

    def score(self, network: RowNetwork, layout: ObservationLayout) -> dict[str, float]:
        """``held_out_gain`` (percent, families count alike), ``held_out_loss``, ``held_out_best`` (the most
        that can be gained), and a gain for each family."""
        qualities = self.qualities(network, layout)
        gains = [float(np.mean([c.gain for c in made])) for _, made in qualities]
        losses = [float(np.mean([c.loss for c in made])) for _, made in qualities]
        out = {
            "held_out_gain": _balanced(self.walks, gains),
            "held_out_loss": _balanced(self.walks, losses),
            "held_out_best": self.best,
        }
        for family in sorted({walk.family for walk in self.walks}):
            mine = [g for walk, g in zip(self.walks, gains, strict=True) if walk.family == family]
            out[f"held_out_gain_{family}"] = float(np.mean(mine))
        return {name: round(value, 4) for name, value in out.items()}


def _balanced(walks: list[Walk], values: list[Any]) -> float:
    """Mean over families of the mean over their walks."""
    families: dict[str, list[float]] = {}
    for walk, value in zip(walks, values, strict=True):
        families.setdefault(walk.family, []).append(float(value))
    return float(np.mean([np.mean(mine) for mine in families.values()]))


def read(path: Path) -> tuple[RowNetwork, ObservationLayout]:
    """The network that a checkpoint holds.

    Raises:
        SearchError: it cannot be read, or holds another network.
    """
    arrays, described = checkpoint.load(path)
    if described.get("network") != "rows":
        raise SearchError("this is no kernel-independent policy", where=str(path))
    layout = ObservationLayout(**described["layout"])
    settings = described["settings"]
    network = RowNetwork(
        layout.columns, layout.links, layout.actions, int(settings["width"]), int(settings["depth"])
    )
    fill(network, arrays, str(path))
    return network, layout


def compare(holdout: Holdout, paths: list[Path]) -> list[dict[str, Any]]:
    """Scores of policies on the same states; from the second on with the difference to the first.

    ``difference`` is in percent of the runtime, a mean over kernels, with ``interval`` (95 %, from resampling
    kernels: states of one kernel are not independent).

    Raises:
        SearchError: a policy cannot be read.
    """
    rows: list[dict[str, Any]] = []
    first: np.ndarray | None = None
    for path in paths:
        network, layout = read(path)
        qualities = holdout.qualities(network, layout)
        gains = np.array([np.mean([c.gain for c in made]) for _, made in qualities])
        row: dict[str, Any] = {"policy": str(path), **holdout.score(network, layout)}
        if first is None:
            first = gains
        else:
            rng = np.random.default_rng(SEED)
            apart = gains - first
            drawn = apart[rng.integers(len(apart), size=(2000, len(apart)))].mean(axis=1)
            row["difference"] = round(float(apart.mean()), 4)
            row["interval"] = [round(float(np.quantile(drawn, q)), 4) for q in (0.025, 0.975)]
        rows.append(row)
    return rows
