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

import numpy as np
from numba import njit

from .raises import MOST_RAISED, NOBODY, SEVERAL, raiser_of
from .state import CLEAR, CROSS, DEPTH, FENCE, HORIZON, MEMORY, contains, join_entries, mix, whole, within


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def first(note, p, kind, what, other):
    """Note a hazard where there is none yet."""
    if note[1] == 0:
        note[0], note[1], note[2], note[3] = p, kind, what, other


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def closer(table, near, one, two, apart, when):
    """Learn a distance between two slots; `near` is of those within a block, which began at 0."""
    if apart < table[one, two]:
        table[one, two] = apart
    if when >= 0 and apart < near[one, two]:
        near[one, two] = apart


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def aged(n, key, t, rd, z, r, now):
    """A register's list as the next block sees it: times before 0, without what is long over."""
    kept = 0
    for m in range(n[z, r]):
        if now - t[z, r, m] <= HORIZON:
            key[z, r, kept], rd[z, r, kept], t[z, r, kept] = key[z, r, m], rd[z, r, m], t[z, r, m] - now
            kept += 1
    n[z, r] = kept


@njit(cache=True, no_cfunc_wrapper=True)
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
                        S.raised[z, s], S.raiser[z, s] = 0, NOBODY
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
            first(note, p, 1, i, 0)
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
                    closer(L.raw, L.near_raw, pc, cc, apart, S.w_t[z, r, m])
                elif apart < F.raw[pc, cc]:
                    bad = True
                    first(note, p, 2, pc, cc)
            for a in range(n_active):
                v = active[a]
                if S.written[z, v] != CLEAR and contains(F.results, v, r):
                    if scratch_g[v] and scratch_g[v] == gh and scratch_s[v] != gs:
                        continue
                    first(note, p, 3, r, v)
                    if mode == 1:
                        L.counts[0] += 1
                    else:
                        bad = True
            if S.product[z, r] and F.products[i] == 0:
                bad = True
                first(note, p, 4, r, 0)
            if bad:
                value = mix(mix(np.uint64(0xBAD), F.hash[i]), np.uint64(r) + (value << np.uint64(1)))
                garbage = mix(garbage, value)
            if F.read_flag[k] & 1:
                base = mix(base, value)
            h = mix(h, value)
            if F.most_war[cc] > 1 and not F.variable[i]:
                join_entries(S.q_n, S.q_cc, S.q_t, S.q_rd, z, r, np.int16(cc), t, np.uint8(1))
        for s in range(3):
            r = F.cached[i, s]
            if r >= 0:
                if cache_reg[s] == r and cache_val[s] != whole(V, r):
                    h = mix(h, cache_val[s])  # the operand collector still holds the old value
                    first(note, p, 5, r, 0)
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
                        first_, last_ = (i, j) if F.offset[i] <= F.offset[j] else (j, i)
                        meet = F.offset[first_] + F.size[first_] > F.offset[last_]
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
                    left &= F.heeds[row, v]
                    if mode == 1:
                        L.pending[row, v] |= left
                    elif left & ~L.pending[row, v]:
                        hazard += mix(np.uint64(13), np.uint64(v) + mix(np.uint64(row), np.uint64(left)))
                        first(note, p, 6, row, v)
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
                apart, before = t - S.w_t[z, r, m], S.w_pc[z, r, m]
                if mode == 1:
                    closer(L.waw, L.near_waw, before, pc, apart, S.w_t[z, r, m])
                elif apart < F.waw[before, pc]:
                    bad = True
                    first(note, p, 7, before, pc)
            for m in range(S.q_n[z, r]):
                apart, before = t - S.q_t[z, r, m], S.q_cc[z, r, m]
                if mode == 1:
                    closer(L.war, L.near_war, before, pc, apart, S.q_t[z, r, m])
                elif apart < F.war[before, pc]:
                    hazard += mix(np.uint64(14), value)
                    first(note, p, 8, before, pc)
            for a in range(n_active):
                v = active[a]
                if scratch_g[v] and scratch_g[v] == gh and scratch_s[v] != gs:
                    continue
                if S.written[z, v] != CLEAR and contains(F.results, v, r):
                    if mode == 1:
                        if late:
                            L.queue_write[F.name[i], F.owner[v]] = 1
                        else:
                            L.counts[2] += 1
                            first(note, p, 9, r, v)
                    elif not (late and L.queue_write[F.name[i], F.owner[v]]):
                        bad = True
                        first(note, p, 9, r, v)
                if S.read[z, v] != CLEAR and contains(F.operands, v, r):
                    if mode == 1:
                        if late:
                            L.queue_read[F.name[i], F.owner[v]] = 1
                        else:
                            L.counts[3] += 1
                            first(note, p, 10, r, v)
                    elif not (late and L.queue_read[F.name[i], F.owner[v]]):
                        hazard += mix(np.uint64(15), mix(value, np.uint64(v)))
                        first(note, p, 10, r, v)
            if (S.product[z, r] or S.source[z, r]) and F.products[i] == 0:
                hazard += mix(np.uint64(16), value)
                first(note, p, 4, r, 1)
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
                kept = 0
                for m in range(S.w_n[z, r]):  # without what was written under this very guard before
                    if w_g[r, m] != gh or w_s[r, m] != gs:
                        S.w_pc[z, r, kept], S.w_t[z, r, kept] = S.w_pc[z, r, m], S.w_t[z, r, m]
                        S.w_rd[z, r, kept] = S.w_rd[z, r, m]
                        w_g[r, kept], w_s[r, kept] = w_g[r, m], w_s[r, m]
                        kept += 1
                S.w_n[z, r] = kept
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
        for s in range(6):
            if F.drains[i] >> s & 1:
                S.raised[z, s], S.raiser[z, s] = 0, NOBODY
        if F.counted[i] & 1:
            for which, s in ((0, wb), (1, rb)):
                if s < 6:
                    S.raiser[z, s] = raiser_of(S.raiser[z, s], S.raised[z, s], F.lone[i, which])
                    S.raised[z, s] += 1
                    if mode == 1:
                        L.raised[s] = max(L.raised[s], S.raised[z, s])
                    elif S.raiser[z, s] == SEVERAL and S.raised[z, s] > max(MOST_RAISED, L.raised[s]):
                        hazard += mix(np.uint64(17), F.hash[i])
                        first(note, p, 11, s, S.raised[z, s])
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
                    # what has overwritten all operands of an earlier one in its queue tells that it has read
                    behind = S.read[z, v] != CLEAR and not gh and L.queue_read[F.name[i], n]
                    if behind and within(F.operands, v, F.results, u):
                        S.read[z, v] |= sets
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
        aged(S.w_n, S.w_pc, S.w_t, S.w_rd, z, r, t)
        aged(S.q_n, S.q_cc, S.q_t, S.q_rd, z, r, t)
    for s in range(6):
        S.set_t[z, s] = max(np.int32(-1000), S.set_t[z, s] - t)
    S.barrier[z] = max(np.int32(-1000), S.barrier[z] - t)
    return fence, events, hazard
