"""Compiled loops of `schedule.construct`: list scheduling within one block.

All in one file, see `kernels`. Instructions of the block are numbered from 0 at its first.
"""

from __future__ import annotations

import numpy as np
from numba import int64, njit

from .machine import Machine

_PIPES = 16
_NEVER = -(1 << 20)


@njit(cache=True)
def lengths(m: Machine, block: int, outside: bool) -> np.ndarray:
    """Cycles from each instruction's issue to the block's end at least: float64, by place in the original.

    `outside`: late results that other blocks need count as if the block's end waited for them.
    """
    s, e = m.start[block], m.end[block]
    out = np.zeros(e - s)
    for x in range(e - 1, s - 1, -1):
        least = float(max(m.own[x], m.tail[x]))
        if outside:
            least = max(least, float(m.outside[x]))
        for k in range(m.succ_at[x], m.succ_at[x + 1]):
            least = max(least, m.delay[k] + out[m.succ[k] - s])
        out[x - s] = least
    return out


@njit(cache=True)
def _issue(m, x, cursor, est, pipe_free, last):  # type: ignore[no-untyped-def]
    """Earliest cycle at which instruction x may issue next."""
    at = max(cursor, est)
    p = m.pipe[x]
    if p >= 0 and pipe_free[p] > at:
        at = pipe_free[p]
    c = m.kind[x]
    if c >= 0:
        for d in range(len(m.spacing)):
            gap = m.spacing[d, c]
            if gap > 0 and last[d] + gap > at:
                at = last[d] + gap
    return at


@njit(cache=True)
def _place(m, x, s, at, est, preds, pipe_free, last, memory):  # type: ignore[no-untyped-def]
    """Issue x at cycle `at`: the pipe is busy, and what depends on it learns when."""
    p = m.pipe[x]
    if p >= 0:
        pipe_free[p] = at + m.busy[x]
    if m.kind[x] >= 0:
        last[m.kind[x]] = at
    lag, late = 0, 0
    if m.queue[x]:
        begin = max(float(at + 1), memory[0])
        memory[0] = begin + m.interval
        lag = int(begin) - (at + 1)
        late = lag
        if m.port[x] > 0:
            through = max(begin, memory[1])
            memory[1] = through + m.port[x]
            late += int(through - begin)
    for k in range(m.succ_at[x], m.succ_at[x + 1]):
        y = m.succ[k] - s
        ready = at + m.delay[k]
        if m.what[k] == 1:
            ready += late
        elif m.what[k] == 2:
            ready += lag
        if ready > est[y]:
            est[y] = ready
        preds[y] -= 1


@njit(cache=True)
def _start(m, block, est, preds, last):  # type: ignore[no-untyped-def]
    s, e = m.start[block], m.end[block]
    for x in range(s, e):
        est[x - s] = m.head[x]
        preds[x - s] = m.preds[x]
    for d in range(len(m.spacing)):
        last[d] = -m.entry[block, d]


@njit(cache=True)
def measure(m: Machine, block: int, order: np.ndarray, issue: np.ndarray) -> int:
    """Cycles of the block in this order (places in the original, from 0), alone on the machine; -1 where the
    order breaks an arc. Writes the issue cycle of each place into `issue` (int64)."""
    s, e = m.start[block], m.end[block]
    n = e - s
    est, preds = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    pipe_free = np.zeros(_PIPES, dtype=np.int64)
    last, memory = np.zeros(len(m.spacing), dtype=np.int64), np.zeros(2)
    _start(m, block, est, preds, last)
    cursor, end = int64(0), int(m.least[block])
    for k in range(n):
        x = order[k]
        if preds[x] > 0:
            return -1
        at = _issue(m, s + x, cursor, est[x], pipe_free, last)
        _place(m, s + x, s, at, est, preds, pipe_free, last, memory)
        issue[x] = at
        cursor = at + m.own[s + x]
        end = max(end, at + m.tail[s + x])
    return max(end, cursor)


@njit(cache=True)
def schedule(m: Machine, block: int, priority: np.ndarray, haste: float) -> np.ndarray:
    """List scheduling: of those that may come next, always the one with the highest priority, less `haste`
    for every cycle that the warp would wait for it; the first in the original among equals.

    Args:
        m: the machine.
        block: number of the block.
        priority: float64, by place in the original from the block's first.
        haste: see above.

    Returns:
        The order: places in the original.
    """
    s, e = m.start[block], m.end[block]
    n = e - s
    est, preds = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    pipe_free = np.zeros(_PIPES, dtype=np.int64)
    last, memory = np.zeros(len(m.spacing), dtype=np.int64), np.zeros(2)
    _start(m, block, est, preds, last)
    order = np.empty(n, dtype=np.int32)
    ready = np.empty(n, dtype=np.int32)
    count = 0
    for x in range(n):
        if preds[x] == 0:
            ready[count] = x
            count += 1
    cursor = int64(0)
    for k in range(n):
        best, best_score, best_at = 0, -1e30, int64(0)
        for r in range(count):
            x = ready[r]
            at = _issue(m, s + x, cursor, est[x], pipe_free, last)
            score = priority[x] - haste * (at - cursor)
            if score > best_score or (score == best_score and x < ready[best]):
                best, best_score, best_at = r, score, at
        x = ready[best]
        ready[best] = ready[count - 1]
        count -= 1
        _place(m, s + x, s, best_at, est, preds, pipe_free, last, memory)
        cursor = best_at + m.own[s + x]
        order[k] = x
        for j in range(m.succ_at[s + x], m.succ_at[s + x + 1]):
            y = m.succ[j] - s
            if preds[y] == 0:
                preds[y] = -1
                ready[count] = y
                count += 1
    return order
