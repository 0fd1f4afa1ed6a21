"""Compiled inner loops: pending scoreboards over the control-flow graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit

from .flow import Flow

#: a scoreboard state of "not pending"; otherwise the bits of scoreboards whose zero proves completion
CLEAR = np.uint8(255)
#: codes from here on name what is pending at a fence
AT_FENCE = 1 << 28
#: a scoreboard counts to 63 in 6 bits; see `classes.families` for what may raise it more often
MOST_RAISED = 63
#: cycles from a scoreboard's setter to its waiter
SETTER_TO_WAITER = 2


class Tracked(NamedTuple):
    """The original's instructions of variable latency, and what must not be pending where.

    Attributes:
        number: by instruction, its tracked number or -1.
        covers: by tracked number, its number among the operations that complete behind earlier ones, or -1.
        results_by, reads_by: by tracked number, bit masks of the operations that say that its results are
            there, that its operands are read.
        watched: by tracked number, whether anything depends on its results (1) and on its reads (2).
        counted: by instruction: its setting counts towards `MOST_RAISED` (1) and keeps a distance of
            `SETTER_TO_WAITER` to the waiter (2); from bit 2 on, the scoreboards that it waits for without a
            wait mask: they count from 0 again.
        families: (instructions, 2), of its results and of its reads: kinds of which any number may raise a
            scoreboard if nothing else does; 0 for none.
        check_at, check: CSR by instruction of 2 * tracked + rule (0 results, 1 reads) that must be done.
        fence: by instruction, its row of `allowed` or -1.
        allowed: (rows, tracked), what may be pending at fences: results (1), reads (2).
    """

    number: np.ndarray
    covers: np.ndarray
    results_by: np.ndarray
    reads_by: np.ndarray
    watched: np.ndarray
    counted: np.ndarray
    families: np.ndarray
    check_at: np.ndarray
    check: np.ndarray
    fence: np.ndarray
    allowed: np.ndarray


class Schedule(NamedTuple):
    """A candidate, by position: original indices, issue cycles within the block, wait masks, scoreboards set
    (7: none); and the cycles of each block."""

    order: np.ndarray
    times: np.ndarray
    wait: np.ndarray
    write: np.ndarray
    read: np.ndarray
    lengths: np.ndarray


class Pending(NamedTuple):
    """What is pending at one place.

    Attributes:
        written, read: by tracked number, `CLEAR` or the scoreboards that tell when it is done.
        age: cycles since each scoreboard's last setter.
        raised: how often each scoreboard may have been raised since the last wait; then, of each, the only
            family that raised it, 0 for none, -1 for several.
    """

    written: np.ndarray
    read: np.ndarray
    age: np.ndarray
    raised: np.ndarray


@njit(cache=True, no_cfunc_wrapper=True)
def scan_block(
    flow: Flow,
    block: int,
    t: Tracked,
    c: Schedule,
    state: Pending,
    pending: np.ndarray,
    mode: int,
    out: np.ndarray,
    found: int,
) -> int:
    """Run one block and update `state` in place; `pending` is scratch for tracked numbers.

    Mode 0 only propagates, 1 appends (position, code) rows to `out`, 2 records in `t.allowed` what is
    pending at fences.
    """
    written, read, age, raised = state.written, state.read, state.age, state.raised
    active = 0
    for v in range(len(written)):
        if written[v] != CLEAR or read[v] != CLEAR:
            pending[active] = v
            active += 1
    for position in range(flow.start[block], flow.end[block]):
        i = c.order[position]
        mask = c.wait[position]
        if mask:
            for s in range(6):
                if mask >> s & 1:
                    raised[s] = 0
                    raised[6 + s] = 0
                    if mode == 1 and c.times[position] + age[s] < SETTER_TO_WAITER and found < len(out):
                        out[found, 0] = position
                        out[found, 1] = -1 - s
                        found += 1
            kept = 0
            for k in range(active):
                v = pending[k]
                if written[v] != CLEAR and written[v] & mask:
                    written[v] = CLEAR
                if read[v] != CLEAR and read[v] & mask:
                    read[v] = CLEAR
                if written[v] != CLEAR or read[v] != CLEAR:
                    pending[kept] = v
                    kept += 1
            active = kept
        if mode == 1:
            for k in range(t.check_at[i], t.check_at[i + 1]):
                v, rule = t.check[k] >> 1, t.check[k] & 1
                if (read[v] if rule else written[v]) != CLEAR and found < len(out):
                    out[found, 0] = position
                    out[found, 1] = t.check[k]
                    found += 1
        row = t.fence[i]
        if row >= 0 and mode != 0:
            for k in range(active):
                v = pending[k]
                seen = np.uint8(0)
                if written[v] != CLEAR:
                    seen |= np.uint8(1)
                if read[v] != CLEAR:
                    seen |= np.uint8(2)
                if mode == 2:
                    t.allowed[row, v] |= seen
                elif seen & ~t.allowed[row, v] and found < len(out):
                    out[found, 0] = position
                    out[found, 1] = AT_FENCE + v
                    found += 1
        sets = np.uint8(0)
        reads = np.uint8(0)
        drained = t.counted[i] >> 2
        if drained:
            for s in range(6):
                if drained >> s & 1:
                    raised[s] = 0
                    raised[6 + s] = 0
        for which in range(2):
            s = c.write[position] if which == 0 else c.read[position]
            if s < 6:
                if which == 0:
                    sets = np.uint8(1 << s)
                else:
                    reads = np.uint8(1 << s)
                if t.counted[i] & 2:
                    age[s] = -c.times[position]
                if t.counted[i] & 1:
                    family = t.families[i, which]
                    if family == 0 or (raised[s] > 0 and raised[6 + s] != family):
                        family = -1
                    raised[6 + s] = family
                    raised[s] = min(MOST_RAISED + 1, raised[s] + 1)
                    if mode == 1 and raised[s] > MOST_RAISED and family < 0 and found < len(out):
                        out[found, 0] = position
                        out[found, 1] = -11 - s
                        found += 1
        u = t.number[i]
        if u < 0:
            continue
        if (sets or reads) and t.covers[u] >= 0:
            mine = np.uint64(1) << np.uint64(t.covers[u])
            for k in range(active):
                v = pending[k]
                # a setter whose guard is false keeps its place in the queue all the same: ptxas leans on
                # that for reads everywhere, and for results in its reciprocal's slow path
                if t.results_by[v] & mine and written[v] != CLEAR:
                    written[v] |= sets
                    if read[v] != CLEAR:
                        read[v] |= sets
                if t.reads_by[v] & mine and read[v] != CLEAR:
                    read[v] |= sets | reads
        if t.watched[u] == 0:
            continue
        if written[u] == CLEAR and read[u] == CLEAR:
            pending[active] = u
            active += 1
        if t.watched[u] & 1:
            written[u] = sets
        if t.watched[u] & 2:
            read[u] = sets | reads
    for s in range(6):
        age[s] = min(np.int32(1000), age[s] + c.lengths[block])
    return found


@njit(cache=True, no_cfunc_wrapper=True)
def scoreboards(flow: Flow, t: Tracked, c: Schedule, record: bool, out: np.ndarray) -> int:
    """Pending scoreboards as a forward data-flow problem; then every read and overwrite is checked.

    Returns the number of rows written to `out`: (position, 2 * tracked + rule) for something pending that is
    needed; (position, `AT_FENCE` + tracked) at a fence; (position, -1 - s) for a wait on scoreboard s less
    than `SETTER_TO_WAITER` cycles after its setter; (position, -11 - s) for one raised more than
    `MOST_RAISED` times, not by one family alone. With `record`, fills `t.allowed` instead.
    """
    blocks, tracked = len(flow.start), len(t.covers)
    written = np.full((blocks, tracked), CLEAR, np.uint8)
    read = np.full((blocks, tracked), CLEAR, np.uint8)
    age = np.full((blocks, 6), np.int32(1000), np.int32)
    raised = np.zeros((blocks, 12), np.int32)
    one, two = np.empty(tracked, np.uint8), np.empty(tracked, np.uint8)
    ages, counts = np.empty(6, np.int32), np.empty(12, np.int32)
    pending = np.empty(tracked + 1, np.int32)
    queued = np.ones(blocks, np.bool_)
    work = np.empty(blocks + 1, np.int32)
    size = blocks
    for b in range(blocks):
        work[b] = blocks - 1 - b  # a stack: block 0 first
    while size:
        size -= 1
        b = int64(work[size])
        queued[b] = False
        for v in range(tracked):
            one[v], two[v] = written[b, v], read[b, v]
        for s in range(6):
            ages[s], counts[s], counts[6 + s] = age[b, s], raised[b, s], raised[b, 6 + s]
        scan_block(flow, b, t, c, Pending(one, two, ages, counts), pending, int64(0), out, int64(0))
        for k in range(flow.follow_at[b], flow.follow_at[b + 1]):
            m = flow.follow[k]
            changed = False
            for v in range(tracked):
                joined = written[m, v] & one[v]
                if joined != written[m, v]:
                    written[m, v] = joined
                    changed = True
                joined = read[m, v] & two[v]
                if joined != read[m, v]:
                    read[m, v] = joined
                    changed = True
            for s in range(6):
                if ages[s] < age[m, s]:
                    age[m, s] = ages[s]
                    changed = True
                if counts[s] > raised[m, s]:
                    raised[m, s] = counts[s]
                    changed = True
                old, new = raised[m, 6 + s], counts[6 + s]
                if new != 0 and new != old and old != -1:
                    raised[m, 6 + s] = new if old == 0 else -1
                    changed = True
            if changed and not queued[m]:
                queued[m] = True
                work[size] = m
                size += 1
    found, mode = int64(0), int64(2 if record else 1)
    for b in range(blocks):
        state = Pending(written[b], read[b], age[b], raised[b])
        found = scan_block(flow, b, t, c, state, pending, mode, out, found)
    return found
