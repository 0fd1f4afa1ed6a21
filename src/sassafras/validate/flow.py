"""The control-flow graph as the compiled loops read it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Flow(NamedTuple):
    """Blocks and their successors, int32.

    Attributes:
        start, end: positions by block.
        follow_at, follow: CSR of the blocks that may come next.
    """

    start: np.ndarray
    end: np.ndarray
    follow_at: np.ndarray
    follow: np.ndarray
