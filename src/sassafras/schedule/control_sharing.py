"""Compiled loops of `schedule.control`, steps 1 and 2: what conflicts, what sharing costs, who gets which.

Items are numbered as in `control.ScoreboardProblem`: 2 * v for the result of tracked instruction v,
2 * v + 1 for its late reads. numba's cache knows only the file of a function, so that none here calls one
of another file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .control import ScoreboardProblem

_RUN, _RECORD = np.uint8(0), np.uint8(1)
#: expected cycles (a loop's count eightfold) that another choice than the compiler's must save
_WORTH = 64.0


@njit(cache=True, no_cfunc_wrapper=True)
def conflicts(
    late: np.ndarray,
    touches: np.ndarray,
    writes: np.ndarray,
    number: np.ndarray,
    tracked: np.ndarray,
    queued: np.ndarray,
    behind: np.ndarray,
    row: np.ndarray,
    done: np.ndarray,
    real: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """For each instruction, the items that must not be pending when it issues, as CSR; whatever the order."""
    n, items, words = len(number), len(late), late.shape[1]
    at = np.zeros(n + 1, dtype=np.int32)
    found = np.empty(1024, dtype=np.int32)
    count = 0
    for c in range(n):
        for k in range(items):
            if not real[k]:
                continue
            v = k >> 1
            hit = row[c] >= 0 and done[row[c], k]
            if not hit and not (k & 1 and c == tracked[v]):
                side = writes if k & 1 else touches
                overtakes = (
                    k & 1 and queued[v] >= 0 and number[c] >= 0 and (behind[c] >> queued[v]) & 1
                )  # its late result cannot overtake these reads; what it writes at once could
                for w in range(words):
                    both = late[k, w] & side[c, w]
                    if both and overtakes:
                        both &= ~late[2 * number[c], w]
                    if both:
                        hit = True
                        break
            if hit:
                if count == len(found):
                    bigger = np.empty(2 * count, dtype=np.int32)
                    for old in range(count):  # (slices take numba seconds longer to compile)
                        bigger[old] = found[old]
                    found = bigger
                found[count] = k
                count += 1
        at[c + 1] = count
    return at, found[:count].copy()


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _covers(f: ScoreboardProblem, issued: np.ndarray, a: int, k: int) -> bool:
    """Whether item `k` is done when `a` is: operands are read before the result is there, and later
    operations cover earlier ones."""
    if k == a or (k & 1 and k - 1 == a):
        return True
    if issued[k] > issued[a] or (k >> 1) == (a >> 1) or f.covers[a >> 1] < 0:
        return False
    mine = np.uint64(1) << np.uint64(f.covers[a >> 1])
    if k & 1 and f.covered_by[k] & mine:
        return True
    return a & 1 == 0 and f.covered_by[k & ~1] & mine != 0


class _Walk(NamedTuple):
    """One walk over a schedule; by item but for the two lists of items, `active` and `asked`.

    Attributes:
        order, stall: the schedule, by position.
        issued, pending: cycle of its issue (the block starts at 0); whether it is pending.
        needed, cost: what `demand` fills in.
        active, asked: scratch.
    """

    order: np.ndarray
    stall: np.ndarray
    issued: np.ndarray
    pending: np.ndarray
    needed: np.ndarray
    cost: np.ndarray
    active: np.ndarray
    asked: np.ndarray


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _run(f: ScoreboardProblem, w: _Walk, block: int, record: np.uint8) -> float:
    """One block with a scoreboard for everything; returns its expected cycles. `record`: whether to fill in
    `needed` and `cost`."""
    issued, pending, active, asked = w.issued, w.pending, w.active, w.asked
    now = 0.0
    count = 0
    for k in range(len(pending)):
        if pending[k]:
            active[count] = k
            count += 1
    for p in range(f.start[block], f.end[block]):
        c = w.order[p]
        passed = 0.0
        size = 0
        for e in range(f.conflict_at[c], f.conflict_at[c + 1]):
            k = f.conflict[e]
            if pending[k]:
                passed = max(passed, f.latency[k] - (now - issued[k]))
                # of what is done in order the last alone is asked for
                for n in range(size):
                    if _covers(f, issued, asked[n], k):
                        break
                else:
                    kept = 0
                    for n in range(size):
                        if not _covers(f, issued, k, asked[n]):
                            asked[kept] = asked[n]
                            kept += 1
                    asked[kept] = k
                    size = kept + 1
        if size:
            kept = 0
            for n in range(count):
                k = active[n]
                for m in range(size):
                    if _covers(f, issued, asked[m], k):
                        pending[k] = False
                        break
                else:
                    active[kept] = k
                    kept += 1
            count = kept
            if record:
                for m in range(size):
                    a = asked[m]
                    w.needed[a] = True
                    for n in range(count):
                        longer = f.latency[active[n]] - (now - issued[active[n]]) - passed
                        if longer > 0:
                            w.cost[a, active[n]] += f.weight[block] * longer
            now += passed
        v = f.number[c]
        if v >= 0:
            for k in (2 * v, 2 * v + 1):
                if not pending[k]:
                    pending[k] = True
                    active[count] = k
                    count += 1
                issued[k] = now
        now += max(1, w.stall[p])
    return now


@njit(cache=True, no_cfunc_wrapper=True)
def demand(f: ScoreboardProblem, order: np.ndarray, stall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which items are waited for, and what sharing a scoreboard costs: `cost[a, b]` is what waits for item a
    lose to b."""
    blocks, items = len(f.start), len(f.latency)
    needed, cost = np.zeros(items, dtype=np.bool_), np.zeros((items, items))
    entry = np.full((blocks, items), -1.0)  # cycles since issue, negative where not pending
    queued = np.ones(blocks, dtype=np.bool_)
    issued, pending = np.empty(items), np.empty(items, dtype=np.bool_)
    active, asked = np.empty(items, dtype=np.int32), np.empty(items, dtype=np.int32)
    w = _Walk(order, stall, issued, pending, needed, cost, active, asked)
    again = True
    rounds = 0
    while again and rounds < 4 * blocks + 8:
        again = False
        rounds += 1
        for b in range(blocks):
            if not queued[b]:
                continue
            queued[b] = False
            for k in range(items):
                pending[k], issued[k] = entry[b, k] >= 0, -entry[b, k]
            now = _run(f, w, b, _RUN)
            for e in range(f.follow_at[b], f.follow_at[b + 1]):
                m = f.follow[e]
                for k in range(items):
                    # ages are only estimates: a late change of some cycles is not worth another round
                    if pending[k] and (entry[m, k] < 0 or now - issued[k] + 32.0 < entry[m, k]):
                        entry[m, k] = now - issued[k]
                        queued[m] = True
                        again = True
    for b in range(blocks):
        for k in range(items):
            pending[k], issued[k] = entry[b, k] >= 0, -entry[b, k]
        _run(f, w, b, _RECORD)
    return needed, cost


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _total(color: np.ndarray, chosen: np.ndarray, cost: np.ndarray) -> float:
    total = 0.0
    for a in range(len(chosen)):
        for b in range(len(chosen)):
            if a != b and color[chosen[a]] == color[chosen[b]]:
                total += cost[chosen[a], chosen[b]]
    return total


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _improve(f: ScoreboardProblem, color: np.ndarray, chosen: np.ndarray, cost: np.ndarray) -> None:
    """Move single items to another scoreboard as long as that lowers the cost."""
    n = len(chosen)
    by = np.empty(6)
    for _ in range(8):
        changed = False
        for x in range(n):
            a = chosen[x]
            if f.keeps[a] >= 0:
                continue
            by[:] = 0.0
            for y in range(n):
                if x != y:
                    b = chosen[y]
                    by[color[b]] += cost[a, b] + cost[b, a]
            best = color[a]
            for s in range(6):
                if f.usable >> s & 1 and by[s] < by[best] - 1e-9:
                    best = s
            if best != color[a]:
                color[a] = best
                changed = True
        if not changed:
            return


