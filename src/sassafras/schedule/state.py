"""States and moves of a `ScheduleSpace`: small immutable values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

#: kinds of moves
REORDER, RESTALL = 0, 1


class Move(NamedTuple):
    """One change of a schedule.

    Attributes:
        kind: REORDER takes the instruction at position `i` to position `j`, where those between move by one;
            RESTALL gives the instruction at position `i` the stall count `j`.
        i, j: see `kind`.
    """

    kind: int
    i: int
    j: int


class Working(NamedTuple):
    """A schedule that is changed in place, by position.

    Attributes:
        order, stall: int32 original indices and uint8 stall counts.
        where: int32, by original index, the position.
        time: scratch, one int64 a position and one more.
    """

    order: np.ndarray
    stall: np.ndarray
    where: np.ndarray
    time: np.ndarray


@dataclass(frozen=True, eq=False)
class ScheduleState:
    """A schedule: an order and its stall counts. Immutable; equal when both are.

    Attributes:
        order: int32 (instructions,): ``order[position]`` is the original index of what stands there.
        stall: uint8 (instructions,): stall counts by position.
        depth: moves made since the start (not part of equality).
        last: the move that led here, or None (not part of equality).
    """

    order: np.ndarray = field(repr=False)
    stall: np.ndarray = field(repr=False)
    depth: int = 0
    last: Move | None = None

    def __post_init__(self) -> None:
        self.order.setflags(write=False)
        self.stall.setflags(write=False)

    @cached_property
    def digest(self) -> str:
        """16 bytes of BLAKE2b over order and stall counts, hexadecimal."""
        made = hashlib.blake2b(self.order.tobytes(), digest_size=16)
        made.update(self.stall.tobytes())
        return made.hexdigest()

    @cached_property
    def where(self) -> np.ndarray:
        """int32 (instructions,): the position of each original index."""
        where = np.empty_like(self.order)
        where[self.order] = np.arange(len(self.order))
        return where

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduleState) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)
