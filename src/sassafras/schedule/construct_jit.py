"""Compiled loops of `schedule.construct`: list scheduling and beam search within one block.

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


@njit(cache=True)
def beam(
    m: Machine, block: int, length: np.ndarray, priority: np.ndarray, width: int, branch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Beam search over orders of one block.

    Partial orders are judged by the least that the block can still take; of two with the same instructions
    placed and the same last cycle the better one is kept. Ties go to the earlier cycle, then to the priority.

    Args:
        m, block: see `schedule`.
        length: cycles from each instruction's issue to the end (`lengths`).
        priority: what breaks ties, and chooses which `branch` successors of a partial order are tried.
        width: partial orders kept.
        branch: successors tried of each.

    Returns:
        (orders (found, n), cycles (found,)), best first.
    """
    s, e = m.start[block], m.end[block]
    n, kinds = e - s, len(m.spacing)
    est, preds = np.zeros((width, n), dtype=np.int64), np.zeros((width, n), dtype=np.int64)
    pipes, last = np.zeros((width, _PIPES), dtype=np.int64), np.zeros((width, kinds), dtype=np.int64)
    memory, order = np.zeros((width, 2)), np.zeros((width, n), dtype=np.int32)
    cursor, done = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64)
    mark, worth = np.zeros(width, dtype=np.uint64), np.zeros(width)
    est2, preds2, pipes2, last2 = est.copy(), preds.copy(), pipes.copy(), last.copy()
    memory2, order2, cursor2, done2 = memory.copy(), order.copy(), cursor.copy(), done.copy()
    mark2, worth2 = mark.copy(), worth.copy()
    _start(m, block, est[0], preds[0], last[0])
    done[0] = m.least[block]
    hashes = np.empty(n, dtype=np.uint64)
    seed = np.uint64(0x9E3779B97F4A7C15)
    for x in range(n):
        z = seed * np.uint64(x + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes[x] = z ^ (z >> np.uint64(31))
    rest, rest2 = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64)
    for x in range(s, e):
        rest[0] += m.own[x]
    children = width * branch
    child = np.empty((children, 2), dtype=np.int64)
    child_at, child_done = np.empty(children, dtype=np.int64), np.empty(children, dtype=np.int64)
    key = np.empty(children)
    gain = np.empty(children)
    states = 1
    chosen, chosen_score = np.empty(branch, dtype=np.int64), np.empty(branch)
    chosen_at = np.empty(branch, dtype=np.int64)
    spread = max(1.0, float(np.max(np.abs(priority)))) * n
    for k in range(n):
        count = 0
        for w in range(states):
            # the best few of those that may come next
            have = 0
            highest, second, who = np.int64(0), np.int64(0), -1
            for x in range(n):
                if preds[w, x] < 0:
                    continue
                ends = max(est[w, x], cursor[w]) + np.int64(length[x])
                if ends > highest:
                    highest, second, who = ends, highest, x
                elif ends > second:
                    second = ends
                if preds[w, x] > 0:
                    continue
                at = _issue(m, s + x, cursor[w], est[w, x], pipes[w], last[w])
                score = priority[x] - (at - cursor[w])
                place = have
                while place > 0 and chosen_score[place - 1] < score:
                    place -= 1
                if place >= branch:
                    continue
                have = min(have + 1, branch)
                for q in range(have - 1, place, -1):
                    chosen[q], chosen_score[q], chosen_at[q] = (
                        chosen[q - 1],
                        chosen_score[q - 1],
                        chosen_at[q - 1],
                    )
                chosen[place], chosen_score[place], chosen_at[place] = x, score, at
            for q in range(have):
                x, at = chosen[q], chosen_at[q]
                behind = at + m.own[s + x]
                ends = max(at + np.int64(length[x]), second if who == x else highest)
                ends = max(ends, at + rest[w], done[w])
                child[count, 0], child[count, 1] = w, x
                child_at[count] = at
                child_done[count] = max(done[w], at + m.tail[s + x])
                gain[count] = worth[w] + priority[x] * (n - k)
                key[count] = ends + 1e-3 * behind - 1e-4 * gain[count] / spread
                count += 1
        # the best of them, each set of instructions once
        ranked = np.argsort(key[:count], kind="mergesort")
        kept = 0
        for r in range(count):
            c = ranked[r]
            w, x = child[c, 0], child[c, 1]
            print_of = mark[w] ^ hashes[x]
            at = child_at[c]
            again = False
            for o in range(kept):
                if mark2[o] == print_of and cursor2[o] <= at + m.own[s + x]:
                    again = True
                    break
            if again:
                continue
            est2[kept], preds2[kept], pipes2[kept], last2[kept] = est[w], preds[w], pipes[w], last[w]
            memory2[kept], order2[kept] = memory[w], order[w]
            _place(m, s + x, s, at, est2[kept], preds2[kept], pipes2[kept], last2[kept], memory2[kept])
            preds2[kept, x] = -1
            order2[kept, k] = x
            cursor2[kept], done2[kept] = at + m.own[s + x], child_done[c]
            mark2[kept], worth2[kept] = print_of, gain[c]
            rest2[kept] = rest[w] - m.own[s + x]
            kept += 1
            if kept == width:
                break
        states = kept
        est, est2 = est2, est
        preds, preds2 = preds2, preds
        pipes, pipes2 = pipes2, pipes
        last, last2 = last2, last
        memory, memory2 = memory2, memory
        order, order2 = order2, order
        cursor, cursor2 = cursor2, cursor
        done, done2 = done2, done
        mark, mark2 = mark2, mark
        worth, worth2 = worth2, worth
        rest, rest2 = rest2, rest
    cycles = np.maximum(done[:states], cursor[:states])
    ranked = np.argsort(cycles, kind="mergesort")
    return order[ranked].copy(), cycles[ranked].copy()
