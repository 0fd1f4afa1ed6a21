"""What the second model's machine works on: facts of a kernel, what it learnt, what is in flight, values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .raises import either

#: kinds of operations
PURE, CROSS, MEMORY, FENCE, CONTROL = 0, 1, 2, 3, 4
#: entries of one register that a state keeps
DEPTH = 6
HORIZON = 64
CLEAR = 255


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
    lone: np.ndarray
    drains: np.ndarray
    products: np.ndarray
    depbar: np.ndarray
    barrier: np.ndarray
    row: np.ndarray
    heeds: np.ndarray
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
    raiser: np.ndarray
    product: np.ndarray
    source: np.ndarray
    barrier: np.ndarray
    seen: np.ndarray


class Values(NamedTuple):
    """What registers hold: under a guard's value `g`, `t` where it is true and `f` where it is not."""

    t: np.ndarray
    f: np.ndarray
    g: np.ndarray


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
            to.w_pc[i, r, k], to.w_t[i, r, k], to.w_rd[i, r, k] = (
                of.w_pc[j, r, k],
                of.w_t[j, r, k],
                of.w_rd[j, r, k],
            )
            to.q_cc[i, r, k], to.q_t[i, r, k], to.q_rd[i, r, k] = (
                of.q_cc[j, r, k],
                of.q_t[j, r, k],
                of.q_rd[j, r, k],
            )
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
        who = either(to.raiser[i, s], of.raiser[j, s])
        if who != to.raiser[i, s]:
            to.raiser[i, s] = who
            changed = True
    if of.barrier[j] > to.barrier[i]:
        to.barrier[i] = of.barrier[j]
        changed = True
    return changed


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


@njit(cache=True, no_cfunc_wrapper=True)
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
        if either(known.raiser[i, s], new.raiser[j, s]) != known.raiser[i, s]:
            return True
    return new.barrier[j] > known.barrier[i]
