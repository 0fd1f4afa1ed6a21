"""What the second model's machine works on: facts of a kernel, what it learnt, what is in flight, values."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit

from .raises import either

#: kinds of operations
PURE, CROSS, MEMORY, FENCE, CONTROL = 0, 1, 2, 3, 4
#: entries of one register that a state keeps
DEPTH = 6
HORIZON = 64
CLEAR = 255
#: what is fixed about a kernel's operations; see `model.Kernel`, which fills it
Facts = namedtuple(
    "Facts",
    "hash kind never guard negated read_at read_reg read_cc read_flag write_at write_reg write_pc "
    "loads stores ordered offset size shape cached variable number name least counted lone drains "
    "products depbar barrier row heeds owner has results operands by_result by_read raw waw war "
    "most_war start end follow_at follow",
)
#: what the unmodified kernel shows: written in mode 1, read in mode 0
Learnt = namedtuple(
    "Learnt", "raw waw war queue_write queue_read pending raised counts near_raw near_waw near_war"
)
#: what is in flight when a block begins; first axis: block. Times are before 0
State = namedtuple(
    "State",
    "w_n w_pc w_t w_rd q_n q_cc q_t q_rd written read set_t raised raiser product source barrier seen",
)
#: what registers hold: under a guard's value `g`, `t` where it is true and `f` where it is not
Values = namedtuple("Values", "t f g")


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def mix(a, b):
    """A hash of two 64-bit words, in order."""
    x = (np.uint64(a) ^ (np.uint64(b) + np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(32)
    return x + np.uint64(a) * np.uint64(0xD6E8FEB86659FD93)


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def whole(v, r):
    """The value of a register for who is under no guard."""
    if v.t[r] == v.f[r]:
        return v.t[r]
    return mix(mix(v.g[r], v.t[r]), v.f[r])


@njit(cache=True, no_cfunc_wrapper=True)
def copy_state(to, i, of, j):
    """Copy one block's state. Element by element: rows take numba seconds longer to compile."""
    for r in range(of.w_n.shape[1]):
        to.w_n[i, r], to.q_n[i, r] = of.w_n[j, r], of.q_n[j, r]
        to.product[i, r], to.source[i, r] = of.product[j, r], of.source[j, r]
        for k in range(DEPTH):
            to.w_pc[i, r, k], to.w_t[i, r, k] = of.w_pc[j, r, k], of.w_t[j, r, k]
            to.q_cc[i, r, k], to.q_t[i, r, k] = of.q_cc[j, r, k], of.q_t[j, r, k]
            to.w_rd[i, r, k], to.q_rd[i, r, k] = of.w_rd[j, r, k], of.q_rd[j, r, k]
    for v in range(of.written.shape[1]):
        to.written[i, v], to.read[i, v] = of.written[j, v], of.read[j, v]
    for s in range(6):
        to.set_t[i, s], to.raised[i, s], to.raiser[i, s] = of.set_t[j, s], of.raised[j, s], of.raiser[j, s]
    to.barrier[i] = of.barrier[j]
    to.seen[i] = of.seen[j]


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def join_entries(n, key, t, rd, i, r, key2, t2, rd2):
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


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def lower(to, i, of, j, write):
    """Take the lower numbers of two rows, where 0 is none; True if that says anything new."""
    new = False
    for r in range(to.shape[1]):
        a, b = to[i, r], of[j, r]
        if b and (a == 0 or b < a):
            new = True
            if write:
                to[i, r] = b
    return new


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def higher(to, i, of, j, write):
    """Take the higher numbers."""
    new = False
    for r in range(to.shape[1]):
        if of[j, r] > to[i, r]:
            new = True
            if write:
                to[i, r] = of[j, r]
    return new


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def shared(to, i, of, j, write):
    """Take the bits that both rows have."""
    new = False
    for v in range(to.shape[1]):
        x = to[i, v] & of[j, v]
        if x != to[i, v]:
            new = True
            if write:
                to[i, v] = x
    return new


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def rest(to, i, of, j, write):
    """Merge all but the lists of entries; True if that says anything new. Without `write` nothing changes."""
    new = lower(to.product, i, of.product, j, write)
    new |= lower(to.source, i, of.source, j, write)
    new |= shared(to.written, i, of.written, j, write)
    new |= shared(to.read, i, of.read, j, write)
    new |= higher(to.set_t, i, of.set_t, j, write)
    new |= higher(to.raised, i, of.raised, j, write)
    for s in range(6):
        who = either(to.raiser[i, s], of.raiser[j, s])
        if who != to.raiser[i, s]:
            new = True
            if write:
                to.raiser[i, s] = who
    if of.barrier[j] > to.barrier[i]:
        new = True
        if write:
            to.barrier[i] = of.barrier[j]
    return new


@njit(cache=True, no_cfunc_wrapper=True)
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
            if join_entries(to.w_n, to.w_pc, to.w_t, to.w_rd, i, r, key, when, seen):
                changed = True
        for k in range(of.q_n[j, r]):
            key, when = of.q_cc[j, r, k], of.q_t[j, r, k]
            if join_entries(to.q_n, to.q_cc, to.q_t, to.q_rd, i, r, key, when, np.uint8(1)):
                changed = True
    return rest(to, i, of, j, True) or changed


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def contains(mask, v, r):
    """Whether row `v` of a bit mask has register `r`."""
    return (mask[v, r >> 6] >> np.uint64(r & 63)) & np.uint64(1) != 0


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def within(mask, v, other, u):
    """Whether row `u` of a bit mask has every register of row `v` of another one, which has some."""
    some, left = np.uint64(0), np.uint64(0)
    for n in range(mask.shape[1]):
        some |= mask[v, n]
        left |= mask[v, n] & ~other[u, n]
    return some != 0 and left == 0


@njit(cache=True, no_cfunc_wrapper=True)
def held(v, live):
    """The values of some registers."""
    out = np.empty(len(live), np.uint64)
    for n in range(len(live)):
        out[n] = whole(v, live[n])
    return out


@njit(cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
def covered(n, key, t, rd, i, r, key2, t2, rd2):
    """Whether a register's list says of this entry at least as much."""
    found = False
    for k in range(n[i, r]):
        if key[i, r, k] == key2:
            found = t2 <= t[i, r, k] and rd2 >= rd[i, r, k]
    return found


@njit(cache=True, no_cfunc_wrapper=True)
def adds(known, i, new, j):
    """Whether a state says anything that another does not (as `join` would find, changing nothing)."""
    for r in range(known.w_n.shape[1]):
        for k in range(new.w_n[j, r]):
            key, when, seen = new.w_pc[j, r, k], new.w_t[j, r, k], new.w_rd[j, r, k]
            if not covered(known.w_n, known.w_pc, known.w_t, known.w_rd, i, r, key, when, seen):
                return True
        for k in range(new.q_n[j, r]):
            key, when, seen = new.q_cc[j, r, k], new.q_t[j, r, k], new.q_rd[j, r, k]
            if not covered(known.q_n, known.q_cc, known.q_t, known.q_rd, i, r, key, when, seen):
                return True
    return rest(known, i, new, j, False)
