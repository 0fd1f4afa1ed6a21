"""Two functions, timed interleaved in this process, prepared elsewhere in memory in every group.

On an H200 a function of 32 MB, captured twice, differed from itself by 4.5 % (2026-11-21), the same in every
group, whatever ran before: most likely by where its results lie (the L2 has two halves of 25 MB), for the
allocator gave every group the same places. So each group draws other places and captures in another order,
and the interval over the groups covers what that changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sassafras.core.statistics import hierarchical_bootstrap, hierarchical_median, paired_ratios
from sassafras.cuda.environment import clocks
from sassafras.cuda.timing import interleaved

from .comparison import Comparison
from .results import alike, on_gpu
from .timers import Call, Cpu, GpuTimer, Timer, now


def compare_functions(
    a: Call,
    b: Call,
    device: str,
    groups: int,
    rounds: int,
    block_us: float,
    cold_l2: bool,
    seed: int = 0,
) -> Comparison:
    """See `sassafras.api.compare.compare`."""
    first, second = a(), b()
    if device == "auto":
        device = "cuda" if any(on_gpu(value) for value in (first, second, a.args, a.kwargs)) else "cpu"
    timer: Timer = GpuTimer() if device == "cuda" else Cpu()
    timer.synchronise()
    equal = alike(first, second)
    del first, second
    calls = _calls(timer, a, b, block_us)
    ratios: list[np.ndarray] = []
    nulls: list[np.ndarray] = []
    cold: list[np.ndarray] = []
    times: list[tuple[float, float]] = []
    for group in range(groups):
        rng = np.random.default_rng([seed, group])
        columns = _group(timer, (a, b, a), capture_order(3, group), rng, calls, rounds)
        assert columns is not None
        ratios.append(paired_ratios(columns[0], columns[1]))
        nulls.append(paired_ratios(columns[0], columns[2]))
        times.append((float(np.median(columns[0])) / calls, float(np.median(columns[1])) / calls))
        if not cold_l2:
            continue
        order, few = capture_order(2, group), min(rounds, 24)
        if (found := _group(timer, (a, b), order, rng, 1, few, cold=True)) is not None:
            cold.append(paired_ratios(*found))
    wall = {name: _wall(timer, f, rounds) for name, f in (("A", a), ("B", b))}
    return Comparison(
        hierarchical_median(ratios),
        hierarchical_bootstrap(ratios, seed=1),
        hierarchical_median(nulls),
        hierarchical_bootstrap(nulls, seed=2),
        float(np.median([t[0] for t in times])),
        float(np.median([t[1] for t in times])),
        groups,
        rounds,
        timer.how,
        cold_speedup=hierarchical_median(cold) if cold else None,
        cold_interval=hierarchical_bootstrap(cold, seed=3) if cold else None,
        wall_us=wall,
        equal=equal,
        facts={
            "calls_a_block": calls,
            "groups_us": times,
            "clocks_mhz": clocks() if device == "cuda" else {},
            "seed": seed,
            "groups_speedup": [float(np.median(group)) for group in ratios],
            "groups_null": [float(np.median(group)) for group in nulls],
        },
    )


def capture_order(contestants: int, group: int) -> list[int]:
    """The order in which a group prepares its contestants, and begins to time them.

    It rotates from group to group, and turns round after a whole turn: over 2 * `contestants` groups each
    contestant is at each place, and before each other, equally often.
    """
    order = [(index + group) % contestants for index in range(contestants)]
    return order[::-1] if group // contestants % 2 else order


def _group(
    timer: Timer,
    functions: Sequence[Call],
    order: Sequence[int],
    rng: np.random.Generator,
    calls: int,
    rounds: int,
    *,
    cold: bool = False,
) -> list[list[float]] | None:
    """Prepare the functions in that order, each somewhere else, and time them interleaved.

    Returns: microseconds of every round by function, in the order of `functions`; None where cold calls
        cannot be timed.
    """
    blocks: list[Any] = []
    held: list[Any] = []
    try:
        for which in order:
            held.append(timer.pad(rng))
            blocks.append(timer.prepare(functions[which], calls))
        turns = interleaved(len(order), rounds)
        times = timer.cold(blocks, turns) if cold else timer.time(blocks, turns)
    finally:
        for block in blocks:
            timer.discard(block)
        held.clear()
    if times is None:
        return None
    places = _columns(times, len(order), rounds)
    return [places[list(order).index(which)] for which in range(len(order))]


def _columns(times: Sequence[float], contestants: int, rounds: int) -> list[list[float]]:
    """Times by place in the order, one a round."""
    columns: list[list[float]] = [[] for _ in range(contestants)]
    for which, spent in zip(interleaved(contestants, rounds), times, strict=True):
        columns[which].append(spent)
    return columns


def _calls(timer: Timer, a: Call, b: Call, block_us: float) -> int:
    """Calls that fill a block of about `block_us` for the faster of the two; at least 1, at most 1000."""
    slowest = 1
    for function in (a, b):
        block = timer.prepare(function, 1)
        try:
            once = min(timer.time([block], [0] * 5))
        finally:
            timer.discard(block)
        slowest = max(slowest, int(min(1000, max(1.0, block_us / max(once, 1e-3)))))
    return slowest


def _wall(timer: Timer, function: Call, rounds: int) -> tuple[float, float]:
    """p50 and p99 in microseconds of single calls, from Python to synchronised."""
    times = []
    for _ in range(max(20, rounds)):
        timer.synchronise()
        begin = now()
        function()
        timer.synchronise()
        times.append((now() - begin) / 1e3)
    middle, high = np.quantile(times, (0.5, 0.99))
    return float(middle), float(high)
