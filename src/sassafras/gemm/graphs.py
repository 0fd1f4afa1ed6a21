"""Blocks of launches as CUDA graphs, and what each launch took, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sassafras.core import DeviceError
from sassafras.device.cuda.driver import Gpu, call
from sassafras.device.cuda.timing import Stopwatch, interleaved

Enqueue = Callable[[], None]


class Block:
    """`launches` calls captured into one executable graph.

    Raises:
        DeviceError: the graph holds fewer nodes than calls: work went elsewhere (another stream, the legacy
            default stream), and timing it would time nothing.
    """

    def __init__(self, gpu: Gpu, enqueue: Enqueue, launches: int) -> None:
        self.launches = launches
        driver = gpu.driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call(driver.cuStreamBeginCapture, gpu.stream, mode)
        try:
            for _ in range(launches):
                enqueue()
        except BaseException:
            driver.cuStreamEndCapture(gpu.stream)
            raise
        graph = call(driver.cuStreamEndCapture, gpu.stream)
        try:
            _, nodes = call(driver.cuGraphGetNodes, graph, 0)
            if int(nodes) < launches:
                raise DeviceError(f"a graph of {launches} calls holds {int(nodes)} nodes: they ran elsewhere")
            self.graph = call(driver.cuGraphInstantiate, graph, 0)
        finally:
            call(driver.cuGraphDestroy, graph)

    def discard(self, gpu: Gpu) -> None:
        """Free the graph."""
        gpu.discard(self.graph)


def timed(gpu: Gpu, watch: Stopwatch, blocks: Sequence[Block], rounds: int, *, warm: int = 1) -> np.ndarray:
    """Microseconds a launch, float64 array (rounds, blocks), every round visiting every block.

    Rounds go forward and backward by turns (A B .. B A ..), so a drift cancels; `warm` further rounds before
    them are not counted.
    """
    count = len(blocks)
    order = interleaved(count, rounds + warm)
    times = watch.blocks([b.graph for b in blocks], order)
    table = np.empty((rounds + warm, count))
    for position, (which, microseconds) in enumerate(zip(order, times, strict=True)):
        table[position // count, which] = microseconds / blocks[which].launches
    return table[warm:]


def rough_us(gpu: Gpu, watch: Stopwatch, enqueue: Enqueue) -> float:
    """A first idea of a launch's time, from one block."""
    once = watch.one(enqueue)
    block = Block(gpu, enqueue, int(min(20, max(1, 200 // max(once, 1)))))
    try:
        return float(timed(gpu, watch, [block], 1)[0, 0])
    finally:
        block.discard(gpu)


def paired(table: np.ndarray, baseline: int, candidate: int) -> Any:
    """baseline / candidate of every round: speed-ups, float64 (rounds,)."""
    return table[:, baseline] / table[:, candidate]
