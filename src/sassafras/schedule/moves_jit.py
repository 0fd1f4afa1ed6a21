"""The compiled part: legality, re-spacing and proposals, on the arrays of `tables.Tables`.

All of it is in this one file: numba's cache knows when the file of a compiled function changes, but not when
that of a function which it calls does. Where one function calls another, numbers are int64 and orders are
writable: numba compiles once for every combination of types (and for literals), and a first run waits for it.

Times are issue cycles. Every timing constraint is a lower bound on the time between two issues, so raising
a stall count never breaks one: after a change, stall counts near it are first lowered to their minimum and
then raised again, earliest issue first, exactly where a bound asks for it. Only the window of the change and
`HORIZON` cycles on either side are looked at: no bound reaches further.
"""

from __future__ import annotations

import numpy as np
from numba import int64, njit

from .state import REORDER, RESTALL, Working
from .tables import Tables

_HORIZON = 64
_NEVER = -(1 << 20)
MAX_STALL = 15


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def positions(order: np.ndarray) -> np.ndarray:
    """Where each instruction stands."""
    where = np.empty(len(order), dtype=np.int32)
    for p in range(len(order)):
        where[order[p]] = p
    return where


@njit(cache=True, no_cfunc_wrapper=True)
def working(order: np.ndarray, stall: np.ndarray) -> Working:
    """A copy of a schedule to work on."""
    new = order.copy()
    return Working(new, stall.copy(), positions(new), np.empty(len(new) + 1, dtype=np.int64))


@njit(cache=True, no_cfunc_wrapper=True)
def reach(t: Tables, w: Working, p: int) -> tuple[int, int]:
    """First and last position that the instruction at `p` may take as far as order goes."""
    x, where = w.order[p], w.where
    lo = t.low[p]
    hi = t.high[p] - 1
    for k in range(t.order_at[x], t.order_at[x + 1]):
        lo = max(lo, where[t.order_before[k]] + 1)
    for k in range(t.after_at[x], t.after_at[x + 1]):
        hi = min(hi, where[t.after[k]] - 1)
    return lo, hi


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _rotate(w: Working, i: int, j: int) -> None:
    order, stall, where = w.order, w.stall, w.where
    x, s = order[i], stall[i]
    step = 1 if j > i else -1
    p = i
    while p != j:
        order[p] = order[p + step]
        stall[p] = stall[p + step]
        where[order[p]] = p
        p += step
    order[j] = x
    stall[j] = s
    where[x] = j


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _lower(t: Tables, w: Working, p: int) -> None:
    order, stall = w.order, w.stall
    least = t.own[order[p]]
    shared = p + 1 < t.end[t.block_of[p]] and t.busy[order[p]] & t.uses[order[p + 1]] != 0
    if least >= 1 and shared:
        stall[p] = max(least, t.holds[order[p]])  # sooner they meet in their pipe
    elif stall[p] > least:
        stall[p] = least


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _raise(t: Tables, w: Working, p: int, first: int, need: int) -> int:
    """Make position `p` issue at `need` or later by raising stalls in [first, p). Returns the earliest
    position whose stall changed, or -1 where they cannot be raised enough."""
    missing = need - w.time[p]
    q = p - 1
    while q >= first and missing > 0:
        if t.frozen[w.order[q]] == 0 and w.stall[q] < MAX_STALL:
            add = min(MAX_STALL - w.stall[q], missing)
            w.stall[q] += add
            missing -= add
        q -= 1
    return q + 1 if missing <= 0 else -1


