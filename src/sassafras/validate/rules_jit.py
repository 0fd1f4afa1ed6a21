"""Compiled inner loops: matching words, distances, and pending scoreboards over the control-flow graph."""

from __future__ import annotations

import numpy as np
from numba import int64, njit

#: a scoreboard state of "not pending"; otherwise the bits of scoreboards whose zero proves completion
CLEAR = np.uint8(255)
_FAR = np.int32(1 << 20)
#: codes from here on name what is pending at a fence
AT_FENCE = 1 << 28


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
def issue_times(
    stall: np.ndarray, start: np.ndarray, end: np.ndarray, times: np.ndarray, lengths: np.ndarray
) -> None:
    """Issue cycle by position within its block, and each block's cycles; a stall of 0 counts as 1."""
    for b in range(len(start)):
        now = np.int32(0)
        for p in range(start[b], end[b]):
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
def block_distances(
    lengths: np.ndarray, follow_at: np.ndarray, follow: np.ndarray, horizon: int
) -> np.ndarray:
    """Least cycles from the end of block a to the start of block b over all paths, up to `horizon`."""
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


@njit(cache=True)
def scan_block(
    begin: int,
    finish: int,
    order: np.ndarray,
    times: np.ndarray,
    wait: np.ndarray,
    write_barrier: np.ndarray,
    read_barrier: np.ndarray,
    number: np.ndarray,
    voice: np.ndarray,
    results_by: np.ndarray,
    reads_by: np.ndarray,
    watched: np.ndarray,
    counted: np.ndarray,
    families: np.ndarray,
    check_at: np.ndarray,
    check: np.ndarray,
    fence: np.ndarray,
    allowed: np.ndarray,
    length: int,
    minimum: int,
    most: int,
    written: np.ndarray,
    read: np.ndarray,
    age: np.ndarray,
    raised: np.ndarray,
    pending: np.ndarray,
    mode: int,
    out: np.ndarray,
    found: int,
) -> int:
    """Run one block: update the states `written` and `read` (by tracked instruction), the `age` of each
    scoreboard's last setter and how often it may have been `raised` since the last wait, in place.

    `watched` says whether anything depends on a tracked instruction's results (1) and on its reads (2).
    `counted`: its setting counts towards `most` (1) and keeps a distance of `minimum` to the waiter (2); from
    bit 2 on, the scoreboards that an instruction waits for without a wait mask: they count from 0 again.
    `families` (instructions, 2): of its results and of its reads, kinds of which any number may raise a
    scoreboard if nothing else does; 0 for none. `raised` holds the six counts and then, of each scoreboard,
    the only family that raised it, 0 for none, -1 for several.
    Mode 0 only propagates, 1 appends (position, code) rows to `out`, 2 records in `allowed` what is
    pending at fences (rows `fence` by instruction).
    """
    active = 0
    for v in range(len(written)):
        if written[v] != CLEAR or read[v] != CLEAR:
            pending[active] = v
            active += 1
    for position in range(begin, finish):
        i = order[position]
        mask = wait[position]
        if mask:
            for s in range(6):
                if mask >> s & 1:
                    raised[s] = 0
                    raised[6 + s] = 0
                    if mode == 1 and times[position] + age[s] < minimum and found < len(out):
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
            for k in range(check_at[i], check_at[i + 1]):
                v, rule = check[k] >> 1, check[k] & 1
                if (read[v] if rule else written[v]) != CLEAR and found < len(out):
                    out[found, 0] = position
                    out[found, 1] = check[k]
                    found += 1
        row = fence[i]
        if row >= 0 and mode != 0:
            for k in range(active):
                v = pending[k]
                state = np.uint8(0)
                if written[v] != CLEAR:
                    state |= np.uint8(1)
                if read[v] != CLEAR:
                    state |= np.uint8(2)
                if mode == 2:
                    allowed[row, v] |= state
                elif state & ~allowed[row, v] and found < len(out):
                    out[found, 0] = position
                    out[found, 1] = AT_FENCE + v
                    found += 1
        sets = np.uint8(0)
        reads = np.uint8(0)
        drained = counted[i] >> 2
        if drained:
            for s in range(6):
                if drained >> s & 1:
                    raised[s] = 0
                    raised[6 + s] = 0
        for which in range(2):
            s = write_barrier[position] if which == 0 else read_barrier[position]
            if s < 6:
                if which == 0:
                    sets = np.uint8(1 << s)
                else:
                    reads = np.uint8(1 << s)
                if counted[i] & 2:
                    age[s] = -times[position]
                if counted[i] & 1:
                    family = families[i, which]
                    if family == 0 or (raised[s] > 0 and raised[6 + s] != family):
                        family = -1
                    raised[6 + s] = family
                    raised[s] = min(most + 1, raised[s] + 1)
                    if mode == 1 and raised[s] > most and family < 0 and found < len(out):
                        out[found, 0] = position
                        out[found, 1] = -11 - s
                        found += 1
        u = number[i]
        if u < 0:
            continue
        if (sets or reads) and voice[u] >= 0:
            mine = np.uint64(1) << np.uint64(voice[u])
            for k in range(active):
                v = pending[k]
                # a setter whose guard is false keeps its place in the queue all the same: ptxas leans on
                # that for reads everywhere, and for results in its reciprocal's slow path
                if results_by[v] & mine and written[v] != CLEAR:
                    written[v] |= sets
                    if read[v] != CLEAR:
                        read[v] |= sets
                if reads_by[v] & mine and read[v] != CLEAR:
                    read[v] |= sets | reads
        if watched[u] == 0:
            continue
        if written[u] == CLEAR and read[u] == CLEAR:
            pending[active] = u
            active += 1
        if watched[u] & 1:
            written[u] = sets
        if watched[u] & 2:
            read[u] = sets | reads
    for s in range(6):
        age[s] = min(np.int32(1000), age[s] + length)
    return found


