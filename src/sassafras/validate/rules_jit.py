"""Compiled inner loops: matching words, and distances over the control-flow graph."""

from __future__ import annotations

import numpy as np
from numba import njit

from .flow import Flow

_FAR = np.int32(1 << 20)


@njit(cache=True, inline="always")
def _slot(low: np.uint64, high: np.uint64, mask: np.uint64) -> np.uint64:
    mixed = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high * np.uint64(0xC2B2AE3D27D4EB4F))
    return (mixed ^ (mixed >> np.uint64(29))) & mask


@njit(cache=True)
def index_words(words: np.ndarray, table: np.ndarray, head: np.ndarray, after: np.ndarray) -> None:
    """Build an open-addressing table of words: `table` slot -> first index, `after` -> next equal word."""
    mask = np.uint64(len(table) - 1)
    tail = np.full(len(words), -1, np.int32)
    for i in range(len(words)):
        at = _slot(words[i, 0], words[i, 1], mask)
        after[i] = -1
        while True:
            first = table[at]
            if first < 0:
                table[at] = i
                head[i] = i
                tail[i] = i
                break
            if words[first, 0] == words[i, 0] and words[first, 1] == words[i, 1]:
                after[tail[first]] = i
                tail[first] = i
                head[i] = first
                break
            at = (at + np.uint64(1)) & mask


@njit(cache=True)
def match(
    candidate: np.ndarray,
    words: np.ndarray,
    clean: np.uint64,
    table: np.ndarray,
    after: np.ndarray,
    order: np.ndarray,
) -> int:
    """Fill `order` (position -> original index); equal words are matched in order. Returns the first position
    whose word is not (or no longer) available, or -1."""
    mask = np.uint64(len(table) - 1)
    following = np.full(len(words), -2, np.int32)
    for position in range(len(candidate)):
        low, high = candidate[position, 0], candidate[position, 1] & clean
        at = _slot(low, high, mask)
        found = -1
        while table[at] >= 0:
            first = table[at]
            if words[first, 0] == low and words[first, 1] == high:
                found = first
                break
            at = (at + np.uint64(1)) & mask
        if found < 0:
            return position
        current = found if following[found] == -2 else following[found]
        if current < 0:
            return position
        order[position] = current
        following[found] = after[current]
    return -1


@njit(cache=True)
def issue_times(stall: np.ndarray, flow: Flow, times: np.ndarray, lengths: np.ndarray) -> None:
    """Issue cycle by position within its block, and each block's cycles; a stall of 0 counts as 1."""
    for b in range(len(flow.start)):
        now = np.int32(0)
        for p in range(flow.start[b], flow.end[b]):
            times[p] = now
            now += max(np.int32(1), np.int32(stall[p]))
        lengths[b] = now


@njit(cache=True)
def broken_edges(
    first: np.ndarray,
    second: np.ndarray,
    need: np.ndarray,
    place: np.ndarray,
    times: np.ndarray,
    out: np.ndarray,
) -> int:
    """Rows of pairs within a block out of order or too close; returns how many (at most len(out))."""
    count = 0
    for e in range(len(first)):
        p, q = place[first[e]], place[second[e]]
        if (p >= q or times[q] - times[p] < need[e]) and count < len(out):
            out[count] = e
            count += 1
    return count


@njit(cache=True)
def block_distances(lengths: np.ndarray, flow: Flow, horizon: int) -> np.ndarray:
    """Least cycles from the end of block a to the start of block b over all paths, up to `horizon`."""
    follow_at, follow = flow.follow_at, flow.follow
    count = len(lengths)
    best = np.full((count, count), _FAR, np.int32)
    work = np.empty(count * 4 + 16, np.int32)
    queued = np.zeros(count, np.bool_)
    for a in range(count):
        size = 0
        for k in range(follow_at[a], follow_at[a + 1]):
            best[a, follow[k]] = 0
            if not queued[follow[k]]:
                queued[follow[k]] = True
                work[size] = follow[k]
                size += 1
        while size:
            size -= 1
            n = work[size]
            queued[n] = False
            cycles = best[a, n] + lengths[n]
            if cycles >= horizon:
                continue
            for k in range(follow_at[n], follow_at[n + 1]):
                m = follow[k]
                if best[a, m] > cycles:
                    best[a, m] = cycles
                    if not queued[m]:
                        queued[m] = True
                        work[size] = m
                        size += 1
    return best


@njit(cache=True)
def broken_crossings(
    first: np.ndarray,
    second: np.ndarray,
    need: np.ndarray,
    place: np.ndarray,
    times: np.ndarray,
    lengths: np.ndarray,
    block_of: np.ndarray,
    between: np.ndarray,
    out: np.ndarray,
) -> int:
    """Rows of pairs over block edges that are too close; returns how many (at most len(out))."""
    count = 0
    for e in range(len(first)):
        a, b = block_of[first[e]], block_of[second[e]]
        cycles = lengths[a] - times[place[first[e]]] + between[a, b] + times[place[second[e]]]
        if cycles < need[e] and count < len(out):
            out[count] = e
            count += 1
    return count
