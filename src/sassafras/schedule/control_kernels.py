"""Compiled loops of `schedule.control`: conflicts, scoreboards, wait masks."""

from __future__ import annotations

import numpy as np
from numba import njit

from .control import Facts

NONE = 7
#: setters of one scoreboard that may be outstanding
_MOST = 60


@njit(cache=True)
def conflicts(
    late: np.ndarray, touches: np.ndarray, writes: np.ndarray, number: np.ndarray, tracked: np.ndarray,
    queued: np.ndarray, behind: np.ndarray, row: np.ndarray, done: np.ndarray, real: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
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
                    bigger[:count] = found
                    found = bigger
                found[count] = k
                count += 1
        at[c + 1] = count
    return at, found[:count].copy()


@njit(cache=True)
def _run(
    order: np.ndarray, stall: np.ndarray, begin: int, finish: int, weight: float,
    number: np.ndarray, latency: np.ndarray, at: np.ndarray, conflict: np.ndarray,
    issued: np.ndarray, pending: np.ndarray, record: bool,
    needed: np.ndarray, first: np.ndarray, cost: np.ndarray, active: np.ndarray,
) -> float:  # fmt: skip
    """One block with a scoreboard for everything; returns its expected cycles. `issued`: by item, the cycle
    of its issue (the block starts at 0)."""
    now = 0.0
    count = 0
    for k in range(len(pending)):
        if pending[k]:
            active[count] = k
            count += 1
    for p in range(begin, finish):
        c = order[p]
        passed = 0.0
        gone = False
        for e in range(at[c], at[c + 1]):
            k = conflict[e]
            if pending[k]:
                gone = True
                passed = max(passed, latency[k] - (now - issued[k]))
                if record:
                    needed[k] = True
                    first[k] = min(first[k], p)
        if gone:
            if record:
                for e in range(at[c], at[c + 1]):
                    if pending[conflict[e]]:
                        a = conflict[e]
                        for n in range(count):
                            k = active[n]
                            longer = latency[k] - (now - issued[k]) - passed
                            if longer > 0 and pending[k]:
                                cost[a, k] += weight * longer
            for e in range(at[c], at[c + 1]):
                k = conflict[e]
                if pending[k]:
                    pending[k] = False
                    if k & 1 == 0:
                        pending[k + 1] = False  # operands are read before the result is there
            kept = 0
            for n in range(count):
                if pending[active[n]]:
                    active[kept] = active[n]
                    kept += 1
            count = kept
            now += passed
        v = number[c]
        if v >= 0:
            for k in (2 * v, 2 * v + 1):
                if not pending[k]:
                    pending[k] = True
                    active[count] = k
                    count += 1
                issued[k] = now
        now += max(1, stall[p])
    return now


@njit(cache=True)
def demand(
    f: Facts, order: np.ndarray, stall: np.ndarray, needed: np.ndarray, first: np.ndarray, cost: np.ndarray
) -> None:
    """Fill in which items anybody waits for, where first, and what sharing a scoreboard costs: `cost[a, b]`
    is what waits for item a lose to b."""
    blocks, items = len(f.start), len(f.latency)
    start, end, weight, number, latency = f.start, f.end, f.weight, f.number, f.latency
    at, conflict = f.conflict_at, f.conflict
    entry = np.full((blocks, items), -1.0)  # cycles since issue, negative where not pending
    queued = np.ones(blocks, dtype=np.bool_)
    issued, pending = np.empty(items), np.empty(items, dtype=np.bool_)
    active = np.empty(items, dtype=np.int32)
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
                pending[k] = entry[b, k] >= 0
                issued[k] = -entry[b, k]
            now = _run(
                order, stall, start[b], end[b], weight[b], number, latency, at, conflict, issued, pending,
                False, needed, first, cost, active,
            )  # fmt: skip
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
            pending[k] = entry[b, k] >= 0
            issued[k] = -entry[b, k]
        _run(
            order, stall, start[b], end[b], weight[b], number, latency, at, conflict, issued, pending, True,
            needed, first, cost, active,
        )  # fmt: skip


@njit(cache=True)
def _total(color: np.ndarray, chosen: np.ndarray, cost: np.ndarray) -> float:
    total = 0.0
    for a in range(len(chosen)):
        for b in range(len(chosen)):
            if a != b and color[chosen[a]] == color[chosen[b]]:
                total += cost[chosen[a], chosen[b]]
    return total


@njit(cache=True)
def _improve(color: np.ndarray, chosen: np.ndarray, cost: np.ndarray, keeps: np.ndarray, usable: int) -> None:
    """Move single items to another scoreboard as long as that lowers the cost."""
    n = len(chosen)
    by = np.empty(6)
    for _ in range(8):
        changed = False
        for x in range(n):
            a = chosen[x]
            if keeps[a] >= 0:
                continue
            by[:] = 0.0
            for y in range(n):
                if x != y:
                    b = chosen[y]
                    by[color[b]] += cost[a, b] + cost[b, a]
            best = color[a]
            for s in range(6):
                if usable >> s & 1 and by[s] < by[best] - 1e-9:
                    best = s
            if best != color[a]:
                color[a] = best
                changed = True
        if not changed:
            return


@njit(cache=True)
def give_out(
    needed: np.ndarray, first: np.ndarray, cost: np.ndarray, keeps: np.ndarray, hint: np.ndarray, usable: int
) -> tuple[np.ndarray, float]:
    """A scoreboard for every item that is waited for (-1 for the others): the better of two starts."""
    items = len(needed)
    count = 0
    for k in range(items):
        if needed[k] or keeps[k] >= 0:
            count += 1
    chosen = np.empty(count, dtype=np.int32)
    count = 0
    for k in range(items):
        if needed[k] or keeps[k] >= 0:
            chosen[count] = k
            count += 1
    greedy = np.full(items, -1, dtype=np.int32)
    own = np.full(items, -1, dtype=np.int32)
    by = np.empty(6)
    users = np.zeros(6)
    for x in range(count):
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
    _improve(greedy, chosen, cost, keeps, usable)
    _improve(own, chosen, cost, keeps, usable)
    first_cost, second_cost = _total(greedy, chosen, cost), _total(own, chosen, cost)
    if second_cost <= first_cost:
        return own, second_cost
    return greedy, first_cost


@njit(cache=True)
def waits(f: Facts, order: np.ndarray, color: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Barriers set and wait masks by position, with these scoreboards."""
    n, blocks, items = len(order), len(f.start), len(f.latency)
    at, conflict, number, keeps, may_wait = f.conflict_at, f.conflict, f.number, f.keeps, f.may_wait
    where = np.empty(n, dtype=np.int32)
    for p in range(n):
        where[order[p]] = p
    write = np.full(n, NONE, dtype=np.uint8)
    read = np.full(n, NONE, dtype=np.uint8)
    wait = np.zeros(n, dtype=np.uint8)
    for p in range(n):
        v = f.number[order[p]]
        if v >= 0:
            if color[2 * v] >= 0:
                write[p] = color[2 * v]
            if color[2 * v + 1] >= 0:
                read[p] = color[2 * v + 1]
    # what clears an item: its own scoreboard, or for reads its result's
    clears = np.zeros(items, dtype=np.uint8)
    for v in range(items // 2):
        if color[2 * v] >= 0:
            clears[2 * v] = np.uint8(1 << color[2 * v])
        clears[2 * v + 1] = clears[2 * v]
        if color[2 * v + 1] >= 0:
            clears[2 * v + 1] |= np.uint8(1 << color[2 * v + 1])
    pending = np.zeros((blocks, items), dtype=np.bool_)
    raised = np.zeros((blocks, 6), dtype=np.int32)
    state = np.empty(items, dtype=np.bool_)
    active = np.empty(items, dtype=np.int32)
    count = np.empty(6, dtype=np.int32)
    queued = np.ones(blocks, dtype=np.bool_)
    again = True
    while again:
        again = False
        for b in range(blocks):
            if not queued[b]:
                continue
            queued[b] = False
            state[:] = pending[b]
            count[:] = raised[b]
            size = 0
            stopped = False
            for k in range(items):
                if state[k]:
                    active[size] = k
                    size += 1
            for p in range(f.start[b], f.end[b]):
                c = order[p]
                mask = wait[p]
                for e in range(at[c], at[c + 1]):
                    k = conflict[e]
                    if state[k] and not clears[k] & mask:
                        # its own scoreboard; the result's only where it has no other
                        if k & 1 and color[k] >= 0:
                            mask |= np.uint8(1 << color[k])
                        else:
                            mask |= clears[k]
                for w in (write[p], read[p]):
                    if w != NONE and count[w] >= _MOST and keeps[2 * number[c]] < 0:
                        mask |= np.uint8(1 << w)  # the counter would run over
                if mask and not may_wait[c] and mask != wait[p]:
                    # the place before it that can carry the wait; what is waited for has issued by then
                    q = p - 1
                    while q >= f.start[b] and not may_wait[order[q]]:
                        q -= 1
                    late = q < f.start[b]
                    for e in range(at[c], at[c + 1]):
                        k = conflict[e]
                        if state[k] and clears[k] & mask:
                            u = where[f.tracked[k >> 1]]
                            late = late or q <= u < p
                    if not late and (wait[q] | mask) != wait[q]:
                        wait[q] |= mask
                        queued[b] = True
                        again = True
                        stopped = True
                        break
                    if q < f.start[b]:
                        # it opens its block: whoever comes before it waits, at its end
                        moved = False
                        for m in range(blocks):
                            for e in range(f.follow_at[m], f.follow_at[m + 1]):
                                if f.follow[e] != b:
                                    continue
                                r = f.end[m] - 1
                                while r >= f.start[m] and not may_wait[order[r]]:
                                    r -= 1
                                if r >= f.start[m] and (wait[r] | mask) != wait[r]:
                                    wait[r] |= mask
                                    moved = True
                        if moved:
                            # what is pending on entry is found again, from all that come before
                            pending[b, :] = False
                            raised[b, :] = 0
                            queued[:] = True
                            again = True
                            stopped = True
                            break
                wait[p] = mask
                if mask:
                    kept = 0
                    for n_active in range(size):
                        k = active[n_active]
                        if clears[k] & mask:
                            state[k] = False
                        else:
                            active[kept] = k
                            kept += 1
                    size = kept
                    for s in range(6):
                        if mask >> s & 1:
                            count[s] = 0
                v = number[c]
                if v >= 0:
                    for k in (2 * v, 2 * v + 1):
                        # what nobody ever waits for need not be followed
                        if clears[k] and not state[k]:
                            state[k] = True
                            active[size] = k
                            size += 1
                    for w in (write[p], read[p]):
                        if w != NONE:
                            count[w] = min(_MOST + 1, count[w] + 1)
            if stopped:
                continue  # a wait was put further up: that is walked again first
            for e in range(f.follow_at[b], f.follow_at[b + 1]):
                m = f.follow[e]
                changed = False
                for k in range(items):
                    if state[k] and not pending[m, k]:
                        pending[m, k] = True
                        changed = True
                for s in range(6):
                    if count[s] > raised[m, s]:
                        raised[m, s] = count[s]
                        changed = True
                if changed:
                    queued[m] = True
                    again = True
    return write, read, wait


@njit(cache=True)
def apart(
    f: Facts, order: np.ndarray, stall: np.ndarray, write: np.ndarray, read: np.ndarray, wait: np.ndarray
) -> np.ndarray:
    """Raise stall counts so that no waiter issues less than two cycles behind a setter of its scoreboard."""
    for b in range(len(f.start)):
        for p in range(f.start[b], f.end[b]):
            if stall[p] != 1 or f.frozen[order[p]] != 0:
                continue
            sets = 0
            if write[p] != NONE:
                sets |= 1 << write[p]
            if read[p] != NONE:
                sets |= 1 << read[p]
            if not sets:
                continue
            if p + 1 < f.end[b]:
                if wait[p + 1] & sets:
                    stall[p] = 2
            else:
                for e in range(f.follow_at[b], f.follow_at[b + 1]):
                    if wait[f.start[f.follow[e]]] & sets:
                        stall[p] = 2
    return stall
