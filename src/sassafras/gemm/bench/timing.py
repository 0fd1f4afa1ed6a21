"""Blocks of launches as CUDA graphs, and what each launch took, interleaved."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from sassafras.core import DeviceError
from sassafras.cuda.driver import Gpu
from sassafras.cuda.timing import Stopwatch, balanced, interleaved, launches_a_block

from ..problem.shape import Shape

Enqueue = Callable[[], None]


class TimedBlock:
    """`launches` calls captured into one executable graph.

    Args:
        enqueue: one call; or several, one after the other in turn (rotated buffers).
        events: a pair that the graph itself records before the first call and after the last: between them
            lies no submission, which takes longer than a small kernel.

    Raises:
        DeviceError: the graph holds fewer nodes than calls: work went elsewhere (another stream, the legacy
            default stream), and timing it would time nothing.
    """

    def __init__(
        self, gpu: Gpu, enqueue: Enqueue | Sequence[Enqueue], launches: int, events: Sequence[Any] = ()
    ) -> None:
        self.launches = launches
        calls = [enqueue] if callable(enqueue) else list(enqueue)

        def all_calls() -> None:
            for event in events[:1]:
                gpu.record_in_graph(event)
            for index in range(launches):
                calls[index % len(calls)]()
            for event in events[1:]:
                gpu.record_in_graph(event)

        self.graph, nodes = gpu.capture_counted(all_calls)
        if nodes - len(events) < launches:
            self.discard(gpu)
            raise DeviceError(
                f"a graph of {launches} calls holds {nodes - len(events)} nodes: they ran elsewhere"
            )

    def discard(self, gpu: Gpu) -> None:
        """Free the graph."""
        gpu.discard(self.graph)


def timed(
    gpu: Gpu,
    watch: Stopwatch,
    blocks: Sequence[TimedBlock],
    rounds: int,
    *,
    before: Callable[[int], None] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Microseconds a launch, float64 array (rounds, blocks), every round visiting every block.

    Rounds are balanced (`balanced`): drifts cancel, and none always follows the same one; a further
    round before them is not counted. `before` is called ahead of each block, with its number among
    `blocks`, and may enqueue untimed work.
    """
    count = len(blocks)
    order = balanced(count, rounds + 1, seed)
    hook = None if before is None else lambda position: before(order[position])
    times = watch.blocks([b.graph for b in blocks], order, before=hook)
    table = np.empty((rounds + 1, count))
    for position, (which, microseconds) in enumerate(zip(order, times, strict=True)):
        table[position // count, which] = microseconds / blocks[which].launches
    return table[1:]


def apart(stage: Any, enqueues: Sequence[Enqueue]) -> Callable[[int], None]:
    """A `before` of `timed` that empties the L2 and has the block's own contestant run once.

    What a kernel leaves in the L2 (lines to be written, lines given up first or last) costs the next one.
    """

    def before(which: int) -> None:
        stage.empty_l2()
        enqueues[which]()

    return before


def order_seed(shape: Shape, seed: int) -> int:
    """The seed of a shape's order of contestants: few rounds favour one of them, another at each shape."""
    return zlib.crc32(f"{shape} {seed}".encode())


def contest(
    stage: Any,
    enqueues: Sequence[Enqueue | Sequence[Enqueue]],
    rough: Sequence[float],
    block_us: float,
    seconds: float,
    *,
    least: int = 5,
    most: int = 41,
    clear: bool = False,
    seed: int = 0,
    before: Callable[[int], None] | None = None,
    after: Callable[[int, Enqueue], object] = lambda index, replay: None,
) -> np.ndarray:
    """`timed`, of blocks that last about `block_us`, in as many rounds as `seconds` allow.

    Args:
        stage: `Contestants` or `DryContestants`.
        enqueues: of each its call; or several in turn, all of which a block has equally often.
        rough: microseconds that each call takes, roughly.
        least, most: rounds.
        clear: see `apart`.
        before: see `timed`.
        after: called for each contestant when all are timed, with what replays its block.
    """
    blocks, one_round = [], 0.0
    for each, us in zip(enqueues, rough, strict=True):
        many = 1 if callable(each) else len(each)
        blocks.append(stage.block(each, many * max(1, launches_a_block(us, block_us) // many)))
        one_round += max(many * us, min(block_us, us * 400))
    rounds = int(min(most, max(least, seconds * 1e6 // one_round)))
    before = apart(stage, [e if callable(e) else e[0] for e in enqueues]) if clear else before
    table = timed(stage.gpu, stage.watch, blocks, rounds, before=before, seed=seed)
    for index, block in enumerate(blocks):
        after(index, partial(stage.gpu.replay, block.graph))
        block.discard(stage.gpu)
    return table


def rough_us(stage: Any, enqueue: Enqueue) -> float:
    """A first idea of a launch's time, from one block."""
    once = stage.watch.one(enqueue)
    block = stage.block(enqueue, int(min(20, max(1, 200 // max(once, 1)))))
    try:
        return float(timed(stage.gpu, stage.watch, [block], 1)[0, 0])
    finally:
        block.discard(stage.gpu)


def paired(table: np.ndarray, baseline: int, candidate: int) -> Any:
    """baseline / candidate of every round: speed-ups, float64 (rounds,)."""
    return table[:, baseline] / table[:, candidate]


class Isolated:
    """One call at a time, after a random pause: what a server does (CUDA-L2's server mode, arXiv 2512.02551).

    Each contestant's calls are timed by events that its own graphs record.

    Args:
        stage: `Contestants` or `DryContestants`.
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


def walls(stage: Any, calls: Sequence[Enqueue], count: int) -> np.ndarray:
    """Microseconds from the call to the end of a synchronisation, (count, len(calls)), interleaved."""
    table = np.empty((count, len(calls)))
    for call in calls:
        call()
    stage.gpu.sync()
    for index, which in enumerate(interleaved(len(calls), count)):
        begin = stage.now()
        calls[which]()
        stage.gpu.sync()
        table[index // len(calls), which] = 1e6 * (stage.now() - begin)
    return table
