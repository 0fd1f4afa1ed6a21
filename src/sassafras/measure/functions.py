"""Two functions, timed interleaved in this process, prepared anew in every group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sassafras.core.statistics import hierarchical_bootstrap, hierarchical_median, paired_ratios
from sassafras.device.cuda.timing import interleaved

from .comparison import Comparison
from .results import alike, on_gpu
from .timers import Cpu, Function, Gpu, Timer, now


def compare_functions(
    a: Function, b: Function, args: tuple, kwargs: dict[str, Any], device: str, groups: int, rounds: int,
    block_us: float, cold_l2: bool,
) -> Comparison:  # fmt: skip
    """See `sassafras.measure.compare`."""
    first, second = a(*args, **kwargs), b(*args, **kwargs)
    if device == "auto":
        device = "cuda" if any(on_gpu(value) for value in (first, second, args, kwargs)) else "cpu"
    timer: Timer = Gpu() if device == "cuda" else Cpu()
    timer.synchronise()
    equal = alike(first, second)
    del first, second
    calls = _calls(timer, a, b, args, kwargs, block_us)
    ratios: list[np.ndarray] = []
    nulls: list[np.ndarray] = []
    cold: list[np.ndarray] = []
    times: list[tuple[float, float]] = []
    for _ in range(groups):
        blocks = [timer.prepare(function, args, kwargs, calls) for function in (a, b, a)]
        try:
            columns = _columns(timer.time(blocks, interleaved(3, rounds)), 3, rounds)
        finally:
            for block in blocks:
                timer.discard(block)
        ratios.append(paired_ratios(columns[0], columns[1]))
        nulls.append(paired_ratios(columns[0], columns[2]))
        times.append((float(np.median(columns[0])) / calls, float(np.median(columns[1])) / calls))
        if cold_l2 and (found := _cold(timer, a, b, args, kwargs, min(rounds, 24))) is not None:
            cold.append(found)
    wall = {name: _wall(timer, f, args, kwargs, rounds) for name, f in (("A", a), ("B", b))}
    clocks: dict[str, Any] = {}
    if device == "cuda":
        from sassafras.device.cuda.environment import clocks as read_clocks

        clocks = read_clocks()
    return Comparison(
        hierarchical_median(ratios), hierarchical_bootstrap(ratios, seed=1),  # type: ignore[arg-type]
        hierarchical_median(nulls), hierarchical_bootstrap(nulls, seed=2),  # type: ignore[arg-type]
        float(np.median([t[0] for t in times])), float(np.median([t[1] for t in times])), groups, rounds,
        timer.how,
        cold_speedup=hierarchical_median(cold) if cold else None,  # type: ignore[arg-type]
        cold_interval=hierarchical_bootstrap(cold, seed=3) if cold else None,  # type: ignore[arg-type]
        wall_us=wall, equal=equal,
        facts={"calls_a_block": calls, "groups_us": times, "clocks_mhz": clocks},
    )  # fmt: skip


def _columns(times: Sequence[float], contestants: int, rounds: int) -> list[list[float]]:
    """Times by contestant, in the order of the rounds."""
    columns: list[list[float]] = [[] for _ in range(contestants)]
    for which, spent in zip(interleaved(contestants, rounds), times, strict=True):
        columns[which].append(spent)
    return columns


def _calls(
    timer: Timer, a: Function, b: Function, args: tuple, kwargs: dict[str, Any], block_us: float
) -> int:
    """Calls that fill a block of about `block_us` for the faster of the two; at least 1, at most 1000."""
    slowest = 1
    for function in (a, b):
        block = timer.prepare(function, args, kwargs, 1)
        try:
            once = min(timer.time([block], [0] * 5))
        finally:
            timer.discard(block)
        slowest = max(slowest, int(min(1000, max(1.0, block_us / max(once, 1e-3)))))
    return slowest


def _cold(
    timer: Timer, a: Function, b: Function, args: tuple, kwargs: dict[str, Any], rounds: int
) -> np.ndarray | None:
    blocks = [timer.prepare(function, args, kwargs, 1) for function in (a, b)]
    try:
        times = timer.cold(blocks, interleaved(2, rounds))
    finally:
        for block in blocks:
            timer.discard(block)
    return None if times is None else paired_ratios(*_columns(times, 2, rounds))


def _wall(
    timer: Timer, function: Function, args: tuple, kwargs: dict[str, Any], rounds: int
) -> tuple[float, float]:
    """p50 and p99 in microseconds of single calls, from Python to synchronised."""
    times = []
    for _ in range(max(20, rounds)):
        timer.synchronise()
        begin = now()
        function(*args, **kwargs)
        timer.synchronise()
        times.append((now() - begin) / 1e3)
    middle, high = np.quantile(times, (0.5, 0.99))
    return float(middle), float(high)