@njit(cache=True)
def scoreboards(
    start: np.ndarray,
    end: np.ndarray,
    follow_at: np.ndarray,
    follow: np.ndarray,
    order: np.ndarray,
    times: np.ndarray,
    lengths: np.ndarray,
    wait: np.ndarray,
    write_barrier: np.ndarray,
    read_barrier: np.ndarray,
    number: np.ndarray,
    voice: np.ndarray,
    results_by: np.ndarray,
    reads_by: np.ndarray,
    watched: np.ndarray,
    counted: np.ndarray,
    families: np.ndarray,
    check_at: np.ndarray,
    check: np.ndarray,
    fence: np.ndarray,
    allowed: np.ndarray,
    minimum: int,
    most: int,
    record: bool,
    out: np.ndarray,
) -> int:
    """Pending scoreboards as a forward data-flow problem; then every read and overwrite is checked.

    Returns the number of rows written to `out`: (position, 2 * tracked + rule) for something pending that is
    needed; (position, `AT_FENCE` + tracked) at a fence; (position, -1 - s) for a wait on scoreboard s less
    than `minimum` cycles after its setter; (position, -11 - s) for one raised more than `most` times, not by
    one family alone. With
    `record`, fills `allowed` instead.
    """
    blocks, tracked = len(start), len(voice)
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
        b = work[size]
        queued[b] = False
        one[:] = written[b]
        two[:] = read[b]
        ages[:] = age[b]
        counts[:] = raised[b]
        scan_block(
            start[b],
            end[b],
            order,
            times,
            wait,
            write_barrier,
            read_barrier,
            number,
            voice,
            results_by,
            reads_by,
            watched,
            counted,
            families,
            check_at,
            check,
            fence,
            allowed,
            lengths[b],
            minimum,
            most,
            one,
            two,
            ages,
            counts,
            pending,
            int64(0),
            out,
            int64(0),
        )
        for k in range(follow_at[b], follow_at[b + 1]):
            m = follow[k]
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
    found = int64(0)
    for b in range(blocks):
        found = scan_block(
            start[b],
            end[b],
            order,
            times,
            wait,
            write_barrier,
            read_barrier,
            number,
            voice,
            results_by,
            reads_by,
            watched,
            counted,
            families,
            check_at,
            check,
            fence,
            allowed,
            lengths[b],
            minimum,
            most,
            written[b],
            read[b],
            age[b],
            raised[b],
            pending,
            2 if record else 1,
            out,
            found,
        )
    return found
