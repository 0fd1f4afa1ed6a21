"""Contestants of `sassafras.matmul`'s benchmarks: their calls in CUDA graphs, timed by events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: microseconds of GPU time in a graph
BLOCK_US = 200.0


class Clock:
    """Graphs of calls, timed by events, everybody in turn."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry

    def graph(self, calls: Sequence[Callable[[], Any]]) -> tuple[Any, int]:
        """(graph of the calls in turn, how many)."""
        import torch

        for call in (calls[0], calls[0], calls[-1]):
            call()
        if self.dry:
            return calls[0], 1
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(3):
            calls[0]()
        end.record()
        torch.cuda.synchronize()
        once = max(1.0, 1e3 * begin.elapsed_time(end) / 3)
        count = int(min(200, max(1, BLOCK_US // once)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(count):
                calls[index % len(calls)]()
        return graph, count

    def times(
        self, graphs: Sequence[tuple[Any, int]], rounds: int, replays: Sequence[int] = (), seed: int = 0
    ) -> np.ndarray:
        """Microseconds a call, (rounds, graphs); the first round is not counted.

        Args:
            replays: of each graph between two events; one if not given.
            seed: of the order, in which each graph follows each other one about equally often.
        """
        import torch

        from sassafras.cuda.timing import balanced

        order = balanced(len(graphs), rounds + 1, seed)
        replays = replays or [1] * len(graphs)
        table = np.empty((rounds + 1, len(graphs)))
        if self.dry:
            for position, which in enumerate(order):
                begun = time.perf_counter()
                graphs[which][0]()
                table[position // len(graphs), which] = 1e6 * (time.perf_counter() - begun)
            return table[1:]
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in order]
        graphs[order[0]][0].replay()
        for (begin, end), which in zip(events, order, strict=True):
            begin.record()
            for _ in range(replays[which]):
                graphs[which][0].replay()
            end.record()
        torch.cuda.synchronize()
        for position, ((begin, end), which) in enumerate(zip(events, order, strict=True)):
            table[position // len(graphs), which] = (
                1e3 * begin.elapsed_time(end) / (graphs[which][1] * replays[which])
            )
        return table[1:]