@njit(cache=True, no_cfunc_wrapper=True)
def settle(t: Tables, w: Working, lo: int, hi: int) -> bool:
    """Raise stall counts until every bound holds that a change in positions lo..hi may have broken.

    Args:
        t: the function's tables.
        w: the schedule, changed in place (stall counts only).
        lo, hi: first and last position, of one block, whose instruction or stall changed.

    Returns:
        False where no stall counts can satisfy all bounds (the schedule is then garbage).
    """
    order, stall, where, time = w.order, w.stall, w.where, w.time
    b = t.block_of[lo]
    s, e = int64(t.start[b]), int64(t.end[b])
    p0 = lo
    before = 0
    while p0 > s and before < _HORIZON:
        p0 -= 1
        before += max(1, stall[p0])
    kinds = len(t.spacing)
    last = np.empty(kinds, dtype=np.int64)
    last_at = np.empty(kinds, dtype=np.int64)
    for _ in range(64):
        again = False
        anchored = p0 == s
        for c in range(kinds):
            last[c] = -t.entry_gap[b, c] if anchored else _NEVER
            last_at[c] = s
        time[p0] = 0
        p = p0
        while p < e:
            x = order[p]
            if p > p0:
                y = order[p - 1]
                time[p] = time[p - 1] + max(1, stall[p - 1])
                # (a frozen stall of the original is right as it is: USETMAXREG has 0)
                original = x == y + 1 and t.frozen[y] != 0
                if time[p] < time[p - 1] + 2 and t.sets[y] & t.waits[x] and not original:
                    first = _raise(t, w, p, p - 1, time[p - 1] + 2)
                    if first < 0:
                        return False
                    time[p] = time[p - 1] + max(1, stall[p - 1])
            need = time[p]
            binding = p - 1
            for k in range(t.near_at[x], t.near_at[x + 1]):
                q = where[t.near[k]]
                if q >= p0:
                    at = time[q] + t.near_cycles[k]
                    if at > need:
                        need = at
                        binding = q
            if anchored and t.head[x] > need:
                need = t.head[x]
                binding = s
            c = t.kind[x]
            if c >= 0:
                for k in range(t.before_at[c], t.before_at[c + 1]):
                    d = t.before[k]
                    gap = t.spacing[d, c]
                    if last[d] + gap > need:
                        need = last[d] + gap
                        binding = last_at[d]
            if need > time[p]:
                if p == p0:
                    # before p0 nothing can be raised within the block, or nothing changed
                    if anchored:
                        return False
                else:
                    first = _raise(t, w, p, binding, need)
                    if first < 0:
                        return False
                    if first < p - 1:
                        again = True
                        break
                    time[p] = time[p - 1] + max(1, stall[p - 1])
            if c >= 0:
                last[c] = time[p]
                last_at[c] = p
            p += 1
            if p < e and p > hi + 1 and time[p - 1] - time[hi + 1] > _HORIZON:
                return True
        if again:
            continue
        # the end of the block was reached
        end = time[e - 1] + max(1, stall[e - 1])
        need = end
        binding = e - 1
        q = e - 1
        while q >= p0 and end - time[q] < _HORIZON:
            at = time[q] + t.tail[order[q]]
            if at > need:
                need = at
                binding = q
            q -= 1
        for c in range(kinds):
            if last_at[c] >= p0 and last[c] + t.exit_gap[b, c] > need:
                need = last[c] + t.exit_gap[b, c]
                binding = last_at[c]
        if anchored and t.least_length[b] > need:
            need = t.least_length[b]
            binding = s
        if t.sets[order[e - 1]] and order[e - 1] != e - 1 and time[e - 1] + 2 > need:
            need = time[e - 1] + 2
            binding = e - 1
        if need <= end:
            return True
        time[e] = end
        first = _raise(t, w, e, binding, need)
        if first < 0:
            return False
    return False


