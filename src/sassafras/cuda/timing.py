"""Interleaved timing of graphs of launches, by events on the GPU."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from .driver import Gpu

#: a block (one graph replay) lasts about this long, so that the event's resolution is far below 0.1 %
BLOCK_US = 100.0
#: and never much longer than this, however patient the caller (a single launch may be)
LONGEST_BLOCK_US = 2000.0


def launches_a_block(launch_us: float, block_us: float = BLOCK_US) -> int:
    """How many launches make a block of about `block_us`; one for kernels that are longer."""
    wanted = min(block_us, LONGEST_BLOCK_US)
    return int(min(400, max(1, -(-wanted // max(launch_us, 0.05)))))


def interleaved(contestants: int, rounds: int) -> list[int]:
    """An order that visits every contestant once a round, forward and backward by turns: A B B A A B ...

    A linear drift then cancels over two rounds, whatever the number of contestants.
    """
    order: list[int] = []
    forward = list(range(contestants))
    for index in range(rounds):
        order += forward if index % 2 == 0 else forward[::-1]
    return order


def balanced(contestants: int, rounds: int, seed: int = 0) -> list[int]:
    """An order in which each contestant visits every place, and follows each other one, about equally often.

    A contestant leaves a clock, and lines in the L2, to the next one: in an order that is the same every
    round one of them would always pay (forward and backward by turns, one and the same algorithm stood at
    1.014 of itself above 1e12 FLOP). Rounds are rows of a design balanced for such carry-over
    (E. J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments",
    1949), in an order drawn by `seed`, each followed by itself backward, so that a linear drift cancels over
    two rounds. After ``2 * contestants`` rounds each has followed each other one as often as any.
    """
    if contestants < 1:
        return []
    zigzag = [(-i if i % 2 else i) // 2 % contestants for i in range(contestants)]
    rng = random.Random(seed)
    order: list[int] = []
    for index in range(rounds):
        if index % 2 == 0:
            if index % (2 * contestants) == 0:
                shifts = rng.sample(range(contestants), contestants)
            shift = shifts[index // 2 % contestants]
            row = [(place + shift) % contestants for place in zigzag]
        order += row if index % 2 == 0 else row[::-1]
    return order


def with_one_checked(rounds: int, rng: random.Random) -> tuple[list[int], int, list[tuple[int, int]]]:
    """Rounds of baseline (0) and candidate (1), and one more block of the candidate somewhere between them.

    That block is checked, not counted: it starts from restored memory. It has no partner, since its
    time is not used. The last block is the candidate's, so that what it leaves can be checked too.

    Returns: the order; the index of the block to check; of each round, the indices of baseline and candidate.
    """
    order = interleaved(2, rounds)
    if order[-1] == 0:
        order = [1 - which for which in order]
    before = rng.randrange(rounds + 1)
    marked = 2 * before
    order.insert(marked, 1)
    pairs = []
    for index in range(rounds):
        first = 2 * index + (index >= before)
        base = first + order[first]
        pairs.append((base, 2 * first + 1 - base))
    return order, marked, pairs


class Stopwatch:
    """Times blocks; keeps its events for reuse."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._events: list[tuple[Any, Any]] = []

    def blocks(
        self,
        graphs: Sequence[Any],
        order: Sequence[int],
        *,
        before: Callable[[int], None] | None = None,
        after: Callable[[int], None] | None = None,
    ) -> list[float]:
        """GPU microseconds of each block, in `order` (indices into `graphs`).

        Everything is enqueued without waiting; one untimed block goes first, so that the GPU is busy while
        the host enqueues the rest. `before(i)` and `after(i)` may enqueue work around block i, outside its
        time. Waits for the stream. Raises CudaError.
        """
        gpu = self._gpu
        while len(self._events) < len(order):
            self._events.append((gpu.event(), gpu.event()))
        gpu.replay(graphs[order[0]])
        for index, which in enumerate(order):
            if before is not None:
                before(index)
            begin, end = self._events[index]
            gpu.record(begin)
            gpu.replay(graphs[which])
            gpu.record(end)
            if after is not None:
                after(index)
        gpu.sync()
        return [gpu.elapsed_us(*self._events[index]) for index in range(len(order))]

    def one(self, enqueue: Callable[[], None]) -> float:
        """GPU microseconds of whatever `enqueue` puts on the stream."""
        if not self._events:
            self._events.append((self._gpu.event(), self._gpu.event()))
        begin, end = self._events[0]
        self._gpu.record(begin)
        enqueue()
        self._gpu.record(end)
        self._gpu.sync()
        return self._gpu.elapsed_us(begin, end)
