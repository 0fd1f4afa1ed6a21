"""What a kernel-independent network expects of every action in a state, asked from outside of a game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sassafras.search.ppo.agent import one_thread

from . import checkpoint
from .agent import chance, fill, size_of
from .game import ObservationLayout, observe
from .network import RowNetwork


class Prior:
    """A network that is only asked, and learns nothing.

    Args:
        space: a `core.Playable` space.
        path: the policy's checkpoint; None: an untrained network.
        seed: of an untrained network's weights.

    Raises:
        SearchError: the checkpoint cannot be read, or does not fit the space.
    """

    def __init__(self, space: Any, path: Path | None, seed: int) -> None:
        self.space = space
        seen, links = space.features(space.start()), space.links(space.start())
        self.layout = ObservationLayout(len(seen), seen.shape[1], links.shape[1], len(space.verbs))
        with chance(seed):
            self.network = RowNetwork(
                self.layout.columns, self.layout.links, self.layout.verbs, **(size_of(path) if path else {})
            )
        if path is not None:
            fill(self.network, checkpoint.load(path)[0], str(path))

    def logits(self, state: Any, cost: float, touched: int) -> np.ndarray:
        """float64 (rows, verbs): log-odds of every action, legal or not.

        Args:
            state: the space's.
            cost: its runtime relative to the baseline's.
            touched: row that the last move brought to where it stands, or -1.
        """
        seen = observe(self.space, self.layout, state, cost, touched, left=1.0)
        with one_thread(), torch.no_grad():
            found = self.network.forward_actor(torch.from_numpy(seen[None]))[0, :-1]
        logits: np.ndarray = found.numpy().astype(np.float64).reshape(self.layout.rows, self.layout.verbs)
        return logits
