"""One warp's path through a block, on symbols: what every register holds, and whether it is there in time.

Values are 64-bit hashes of (operation, operands' values): equal hashes are equal expressions. A guarded write
keeps both values, under the guard's. Memory operations are events: an event's hash holds those of all earlier
events that it must not pass, so that two orders have equal sums of hashes exactly if they order conflicting
accesses alike. A fence hashes everything before it, and everything behind it holds the fence.

Time is the sum of stall counts. A register is *there* when the producer's latency towards this operand has
passed, or when its scoreboard was waited for. Reading it before gives garbage, an expression that nothing
else gives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

#: kinds of operations
PURE, CROSS, MEMORY, FENCE, CONTROL = 0, 1, 2, 3, 4
#: entries of one register that a state keeps
DEPTH = 6
HORIZON = 64
CLEAR = 255
MOST_RAISED = 63


class Facts(NamedTuple):
    """What is fixed about a kernel's operations; see `model.Kernel`, which fills it."""

    hash: np.ndarray
    kind: np.ndarray
    never: np.ndarray
    guard: np.ndarray
    negated: np.ndarray
    read_at: np.ndarray
    read_reg: np.ndarray
    read_cc: np.ndarray
    read_flag: np.ndarray
    write_at: np.ndarray
    write_reg: np.ndarray
    write_pc: np.ndarray
    loads: np.ndarray
    stores: np.ndarray
    ordered: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    shape: np.ndarray
    cached: np.ndarray
    variable: np.ndarray
    number: np.ndarray
    name: np.ndarray
    least: np.ndarray
    counted: np.ndarray
    products: np.ndarray
    depbar: np.ndarray
    barrier: np.ndarray
    row: np.ndarray
    owner: np.ndarray
    has: np.ndarray
    results: np.ndarray
    operands: np.ndarray
    by_result: np.ndarray
    by_read: np.ndarray
    raw: np.ndarray
    waw: np.ndarray
    war: np.ndarray
    most_war: np.ndarray
    start: np.ndarray
    end: np.ndarray
    follow_at: np.ndarray
    follow: np.ndarray


class Learnt(NamedTuple):
    """What the unmodified kernel shows: written in mode 1, read in mode 0."""

    raw: np.ndarray
    waw: np.ndarray
    war: np.ndarray
    queue_write: np.ndarray
    queue_read: np.ndarray
    pending: np.ndarray
    raised: np.ndarray
    counts: np.ndarray
    near_raw: np.ndarray
    near_waw: np.ndarray
    near_war: np.ndarray


class State(NamedTuple):
    """What is in flight when a block begins; first axis: block. Times are before 0."""

    w_n: np.ndarray
    w_pc: np.ndarray
    w_t: np.ndarray
    w_rd: np.ndarray
    q_n: np.ndarray
    q_cc: np.ndarray
    q_t: np.ndarray
    q_rd: np.ndarray
    written: np.ndarray
    read: np.ndarray
    set_t: np.ndarray
    raised: np.ndarray
    product: np.ndarray
    source: np.ndarray
    barrier: np.ndarray
    seen: np.ndarray


class Values(NamedTuple):
    """What registers hold: under a guard's value `g`, `t` where it is true and `f` where it is not."""

    t: np.ndarray
    f: np.ndarray
    g: np.ndarray