@njit(cache=True, no_cfunc_wrapper=True)
def settle_all(t: Tables, w: Working) -> int:
    """Raise stall counts until every bound holds. Returns the start of the first block for which no stall
    counts will do, or -1."""
    for b in range(len(t.start)):
        if not settle(t, w, int64(t.start[b]), int64(t.end[b] - 1)):
            return int64(t.start[b])
    return int64(-1)


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _restore(w: Working, order: np.ndarray, stall: np.ndarray, where: np.ndarray) -> None:
    for p in range(len(order)):
        w.order[p], w.stall[p], w.where[p] = order[p], stall[p], where[p]


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def perform(t: Tables, w: Working, kind: int, i: int, j: int) -> bool:
    """Carry out a move in place. Returns False, with the schedule garbage, where it is not legal.

    REORDER takes the instruction at position i to position j; RESTALL gives position i the stall count j.
    """
    order, stall, where = w.order, w.stall, w.where
    n = len(order)
    if i < 0 or i >= n or t.movable[order[i]] == 0:
        return False
    b = t.block_of[i]
    if kind == RESTALL:
        if j < t.own[order[i]] or j > MAX_STALL or t.frozen[order[i]] != 0:
            return False
        stall[i] = j
        return settle(t, w, i, i)
    if j < 0 or j >= n or i == j:
        return False
    first, last = reach(t, w, i)
    if j < first or j > last:
        return False
    x = order[i]
    _rotate(w, i, j)
    lo = min(i, j)
    hi = max(i, j)
    s = t.start[b]
    if lo > s:
        lo -= 1
    # stall counts fall around the gap that it left, around its new place, and before those that waited for it
    _lower(t, w, j)
    if j > s:
        _lower(t, w, j - 1)
    left = i if j > i else i + 1
    if left - 1 >= s:
        _lower(t, w, left - 1)
    for k in range(t.later_at[x], t.later_at[x + 1]):
        q = where[t.later[k]] - 1
        if q >= s and t.block_of[q] == b:
            _lower(t, w, q)
            lo, hi = min(lo, q), max(hi, q)
    return settle(t, w, lo, hi)


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _next(state: np.ndarray) -> np.uint64:
    """splitmix64 (Steele, Lea and Flood 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _below(state: np.ndarray, n: int) -> int:
    return int((_next(state) >> np.uint64(33)) % np.uint64(n))


@njit(cache=True, no_cfunc_wrapper=True)
def propose(
    t: Tables,
    order: np.ndarray,
    stall: np.ndarray,
    everything: np.ndarray,
    memory: np.ndarray,
    weights: np.ndarray,
    seed: int,
    attempts: int,
) -> tuple[int, int, int, np.ndarray, np.ndarray]:
    """Draw moves until one is legal and changes something.

    Args:
        t: the function's tables.
        order, stall: the schedule; not changed.
        everything, memory: movable instructions, and the memory operations among them.
        weights: chances in 1/65536: one memory instruction by one; any instruction by one; any
            instruction to any legal place; a stall count. They add up to 65536.
        seed: seed of this draw.
        attempts: how many draws.

    Returns:
        (kind, i, j, order, stall) of the new schedule; kind is -1 where none was found.
    """
    state = np.empty(1, dtype=np.uint64)
    state[0] = np.uint64(seed)
    w = working(order, stall)
    where = w.where.copy()
    for _ in range(attempts):
        draw = _below(state, int64(65536))
        kind, j = REORDER, 0
        chosen = memory if draw < weights[0] else everything
        if len(chosen) == 0:
            continue
        i = int64(where[chosen[_below(state, len(chosen))]])
        if draw < weights[0] + weights[1]:
            j = i + 2 * _below(state, int64(2)) - 1
        elif draw < weights[0] + weights[1] + weights[2]:
            lo, hi = reach(t, w, i)
            if hi <= lo:
                continue
            j = lo + _below(state, hi - lo)
            if j >= i:
                j += 1
        else:
            kind = RESTALL
            least = t.own[order[i]]
            # mostly as tight as can be, else one or two cycles more than now
            tight = _below(state, int64(4)) < 3
            j = least if tight else min(MAX_STALL, stall[i] + 1 + _below(state, int64(2)))
        if perform(t, w, kind, i, j) and (kind == REORDER or (w.stall != stall).any()):
            return kind, i, j, w.order, w.stall
        _restore(w, order, stall, where)
    return -1, 0, 0, w.order, w.stall


@njit(cache=True, no_cfunc_wrapper=True)
def carry_out(
    t: Tables, order: np.ndarray, stall: np.ndarray, kind: int, i: int, j: int
) -> tuple[bool, np.ndarray, np.ndarray]:
    """A move applied to a copy."""
    w = working(order, stall)
    return perform(t, w, kind, i, j), w.order, w.stall


@njit(cache=True, no_cfunc_wrapper=True)
def enumerate_moves(
    t: Tables, order: np.ndarray, stall: np.ndarray, chosen: np.ndarray, neighbours: bool
) -> np.ndarray:
    """Legal reorderings of the chosen instructions, by one position or to any: bool (chosen, positions)."""
    w = working(order, stall)
    where = w.where.copy()
    legal = np.zeros((len(chosen), len(order)), dtype=np.bool_)
    for k in range(len(chosen)):
        i = int64(where[chosen[k]])
        lo, hi = reach(t, w, i)
        if neighbours:
            lo, hi = max(lo, i - 1), min(hi, i + 1)
        for j in range(lo, hi + 1):
            if j != i:
                legal[k, j] = perform(t, w, int64(REORDER), i, j)
                _restore(w, order, stall, where)
    return legal


@njit(cache=True, no_cfunc_wrapper=True)
def goals(t: Tables, w: Working, p: int, steps: np.ndarray) -> np.ndarray:
    """Where each action would take the instruction at `p`; -1 where order or stall field forbid it.

    A step d > 0 or < 0 is so many places down or up, 64 and -64 the furthest place; 100 is the smallest
    stall count, 101 one cycle more (the result is then a stall count).
    """
    out = np.full(len(steps), -1, dtype=np.int32)
    x, stall = w.order[p], w.stall
    if t.movable[x] == 0:
        return out
    lo, hi = reach(t, w, p)
    for v in range(len(steps)):
        d = steps[v]
        if d == 100:
            if t.frozen[x] == 0 and stall[p] > t.own[x]:
                out[v] = t.own[x]
        elif d == 101:
            if t.frozen[x] == 0 and stall[p] < MAX_STALL:
                out[v] = stall[p] + 1
        elif d == 64 or d == -64:
            j = hi if d > 0 else lo
            if abs(j - p) > 1:  # else it is the same as a single step
                out[v] = j
        elif lo <= p + d <= hi:
            out[v] = p + d
    return out


@njit(cache=True, no_cfunc_wrapper=True)
def legal_actions(
    t: Tables,
    order: np.ndarray,
    stall: np.ndarray,
    chosen: np.ndarray,
    steps: np.ndarray,
    sure: bool,
) -> np.ndarray:
    """Which actions (`goals`) the chosen instructions may do: bool (positions, actions).

    Reorderings are tried only where `sure`; otherwise a legal order counts, for which in a few of a hundred
    cases no stall counts exist. Lowered stall counts are always tried: most rise again at once.
    """
    legal = np.zeros((len(order), len(steps)), dtype=np.bool_)
    w = working(order, stall)
    where = w.where.copy()
    for k in range(len(chosen)):
        p = int64(where[chosen[k]])
        aims = goals(t, w, p, steps)
        s, e = t.start[t.block_of[p]], t.end[t.block_of[p]]
        for v in range(len(steps)):
            if aims[v] < 0:
                continue
            if steps[v] == 101 or (steps[v] != 100 and not sure):
                legal[p, v] = True  # (more cycles break no bound)
                continue
            kind = RESTALL if steps[v] == 100 else REORDER
            ok = perform(t, w, kind, p, int64(aims[v]))
            if ok and kind == RESTALL:
                ok = w.stall[p] != stall[p]
            legal[p, v] = ok
            # only this block was touched
            for q in range(s, e):
                w.order[q], w.stall[q] = order[q], stall[q]
                w.where[order[q]] = q
    return legal
