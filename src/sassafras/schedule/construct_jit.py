"""Compiled loops of `schedule.construct`: list scheduling within one block.

All in one file, see `moves_jit`. Instructions of the block are numbered from 0 at its first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit

from .machine import Machine
from .tables import Tables

_PIPES = 16


class Clock(NamedTuple):
    """How far a block has come: by instruction the earliest issue and the open arcs; by pipe when it is free;
    by kind the last issue; when the memory queue and the port are free (all int64 but `memory`)."""

    earliest: np.ndarray
    preds: np.ndarray
    pipe_free: np.ndarray
    last: np.ndarray
    memory: np.ndarray


@njit(cache=True, no_cfunc_wrapper=True)
def lengths(m: Machine, t: Tables, block: int, outside: bool) -> np.ndarray:
    """Cycles from each instruction's issue to the block's end at least: float64, by place in the original.

    `outside`: late results that other blocks need count as if the block's end waited for them.
    """
    s, e = t.start[block], t.end[block]
    out = np.zeros(e - s)
    for x in range(e - 1, s - 1, -1):
        least = float(max(1, t.own[x], t.tail[x]))
        if outside:
            least = max(least, float(m.outside[x]))
        for k in range(m.succ_at[x], m.succ_at[x + 1]):
            least = max(least, m.delay[k] + out[m.succ[k] - s])
        out[x - s] = least
    return out


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _start(m: Machine, t: Tables, block: int) -> Clock:
    s, e = t.start[block], t.end[block]
    return Clock(
        t.head[s:e].astype(np.int64),
        m.preds[s:e].astype(np.int64),
        np.zeros(_PIPES, dtype=np.int64),
        -t.entry_gap[block].astype(np.int64),
        np.zeros(2),
    )


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _issue(m: Machine, t: Tables, c: Clock, s: int, x: int, cursor: int) -> int:
    """Earliest cycle at which instruction x, of the block that begins at s, may issue next."""
    at = max(cursor, c.earliest[x])
    if m.pipe[s + x] >= 0:
        at = max(at, c.pipe_free[m.pipe[s + x]])
    kind = t.kind[s + x]
    if kind >= 0:
        for d in range(len(t.spacing)):
            if t.spacing[d, kind] > 0:
                at = max(at, c.last[d] + t.spacing[d, kind])
    return at


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _place(m: Machine, t: Tables, c: Clock, s: int, x: int, at: int) -> int:
    """Issue x at cycle `at`: its pipe is busy, and what depends on it learns when. Returns the next issue."""
    n = s + x
    if m.pipe[n] >= 0:
        c.pipe_free[m.pipe[n]] = at + m.busy[n]
    if t.kind[n] >= 0:
        c.last[t.kind[n]] = at
    lag, late = 0, 0
    if m.queue[n]:
        begin = max(float(at + 1), c.memory[0])
        c.memory[0] = begin + m.interval
        lag = int(begin) - (at + 1)
        late = lag
        if m.port[n] > 0:
            through = max(begin, c.memory[1])
            c.memory[1] = through + m.port[n]
            late += int(through - begin)
    for k in range(m.succ_at[n], m.succ_at[n + 1]):
        y = m.succ[k] - s
        ready = at + m.delay[k]
        if m.what[k] == 1:
            ready += late
        elif m.what[k] == 2:
            ready += lag
        c.earliest[y] = max(c.earliest[y], ready)
        c.preds[y] -= 1
    return at + max(1, t.own[n])


@njit(cache=True, no_cfunc_wrapper=True)
def measure(m: Machine, t: Tables, block: int, order: np.ndarray) -> int:
    """Cycles of the block in this order (places in the original, from 0), alone on the machine; -1 where the
    order breaks an arc."""
    s, c = t.start[block], _start(m, t, block)
    cursor, end = int64(0), int64(t.least_length[block])
    for x in order:
        if c.preds[x] > 0:
            return int64(-1)
        at = _issue(m, t, c, s, x, cursor)
        cursor = _place(m, t, c, s, x, at)
        end = max(end, at + t.tail[s + x])
    return max(end, cursor)


@njit(cache=True, no_cfunc_wrapper=True)
def schedule(m: Machine, t: Tables, block: int, priority: np.ndarray, haste: float) -> np.ndarray:
    """List scheduling: of those that may come next, always the one with the highest priority, less `haste`
    for every cycle that the warp would wait for it; the first in the original among equals.

    Args:
        m, t: the machine and the space's tables.
        block: number of the block.
        priority: float64, by place in the original from the block's first.
        haste: see above.

    Returns:
        The order: places in the original.
    """
    s, c = t.start[block], _start(m, t, block)
    n = t.end[block] - s
    order, ready = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    count = 0
    for x in range(n):
        if c.preds[x] == 0:
            ready[count] = x
            count += 1
    cursor = int64(0)
    for k in range(n):
        best, best_score, best_at = 0, -1e30, int64(0)
        for r in range(count):
            x = ready[r]
            at = _issue(m, t, c, s, x, cursor)
            score = priority[x] - haste * (at - cursor)
            if score > best_score or (score == best_score and x < ready[best]):
                best, best_score, best_at = r, score, at
        x = ready[best]
        ready[best] = ready[count - 1]
        count -= 1
        cursor = _place(m, t, c, s, x, best_at)
        order[k] = x
        for j in range(m.succ_at[s + x], m.succ_at[s + x + 1]):
            y = m.succ[j] - s
            if c.preds[y] == 0:
                c.preds[y] = -1
                ready[count] = y
                count += 1
    return order
