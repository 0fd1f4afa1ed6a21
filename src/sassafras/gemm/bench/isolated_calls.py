"""One call at a time, after a random pause: what a server does (CUDA-L2's server mode, arXiv 2512.02551)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sassafras.cuda.timing import balanced

from .timing import Enqueue, TimedBlock


class Isolated:
    """Contestants whose calls are made one by one, and timed by events that their own graphs record.

    Args:
        stage: `stage.Stage`, or `dry.DryStage`.
        contestants: of each, its call on every set of buffers; calls rotate through the sets.
    """

    def __init__(self, stage: Any, contestants: Sequence[Sequence[Enqueue]]) -> None:
        self._stage = stage
        self._begin, self._end = events = stage.gpu.event(), stage.gpu.event()
        # neither Python nor a submission lies between the events, which would hide the smaller kernels
        self._graphs: list[list[TimedBlock]] = [
            [stage.block(call, 1, events) for call in calls] for calls in contestants
        ]

    def calls(
        self, count: int, rate: float, rng: np.random.Generator, among: Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Every contestant `count` times, one more before that is not counted; pauses are not timed.

        At a low rate they are what it costs: 13 contestants, 12 calls and a pause of 10 ms make 1.7 s.

        Args:
            count: calls of each.
            rate: calls a second, or half of what the slowest contestant's time allows, if that is less.
            rng: draws the pauses (exponential), and the order.
            among: indices of the contestants that take part (all of them).

        Returns:
            Microseconds on the GPU, microseconds until the host sees the end (float64, (count, contestants)
            each), and the rate that was kept to.

        Raises:
            CudaError: the context is lost.
        """
        stage, gpu = self._stage, self._stage.gpu
        graphs = self._graphs if among is None else [self._graphs[index] for index in among]
        replays: list[Callable[[], None]] = [lambda g=g: gpu.replay(g[0].graph) for g in graphs]  # type: ignore[misc]
        rate = min(rate, 0.5 * 1e6 / max(stage.watch.one(replay) for replay in replays))
        order = balanced(len(graphs), count + 1, int(rng.integers(1 << 31)))
        pauses = rng.exponential(1 / rate, len(order))
        table = np.empty((count + 1, len(graphs)))
        walls = np.empty_like(table)
        moment = stage.now()
        for index, which in enumerate(order):
            of_one = graphs[which]
            moment = max(moment, stage.now()) + pauses[index]
            stage.wait_until(moment)
            started = stage.now()
            gpu.replay(of_one[index % len(of_one)].graph)
            gpu.sync()
            walls[index // len(graphs), which] = 1e6 * (stage.now() - started)
            table[index // len(graphs), which] = gpu.elapsed_us(self._begin, self._end)
        return table[1:], walls[1:], rate

    def close(self) -> None:
        """Free the graphs."""
        for of_one in self._graphs:
            for block in of_one:
                block.discard(self._stage.gpu)
