"""Compiled functions that call no other compiled function: emission, and what agents see."""

from __future__ import annotations

import numpy as np
from numba import njit

from .tables import Tables


@njit(cache=True)
def encode(words: np.ndarray, order: np.ndarray, stall: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """The instructions' words in a schedule's order, with its control codes.

    The stall field is replaced; a stall of 12 or more clears the yield bit (those combinations are never
    emitted by ptxas), otherwise an instruction keeps its own; `.reuse` is cleared where one of the
    instructions that it reaches does not follow as originally.

    Args:
        words: uint64 (instructions, 2), original order.
        order, stall: the schedule.
        reach: instructions that each one's `.reuse` flags reach (`schedule.reuse.reaches`).

    Returns:
        uint64 (instructions, 2), by position.
    """
    n = len(order)
    out = np.empty((n, 2), dtype=np.uint64)
    stall_field = ~(np.uint64(0xF) << np.uint64(41))
    yield_bit = ~(np.uint64(1) << np.uint64(45))
    reuse_field = ~(np.uint64(0xF) << np.uint64(58))
    for p in range(n):
        x = order[p]
        high = (words[x, 1] & stall_field) | (np.uint64(stall[p]) << np.uint64(41))
        if stall[p] >= 12:
            high &= yield_bit & reuse_field
        if reach[x] < 0 and p != x:
            high &= reuse_field
        for k in range(1, reach[x] + 1):
            if p + k >= n or order[p + k] != x + k:
                high &= reuse_field
                break
        out[p, 0] = words[x, 0]
        out[p, 1] = high
    return out


@njit(cache=True)
def survey(
    t: Tables, order: np.ndarray, stall: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each position: places that it may go up and down, longest chain of distances from the block's
    start, and cycles between that and its issue (all int32)."""
    n = len(order)
    where = np.empty(n, dtype=np.int32)
    for p in range(n):
        where[order[p]] = p
    up, down = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32)
    depth, slack = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32)
    now = 0
    for p in range(n):
        x = order[p]
        if p == t.start[t.block_of[p]]:
            now = 0
        if t.movable[x] != 0:
            lo, hi = t.low[p], t.high[p] - 1
            for k in range(t.order_at[x], t.order_at[x + 1]):
                lo = max(lo, where[t.order_before[k]] + 1)
            for k in range(t.after_at[x], t.after_at[x + 1]):
                hi = min(hi, where[t.after[k]] - 1)
            up[p] = p - lo
            down[p] = hi - p
        for k in range(t.near_at[x], t.near_at[x + 1]):
            depth[p] = max(depth[p], depth[where[t.near[k]]] + t.near_cycles[k])
        slack[p] = max(0, now - depth[p])
        now += max(1, stall[p])
    return up, down, depth, slack
