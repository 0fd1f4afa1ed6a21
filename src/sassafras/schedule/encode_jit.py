"""Compiled functions of emission, and of what agents see."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit

from .tables import Tables


@njit(cache=True, no_cfunc_wrapper=True)
def encode(
    words: np.ndarray, order: np.ndarray, stall: np.ndarray, reach: np.ndarray, plain: np.ndarray
) -> np.ndarray:
    """The instructions' words in a schedule's order, with its control codes.

    The stall field is replaced; a stall of 12 or more clears the yield bit (those combinations are never
    emitted by ptxas), otherwise an instruction keeps its own, or gets what ptxas gives its new stall
    count; `.reuse` is cleared where one of the instructions that it reaches does not follow as originally.

    Args:
        words: uint64 (instructions, 2), original order.
        order, stall: the schedule.
        reach: instructions that each one's `.reuse` flags reach (`schedule.reuse.reaches`).
        plain: bool, those whose yield bit follows from the stall count (`schedule.pipes.plain`).

    Returns:
        uint64 (instructions, 2), by position.
    """
    n = len(order)
    out = np.empty((n, 2), dtype=np.uint64)
    stall_field = ~(np.uint64(0xF) << np.uint64(41))
    yield_set = np.uint64(1) << np.uint64(45)
    yield_bit = ~yield_set
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
        if plain[x] and stall[p] != (words[x, 1] >> np.uint64(41)) & np.uint64(0xF):
            # (a clear bit would end what `.reuse` keeps)
            high = high & yield_bit if stall[p] > 2 and not high & ~reuse_field else high | yield_set
        if stall[p] >= 12:
            high &= yield_bit
        out[p, 0] = words[x, 0]
        out[p, 1] = high
    return out


class Survey(NamedTuple):
    """What an agent sees of each position, in cycles within its block (all int32).

    Attributes:
        depth, height: longest chain of distances from the block's start, to its end.
        slack: cycles between `depth` and its issue.
        early: how much sooner it could issue as far as its producers go.
        since: time since the last setter of a scoreboard that it waits for, -1 where there is none.
        until: time until the first waiter of a scoreboard that it sets, -1 where there is none.
    """

    depth: np.ndarray
    height: np.ndarray
    slack: np.ndarray
    early: np.ndarray
    since: np.ndarray
    until: np.ndarray


@njit(cache=True, no_cfunc_wrapper=True)
def survey(t: Tables, order: np.ndarray, stall: np.ndarray, where: np.ndarray) -> Survey:
    """Walk every block of a schedule; `where`: position by instruction."""
    n = len(order)
    depth, slack, early = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int32)
    since, until = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    height, issue = np.ones(n, np.int32), np.zeros(n, np.int64)
    last = np.full(6, -1, np.int64)
    now = 0
    for p in range(n):
        x = order[p]
        s = t.start[t.block_of[p]]
        if p == s:
            now = 0
            last[:] = -1
        issue[p] = now
        ready = 0
        for k in range(t.near_at[x], t.near_at[x + 1]):
            q = where[t.near[k]]
            depth[p] = max(depth[p], depth[q] + t.near_cycles[k])
            if q >= s:
                ready = max(ready, issue[q] + t.near_cycles[k])
        slack[p] = max(0, now - depth[p])
        early[p] = max(0, now - ready)
        for b in range(6):
            if t.waits[x] >> b & 1 and last[b] >= 0:
                q = last[b]
                gap = now - issue[q]
                since[p] = gap if since[p] < 0 else min(since[p], gap)
                if until[q] < 0:
                    until[q] = gap
            if t.sets[x] >> b & 1:
                last[b] = p
        now += max(1, stall[p])
    for p in range(n - 1, -1, -1):
        x = order[p]
        for k in range(t.near_at[x], t.near_at[x + 1]):
            q = where[t.near[k]]
            height[q] = max(height[q], height[p] + t.near_cycles[k])
    return Survey(depth, height, slack, early, since, until)


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _note(row: np.ndarray, q: int, sign: int) -> None:
    """Put `q` into a row of the smallest `sign` * q, in order; -1 is empty."""
    slot = len(row)
    while slot > 0 and (row[slot - 1] < 0 or sign * q < sign * row[slot - 1]):
        if slot < len(row):
            row[slot] = row[slot - 1]
        slot -= 1
    if slot < len(row):
        row[slot] = q


@njit(cache=True, no_cfunc_wrapper=True)
def neighbours(t: Tables, order: np.ndarray, where: np.ndarray, count: int) -> np.ndarray:
    """int32 (positions, 2 * count): the nearest positions above that must stay above, then the nearest
    below that must stay below; -1 where there are fewer."""
    out = np.full((len(order), 2 * count), -1, dtype=np.int32)
    for p in range(len(order)):
        x = order[p]
        for y in t.order_before[t.order_at[x] : t.order_at[x + 1]]:
            _note(out[p, :count], where[y], int64(-1))
        for y in t.after[t.after_at[x] : t.after_at[x + 1]]:
            _note(out[p, count:], where[y], int64(1))
    return out
