"""Compiled loops of `schedule.control`, step 3: barriers and wait masks, once the scoreboards are given out.

numba's cache knows only the file of a function, so that none here calls one of another file.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .control import NONE, ScoreboardProblem

#: nothing is pending (otherwise: the scoreboards that say that it is done, of six)
CLEAR = np.uint8(0xFF)
#: setters of one scoreboard that may be outstanding: its counter has six bits
_MOST = 60


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _needed(
    f: ScoreboardProblem, c: int, mask: np.uint8, by: np.ndarray, color: np.ndarray, missing: np.ndarray
) -> np.uint8:
    """`mask` and what instruction `c` must wait for besides, of what is pending.

    Args:
        by: which scoreboards say of each item that it is done.
        missing: set where an item that no later operation covers has no scoreboard.
    """
    for trial in range(3):
        for e in range(f.conflict_at[c], f.conflict_at[c + 1]):
            k = f.conflict[e]
            if by[k] == CLEAR or by[k] & mask:
                continue
            # its own scoreboard: first where no other says it
            if color[k] >= 0 and (trial > 0 or by[k] == 1 << color[k]):
                mask |= np.uint8(1 << color[k])
            elif color[k] < 0 and trial == 2:
                missing[k] = True
    return mask


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _raise(
    f: ScoreboardProblem, v: int, write: int, read: int, by: np.ndarray, active: np.ndarray, size: int
) -> None:
    """Instruction `v` covers what is pending of its queue."""
    mine = np.uint64(1) << np.uint64(f.covers[v])
    sets = np.uint8(0 if write == NONE else 1 << write)
    both = sets | np.uint8(0 if read == NONE else 1 << read)
    for a in range(size):
        k = active[a]
        if k & 1 and f.covered_by[k] & mine:
            by[k] |= both
        if f.covered_by[k & ~1] & mine:
            by[k] |= sets


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _carrier(f: ScoreboardProblem, order: np.ndarray, b: int, p: int) -> int:
    """The last place of block `b` at `p` or before that can carry a wait; below the block where none can."""
    while p >= f.start[b] and not f.may_wait[order[p]]:
        p -= 1
    return p


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _wait_earlier(
    f: ScoreboardProblem,
    order: np.ndarray,
    where: np.ndarray,
    b: int,
    p: int,
    mask: np.uint8,
    by: np.ndarray,
    wait: np.ndarray,
) -> tuple[bool, bool]:
    """Put the wait of an instruction that cannot carry one on a place before it.

    Returns:
        (put in this block, put in the blocks before it); neither where all of them wait for it already, or
        no place will do.
    """
    c = order[p]
    q = _carrier(f, order, b, p - 1)
    if q < f.start[b]:
        # nothing before it in its block can: the blocks before it wait, at their ends
        moved = False
        for m in range(len(f.start)):
            for e in range(f.follow_at[m], f.follow_at[m + 1]):
                if f.follow[e] == b:
                    r = _carrier(f, order, m, f.end[m] - 1)
                    if r >= f.start[m] and (wait[r] | mask) != wait[r]:
                        wait[r] |= mask
                        moved = True
        return False, moved
    for e in range(f.conflict_at[c], f.conflict_at[c + 1]):
        k = f.conflict[e]
        if by[k] != CLEAR and by[k] & mask and q <= where[f.tracked[k >> 1]] < p:
            return False, False  # what is waited for has not issued by then
    if (wait[q] | mask) == wait[q]:
        return False, False
    wait[q] |= mask
    return True, False


@njit(cache=True, no_cfunc_wrapper=True)
def waits(
    f: ScoreboardProblem,
    order: np.ndarray,
    color: np.ndarray,
    clears: np.ndarray,
    write: np.ndarray,
    read: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Wait masks by position; and items that are waited for though they have no scoreboard, and nothing else
    that is waited for says that they are done.

    Walks blocks until nothing changes: what is pending on entry only grows, and so do the masks.

    Args:
        color, clears: by item, its scoreboard or -1; the scoreboards that say that it is done (uint8).
        write, read: by position, the barriers that are set (uint8).
    """
    n, blocks, items = len(order), len(f.start), len(f.latency)
    number = f.number
    where = np.empty(n, dtype=np.int32)
    for p in range(n):
        where[order[p]] = p
    wait = np.zeros(n, dtype=np.uint8)
    missing = np.zeros(items, dtype=np.bool_)
    pending = np.full((blocks, items), CLEAR)  # on entry of a block: what says so on all paths
    raised = np.zeros((blocks, 6), dtype=np.int32)  # setters outstanding on entry, by scoreboard
    active = np.empty(items, dtype=np.int32)
    queued = np.ones(blocks, dtype=np.bool_)
    while queued.any():
        for b in range(blocks):
            if not queued[b]:
                continue
            queued[b] = False
            by, count = pending[b].copy(), raised[b].copy()
            size = 0  # `active[:size]` lists what is pending
            for k in range(items):
                if by[k] != CLEAR:
                    active[size] = k
                    size += 1
            again = False
            for p in range(f.start[b], f.end[b]):
                c = order[p]
                mask = _needed(f, c, wait[p], by, color, missing)
                for item, w in enumerate((write[p], read[p])):
                    # (groups are counted by DEPBAR, and never too many: a wait would drain them)
                    if w != NONE and count[w] >= _MOST and f.keeps[2 * number[c] + item] < 0:
                        mask |= np.uint8(1 << w)  # the counter would run over
                if mask and not f.may_wait[c] and mask != wait[p]:
                    here, before = _wait_earlier(f, order, where, b, p, mask, by, wait)
                    if here:
                        queued[b] = True
                    if before:
                        # what is pending is found again, also in other blocks behind those that wait now
                        pending[:, :] = CLEAR
                        raised[:, :] = 0
                        queued[:] = True
                    if here or before:
                        again = True
                        break
                wait[p] = mask
                if mask:
                    kept = 0
                    for a in range(size):
                        k = active[a]
                        if by[k] & mask:
                            by[k] = CLEAR
                        else:
                            active[kept] = k
                            kept += 1
                    size = kept
                    for s in range(6):
                        if mask >> s & 1:
                            count[s] = 0
                v = number[c]
                if v >= 0:
                    if f.covers[v] >= 0 and (write[p] != NONE or read[p] != NONE):
                        _raise(f, v, write[p], read[p], by, active, size)
                    for k in (2 * v, 2 * v + 1):
                        # what is never waited for need not be followed
                        if clears[k] == 0 and f.covered_by[k] == 0 and f.covered_by[2 * v] == 0:
                            continue
                        if by[k] == CLEAR:
                            active[size] = k
                            size += 1
                        by[k] = clears[k]
                    for w in (write[p], read[p]):
                        if w != NONE:
                            count[w] = min(_MOST + 1, count[w] + 1)
            if again:
                continue  # a wait was put further up: that is walked again first
            for e in range(f.follow_at[b], f.follow_at[b + 1]):
                m = f.follow[e]
                for k in range(items):
                    if by[k] & pending[m, k] != pending[m, k]:
                        pending[m, k] &= by[k]
                        queued[m] = True
                for s in range(6):
                    if count[s] > raised[m, s]:
                        raised[m, s] = count[s]
                        queued[m] = True
    return wait, missing