@njit(cache=True, no_cfunc_wrapper=True)
def assign(f: ScoreboardProblem, needed: np.ndarray, cost: np.ndarray) -> tuple[np.ndarray, float]:
    """A scoreboard for every item that is waited for (-1 for the others): the better of two starts, and the
    compiler's own where they cost about the same."""
    keeps, hint, usable = f.keeps, f.hint, f.usable
    chosen = np.flatnonzero(needed | (keeps >= 0)).astype(np.int32)
    greedy = np.full(len(needed), -1, dtype=np.int32)
    own = np.full(len(needed), -1, dtype=np.int32)
    by = np.empty(6)
    users = np.zeros(6)
    for x in range(len(chosen)):
        a = chosen[x]
        by[:] = 0.0
        for y in range(x):
            b = chosen[y]
            by[greedy[b]] += cost[a, b] + cost[b, a]
        best = -1
        for s in range(6):
            if usable >> s & 1:
                by[s] += 1e-6 * users[s]
                if best < 0 or by[s] < by[best]:
                    best = s
        greedy[a] = keeps[a] if keeps[a] >= 0 else best
        users[greedy[a]] += 1
        if keeps[a] >= 0:
            own[a] = keeps[a]
        elif hint[a] >= 0 and usable >> hint[a] & 1:
            own[a] = hint[a]
        else:
            own[a] = greedy[a]
    _improve(f, greedy, chosen, cost)
    _improve(f, own, chosen, cost)
    first_cost, second_cost = _total(greedy, chosen, cost), _total(own, chosen, cost)
    if second_cost <= first_cost + _WORTH:
        return own, second_cost
    return greedy, first_cost
