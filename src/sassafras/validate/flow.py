"""The control-flow graph as the compiled loops read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .graph import GraphBlock


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


def flow_of(blocks: Sequence[GraphBlock]) -> Flow:
    """The arrays of a graph."""
    columns = (
        [b.start for b in blocks],
        [b.end for b in blocks],
        np.cumsum([0, *(len(b.follow) for b in blocks)]),
        [m for b in blocks for m in b.follow],
    )
    return Flow(*(np.array(column, dtype=np.int32) for column in columns))