@njit(cache=True)
def mix(a, b):
    """A hash of two 64-bit words, in order."""
    x = (np.uint64(a) ^ (np.uint64(b) + np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(32)
    return x + np.uint64(a) * np.uint64(0xD6E8FEB86659FD93)


@njit(cache=True)
def whole(v, r):
    """The value of a register for who is under no guard."""
    if v.t[r] == v.f[r]:
        return v.t[r]
    return mix(mix(v.g[r], v.t[r]), v.f[r])


@njit(cache=True)
def copy_state(to, i, of, j):
    """Copy one block's state."""
    to.w_n[i] = of.w_n[j]
    to.w_pc[i] = of.w_pc[j]
    to.w_t[i] = of.w_t[j]
    to.w_rd[i] = of.w_rd[j]
    to.q_n[i] = of.q_n[j]
    to.q_cc[i] = of.q_cc[j]
    to.q_t[i] = of.q_t[j]
    to.q_rd[i] = of.q_rd[j]
    to.written[i] = of.written[j]
    to.read[i] = of.read[j]
    to.set_t[i] = of.set_t[j]
    to.raised[i] = of.raised[j]
    to.product[i] = of.product[j]
    to.source[i] = of.source[j]
    to.barrier[i] = of.barrier[j]
    to.seen[i] = of.seen[j]


@njit(cache=True)
def _join_entries(n, key, t, rd, i, r, key2, t2, rd2):
    """Take one entry into a register's list; True if it says anything new."""
    for k in range(n[i, r]):
        if key[i, r, k] == key2:
            new = False
            if t2 > t[i, r, k]:
                t[i, r, k] = t2
                new = True
            if rd2 < rd[i, r, k]:
                rd[i, r, k] = rd2
                new = True
            return new
    if n[i, r] < DEPTH:
        k = n[i, r]
        n[i, r] += 1
    else:
        k = 0
        for m in range(1, DEPTH):
            if t[i, r, m] < t[i, r, k]:
                k = m
        if t[i, r, k] >= t2:
            return False
    key[i, r, k] = key2
    t[i, r, k] = t2
    rd[i, r, k] = rd2
    return True


@njit(cache=True)
def join(to, i, of, j):
    """Merge the state at one block's end (`of`, row j) into another's beginning; True if that changes it."""
    if to.seen[i] == 0:
        copy_state(to, i, of, j)
        to.seen[i] = 1
        return True
    changed = False
    for r in range(to.w_n.shape[1]):
        for k in range(of.w_n[j, r]):
            key, when, seen = of.w_pc[j, r, k], of.w_t[j, r, k], of.w_rd[j, r, k]
            if _join_entries(to.w_n, to.w_pc, to.w_t, to.w_rd, i, r, key, when, seen):
                changed = True
        for k in range(of.q_n[j, r]):
            key, when = of.q_cc[j, r, k], of.q_t[j, r, k]
            if _join_entries(to.q_n, to.q_cc, to.q_t, to.q_rd, i, r, key, when, np.uint8(1)):
                changed = True
        a, b = to.product[i, r], of.product[j, r]
        if b and (a == 0 or b < a):
            to.product[i, r] = b
            changed = True
        a, b = to.source[i, r], of.source[j, r]
        if b and (a == 0 or b < a):
            to.source[i, r] = b
            changed = True
    for v in range(to.written.shape[1]):
        x = to.written[i, v] & of.written[j, v]
        if x != to.written[i, v]:
            to.written[i, v] = x
            changed = True
        x = to.read[i, v] & of.read[j, v]
        if x != to.read[i, v]:
            to.read[i, v] = x
            changed = True
    for s in range(6):
        if of.set_t[j, s] > to.set_t[i, s]:
            to.set_t[i, s] = of.set_t[j, s]
            changed = True
        if of.raised[j, s] > to.raised[i, s]:
            to.raised[i, s] = of.raised[j, s]
            changed = True
    if of.barrier[j] > to.barrier[i]:
        to.barrier[i] = of.barrier[j]
        changed = True
    return changed


@njit(cache=True)
def _has(mask, v, r):
    return (mask[v, r >> 6] >> np.uint64(r & 63)) & np.uint64(1) != 0


@njit(cache=True)
def walk(F, L, order, high, b, S, z, V, token, mode, scratch_g, scratch_s, note):
    """Run block `b` of a candidate.

    Args:
        F, L: the kernel's facts, and what the original shows.
        order, high: operations and upper words by position.
        S, z: the state's arrays and the row in them that is run (it holds the beginning, then the end).
        V: the values on entry, then those at the end.
        token: what the block's fences and cross-lane operations are bound to on entry.
        mode: 0 judge, 1 learn from the original.
        scratch_g, scratch_s: by tracked operation: guard's value and sign under which it was issued.
        note: gets (position, kind, register or operation, other operation) of the first hazard.

    Returns: (the last fence, sum of events behind it, sum of hazards).
    """
    t = np.int32(0)
    hazard = np.uint64(0)
    events = np.uint64(0)
    fence = np.uint64(token)
    tracked = S.written.shape[1]
    active = np.empty(tracked + 1, np.int32)
    n_active = 0
    for v in range(tracked):
        scratch_g[v] = 0
        if S.written[z, v] != CLEAR or S.read[z, v] != CLEAR:
            active[n_active] = v
            n_active += 1
    size = F.end[b] - F.start[b]
    e_hash = np.empty(size, np.uint64)
    e_base = np.empty(size, np.uint64)
    e_op = np.empty(size, np.int32)
    n_events = 0
    registers = S.w_n.shape[1]
    w_g = np.zeros((registers, DEPTH), np.uint64)
    w_s = np.zeros((registers, DEPTH), np.uint8)
    cache_reg = np.full(3, -1, np.int32)
    cache_val = np.zeros(3, np.uint64)
    for p in range(F.start[b], F.end[b]):
        i = order[p]
        word = high[p]
        stall = np.int32((word >> np.uint64(41)) & np.uint64(15))
        wb = np.int64((word >> np.uint64(46)) & np.uint64(7))
        rb = np.int64((word >> np.uint64(49)) & np.uint64(7))
        wait = np.int64((word >> np.uint64(52)) & np.uint64(63))
        flags = np.int64((word >> np.uint64(58)) & np.uint64(7))
        if wait:
            done = np.uint8(0)
            for s in range(6):
                if wait >> s & 1:
                    if t - S.set_t[z, s] >= 2:
                        done |= np.uint8(1 << s)
                        S.raised[z, s] = 0
                    elif mode == 1:
                        L.counts[1] += 1
            kept = 0
            for k in range(n_active):
                v = active[k]
                if S.written[z, v] != CLEAR and S.written[z, v] & done:
                    S.written[z, v] = CLEAR
                if S.read[z, v] != CLEAR and S.read[z, v] & done:
                    S.read[z, v] = CLEAR
                if S.written[z, v] != CLEAR or S.read[z, v] != CLEAR:
                    active[kept] = v
                    kept += 1
            n_active = kept
        if stall < F.least[i]:
            hazard += mix(np.uint64(11), F.hash[i])
            if note[1] == 0:
                note[0], note[1], note[2], note[3] = p, 1, i, 0
        if F.never[i]:
            fence = mix(mix(F.hash[i], fence), events)
            events = np.uint64(0)
            n_events = 0
            t += max(np.int32(1), stall)
            continue
        gh = np.uint64(0)
        gs = np.uint8(1)
        if F.guard[i] >= 0:
            gh = whole(V, F.guard[i]) | np.uint64(1)
            gs = np.uint8(1 - F.negated[i])
        kind = F.kind[i]
        h = F.hash[i]
        base = F.shape[i]
        garbage = np.uint64(0)
        for k in range(F.read_at[i], F.read_at[i + 1]):
            r, cc = F.read_reg[k], F.read_cc[k]
            if gh and V.g[r] == gh:
                value = V.t[r] if gs else V.f[r]
            else:
                value = whole(V, r)
            bad = False
            for m in range(S.w_n[z, r]):
                if w_g[r, m] and w_g[r, m] == gh and w_s[r, m] != gs:
                    continue
                S.w_rd[z, r, m] = 1
                apart = t - S.w_t[z, r, m]
                pc = S.w_pc[z, r, m]
                if mode == 1:
                    if apart < L.raw[pc, cc]:
                        L.raw[pc, cc] = apart
                    if S.w_t[z, r, m] >= 0 and apart < L.near_raw[pc, cc]:
                        L.near_raw[pc, cc] = apart
                elif apart < F.raw[pc, cc]:
                    bad = True
                    if note[1] == 0:
                        note[0], note[1], note[2], note[3] = p, 2, pc, cc
            for a in range(n_active):
                v = active[a]
                if S.written[z, v] != CLEAR and _has(F.results, v, r):
                    if scratch_g[v] and scratch_g[v] == gh and scratch_s[v] != gs:
                        continue
                    if mode == 1:
                        L.counts[0] += 1
                        if note[1] == 0:
                            note[0], note[1], note[2], note[3] = p, 3, r, v
                    else:
                        bad = True
                        if note[1] == 0:
                            note[0], note[1], note[2], note[3] = p, 3, r, v
            if S.product[z, r] and F.products[i] == 0:
                bad = True
                if note[1] == 0:
                    note[0], note[1], note[2], note[3] = p, 4, r, 0
            if bad:
                value = mix(mix(np.uint64(0xBAD), F.hash[i]), np.uint64(r) + (value << np.uint64(1)))
                garbage = mix(garbage, value)
            if F.read_flag[k] & 1:
                base = mix(base, value)
            h = mix(h, value)
            if F.most_war[cc] > 1 and not F.variable[i]:
                _join_entries(S.q_n, S.q_cc, S.q_t, S.q_rd, z, r, np.int16(cc), t, np.uint8(1))
        for s in range(3):
            r = F.cached[i, s]
            if r >= 0:
                if cache_reg[s] == r and cache_val[s] != whole(V, r):
                    h = mix(h, cache_val[s])  # the operand collector still holds the old value
                    if note[1] == 0:
                        note[0], note[1], note[2], note[3] = p, 5, r, 0
                if flags >> s & 1:
                    cache_reg[s] = r
                    cache_val[s] = whole(V, r)
                else:
                    cache_reg[s] = -1
        if kind == CROSS:
            h = mix(h, fence)
        elif kind == MEMORY:
            if mode == 0 and t - S.barrier[z] < 6:
                hazard += mix(np.uint64(12), F.hash[i])
            held = np.uint64(0)
            for m in range(n_events):
                j = e_op[m]
                meet = F.ordered[i] or F.ordered[j]
                if not meet:
                    meet = (F.stores[i] & (F.loads[j] | F.stores[j])) != 0 or (F.loads[i] & F.stores[j]) != 0
                    if meet and F.size[i] > 0 and F.size[j] > 0 and e_base[m] == base:
                        apart_ = (
                            F.offset[i] + F.size[i] <= F.offset[j] or F.offset[j] + F.size[j] <= F.offset[i]
                        )
                        if apart_:
                            meet = False
                if meet:
                    held += e_hash[m]
            h = mix(mix(h, fence), held)
            if gh:
                h = mix(h, gh + np.uint64(gs))
            e_hash[n_events] = h
            e_base[n_events] = base
            e_op[n_events] = i
            n_events += 1
            events += h
        elif kind >= FENCE:
            if gh:
                h = mix(h, gh + np.uint64(gs))
            fence = mix(mix(h, fence), events)
            events = np.uint64(0)
            n_events = 0
            h = fence
            if kind == FENCE:
                row = F.row[i]
                for a in range(n_active):
                    v = active[a]
                    left = np.uint8(S.written[z, v] != CLEAR) | np.uint8(2 * (S.read[z, v] != CLEAR))
                    if mode == 1:
                        L.pending[row, v] |= left
                    elif left & ~L.pending[row, v]:
                        hazard += mix(np.uint64(13), np.uint64(v) + mix(np.uint64(row), np.uint64(left)))
                        if note[1] == 0:
                            note[0], note[1], note[2], note[3] = p, 6, row, v
            if F.barrier[i]:
                S.barrier[z] = t
            if F.depbar[i] >= 0:
                for r in range(registers):
                    if S.product[z, r] > F.depbar[i] + 1:
                        S.product[z, r] = 0
                    if S.source[z, r] > F.depbar[i] + 1:
                        S.source[z, r] = 0
        late = F.variable[i] or wb < 6
        if garbage:
            h = mix(h, garbage)
        for k in range(F.write_at[i], F.write_at[i + 1]):
            r, pc = F.write_reg[k], F.write_pc[k]
            value = mix(h, np.uint64(k - F.write_at[i]))
            bad = False
            for m in range(S.w_n[z, r]):
                if S.w_rd[z, r, m] or (w_g[r, m] and w_g[r, m] == gh and w_s[r, m] != gs):
                    continue
                apart = t - S.w_t[z, r, m]
                if mode == 1:
                    if apart < L.waw[S.w_pc[z, r, m], pc]:
                        L.waw[S.w_pc[z, r, m], pc] = apart
                    if S.w_t[z, r, m] >= 0 and apart < L.near_waw[S.w_pc[z, r, m], pc]:
                        L.near_waw[S.w_pc[z, r, m], pc] = apart
                elif apart < F.waw[S.w_pc[z, r, m], pc]:
                    bad = True
                    if note[1] == 0:
                        note[0], note[1], note[2], note[3] = p, 7, S.w_pc[z, r, m], pc
            for m in range(S.q_n[z, r]):
                apart = t - S.q_t[z, r, m]
                if mode == 1:
                    if apart < L.war[S.q_cc[z, r, m], pc]:
                        L.war[S.q_cc[z, r, m], pc] = apart
                    if S.q_t[z, r, m] >= 0 and apart < L.near_war[S.q_cc[z, r, m], pc]:
                        L.near_war[S.q_cc[z, r, m], pc] = apart
                elif apart < F.war[S.q_cc[z, r, m], pc]:
                    hazard += mix(np.uint64(14), value)
                    if note[1] == 0:
                        note[0], note[1], note[2], note[3] = p, 8, S.q_cc[z, r, m], pc
            for a in range(n_active):
                v = active[a]
                if scratch_g[v] and scratch_g[v] == gh and scratch_s[v] != gs:
                    continue
                if S.written[z, v] != CLEAR and _has(F.results, v, r):
                    if mode == 1:
                        if late:
                            L.queue_write[F.name[i], F.owner[v]] = 1
                        else:
                            L.counts[2] += 1
                            if note[1] == 0:
                                note[0], note[1], note[2], note[3] = p, 9, r, v
                    elif not (late and L.queue_write[F.name[i], F.owner[v]]):
                        bad = True
                        if note[1] == 0:
                            note[0], note[1], note[2], note[3] = p, 9, r, v
                if S.read[z, v] != CLEAR and _has(F.operands, v, r):
                    if mode == 1:
                        if late:
                            L.queue_read[F.name[i], F.owner[v]] = 1
                        else:
                            L.counts[3] += 1
                            if note[1] == 0:
                                note[0], note[1], note[2], note[3] = p, 10, r, v
                    elif not (late and L.queue_read[F.name[i], F.owner[v]]):
                        hazard += mix(np.uint64(15), mix(value, np.uint64(v)))
                        if note[1] == 0:
                            note[0], note[1], note[2], note[3] = p, 10, r, v
            if (S.product[z, r] or S.source[z, r]) and F.products[i] == 0:
                hazard += mix(np.uint64(16), value)
                if note[1] == 0:
                    note[0], note[1], note[2], note[3] = p, 4, r, 1
            if bad:
                value = mix(np.uint64(0xBAD2), value)
            if gh:
                if V.g[r] != gh:
                    old = whole(V, r)
                    V.t[r], V.f[r], V.g[r] = old, old, gh
                if gs:
                    V.t[r] = value
                else:
                    V.f[r] = value
            else:
                V.t[r], V.f[r], V.g[r] = value, value, np.uint64(0)
                S.w_n[z, r] = 0
                S.q_n[z, r] = 0
            if not late:
                n = S.w_n[z, r]
                spot = -1
                for m in range(n):
                    if t - S.w_t[z, r, m] > HORIZON:
                        spot = m
                if spot < 0 and n < DEPTH:
                    spot = n
                    S.w_n[z, r] = n + 1
                if spot < 0:
                    spot = 0
                    for m in range(1, n):
                        if S.w_t[z, r, m] < S.w_t[z, r, spot]:
                            spot = m
                S.w_pc[z, r, spot] = pc
                S.w_t[z, r, spot] = t
                S.w_rd[z, r, spot] = 0
                w_g[r, spot] = gh
                w_s[r, spot] = gs
        if F.products[i]:
            for k in range(F.write_at[i], F.write_at[i + 1]):
                S.product[z, F.write_reg[k]] = 1
                S.w_n[z, F.write_reg[k]] = 0
            for k in range(F.read_at[i], F.read_at[i + 1]):
                if F.read_flag[k] & 2:
                    S.source[z, F.read_reg[k]] = 1
            if F.products[i] == 2:
                for r in range(registers):
                    if 0 < S.product[z, r] < 200:
                        S.product[z, r] += 1
                    if 0 < S.source[z, r] < 200:
                        S.source[z, r] += 1
        sets = np.uint8(0)
        both = np.uint8(0)
        if wb < 6:
            sets = np.uint8(1 << wb)
            S.set_t[z, wb] = t if F.counted[i] & 2 else S.set_t[z, wb]
        if rb < 6:
            both = np.uint8(1 << rb)
            S.set_t[z, rb] = t if F.counted[i] & 2 else S.set_t[z, rb]
        both |= sets
        if F.counted[i] & 1:
            for s in range(6):
                if both >> s & 1:
                    S.raised[z, s] += 1
                    if mode == 1:
                        L.raised[s] = max(L.raised[s], S.raised[z, s])
                    elif S.raised[z, s] > max(MOST_RAISED, L.raised[s]):
                        hazard += mix(np.uint64(17), F.hash[i])
                        if note[1] == 0:
                            note[0], note[1], note[2], note[3] = p, 11, s, S.raised[z, s]
                    S.raised[z, s] = min(S.raised[z, s], 1000)
        u = F.number[i]
        if u >= 0:
            if both:
                for a in range(n_active):
                    v = active[a]
                    n = F.owner[v]
                    if S.written[z, v] != CLEAR and F.by_result[F.name[i], n]:
                        S.written[z, v] |= sets
                        if S.read[z, v] != CLEAR:
                            S.read[z, v] |= sets
                    if S.read[z, v] != CLEAR and F.by_read[F.name[i], n]:
                        S.read[z, v] |= both
            listed = False
            for a in range(n_active):
                if active[a] == u:
                    listed = True
            S.written[z, u] = sets if F.has[u] & 1 or wb < 6 else np.uint8(CLEAR)
            S.read[z, u] = both if F.has[u] & 2 or rb < 6 else np.uint8(CLEAR)
            if not listed and (S.written[z, u] != CLEAR or S.read[z, u] != CLEAR):
                active[n_active] = u
                n_active += 1
            scratch_g[u] = gh
            scratch_s[u] = gs
        t += max(np.int32(1), stall)
    for r in range(registers):
        kept = 0
        for m in range(S.w_n[z, r]):
            if t - S.w_t[z, r, m] <= HORIZON:
                S.w_pc[z, r, kept] = S.w_pc[z, r, m]
                S.w_rd[z, r, kept] = S.w_rd[z, r, m]
                S.w_t[z, r, kept] = S.w_t[z, r, m] - t
                kept += 1
        S.w_n[z, r] = kept
        kept = 0
        for m in range(S.q_n[z, r]):
            if t - S.q_t[z, r, m] <= HORIZON:
                S.q_cc[z, r, kept] = S.q_cc[z, r, m]
                S.q_t[z, r, kept] = S.q_t[z, r, m] - t
                kept += 1
        S.q_n[z, r] = kept
    for s in range(6):
        S.set_t[z, s] = max(np.int32(-1000), S.set_t[z, s] - t)
    S.barrier[z] = max(np.int32(-1000), S.barrier[z] - t)
    return fence, events, hazard


@njit(cache=True)
def held(v, live):
    """The values of some registers."""
    out = np.empty(len(live), np.uint64)
    for n in range(len(live)):
        out[n] = whole(v, live[n])
    return out


@njit(cache=True)
def adds(known, i, new, j):
    """Whether a state says anything that another does not (as `join` would find, changing nothing)."""
    for r in range(known.w_n.shape[1]):
        for which in range(2):
            for k in range(new.w_n[j, r] if which == 0 else new.q_n[j, r]):
                covered = False
                if which == 0:
                    for m in range(known.w_n[i, r]):
                        if known.w_pc[i, r, m] == new.w_pc[j, r, k]:
                            covered = new.w_t[j, r, k] <= known.w_t[i, r, m] and (
                                new.w_rd[j, r, k] >= known.w_rd[i, r, m]
                            )
                else:
                    for m in range(known.q_n[i, r]):
                        if known.q_cc[i, r, m] == new.q_cc[j, r, k]:
                            covered = new.q_t[j, r, k] <= known.q_t[i, r, m]
                if not covered:
                    return True
        for which in range(2):
            a = known.product[i, r] if which == 0 else known.source[i, r]
            b = new.product[j, r] if which == 0 else new.source[j, r]
            if b and (a == 0 or b < a):
                return True
    for v in range(known.written.shape[1]):
        if known.written[i, v] & ~new.written[j, v] or known.read[i, v] & ~new.read[j, v]:
            return True
    for s in range(6):
        if new.set_t[j, s] > known.set_t[i, s] or new.raised[j, s] > known.raised[i, s]:
            return True
    return new.barrier[j] > known.barrier[i]
