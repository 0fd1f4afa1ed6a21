"""The simulation itself: one SM, cycle by cycle where something happens, compiled by numba.

Machine (see docs/concepts/timing-model.md): four sub-cores; warp w belongs to sub-core w mod 4; a sub-core
issues at most one instruction a cycle. A warp issues in order: its next instruction is ready when the stall
count of the previous one has passed, the scoreboards it waits for are released and groups have completed;
it is eligible when its pipe is free too. Because every queue is first come, first served, the completion
of an instruction is known when it issues, and time can jump to the next eligible instruction.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import records as rec

#: parameters of the machine, in the order of the array that `run` takes
PARAMETERS = (
    "mem_queue",
    "agu_interval",
    "lsu_interval",
    "branch_taken",
    "register_window",
    "hgmma_queue",
    "cta_turnaround",
)

#: why an instruction issued no earlier
REASONS = (
    *(f"scoreboard {n}" for n in range(6)),
    *("stall count", "copy group", "HGMMA group", "barrier", "pipe busy", "memory queue full"),
    *("register banks", "not selected", "start"),
)
STALL_COUNT, GROUP, _, BARRIER, PIPE_BUSY, QUEUE_FULL, BANKS, NOT_SELECTED, START = range(6, 15)

#: groups that a warp waits for: of copies, and of HGMMAs (`GROUP` + 1)
_COPIES, _TENSOR = 0, 1
_NEVER = np.int64(1) << 60
_RING = 32
_QUEUE = 16


@njit(cache=True, inline="always", no_cfunc_wrapper=True, no_cpython_wrapper=True)
def _eligible(  # type: ignore[no-untyped-def]
    w, s, ready, ahead, pipe_free, bank, queue_free, window, hgmma_queue
):
    """Earliest cycle at which warp w of sub-core s may issue, as things stand."""
    at = ready[w]
    pipe = ahead[w, 0]
    if pipe == rec.MEM:
        at = max(at, queue_free)
    elif pipe != rec.NONE:
        at = max(at, pipe_free[s, pipe])
        if ahead[w, 1] + ahead[w, 2] > 0:
            # operands are read within a window after issue, one register a bank and cycle
            at = max(at, bank[s, 0] + ahead[w, 1] - window, bank[s, 1] + ahead[w, 2] - window)
    elif ahead[w, 3] > 0:
        at = max(at, pipe_free[s, rec.TENSOR] - hgmma_queue * ahead[w, 3])
    return at


@njit(cache=True, no_cfunc_wrapper=True)
def run(steps, warps, starts, ctas, parameters, bandwidth, marks, traced, issue_at, reason):  # type: ignore[no-untyped-def]
    """Simulate `ctas` CTAs of `warps` warps on one SM.

    Args:
        steps: int32 (path, COLUMNS) rows along the path, control codes filled in.
        warps, ctas: see above.
        starts: int64 (slots * warps,): first cycle of each resident warp, CTA after CTA. A finished CTA is
            replaced while any are left; its successor's warps start as far apart as its own did.
        parameters: int64, see `PARAMETERS`.
        bandwidth: bytes a cycle that global memory gives this SM.
        marks: float64 (2, marks + 1), zeroed; row 0 collects issue cycles at each mark, row 1 their count,
            over the warps of the first CTAs.
        traced: warp whose issue cycles and reasons are written out, or -1.
        issue_at, reason: int64 and uint8 (path,) for `traced`.

    Returns:
        Cycle after the last EXIT issued, or -1 when warps wait for a barrier that never opens.
    """
    mem_queue, agu_interval, lsu_interval = parameters[0], parameters[1], parameters[2]
    branch_taken, window, hgmma_queue = parameters[3], parameters[4], parameters[5]
    count = len(steps)
    total = len(starts)
    slots = total // warps
    pc = np.zeros(total, np.int64)
    ready = np.zeros(total, np.int64)
    why = np.full(total, START, np.uint8)
    board = np.zeros((total, 6), np.int64)
    groups = np.zeros((total, 2, _RING), np.int64)
    group_count = np.zeros((total, 2), np.int64)
    copying = np.zeros(total, np.int64)
    phases = np.zeros((slots, _RING), np.int64)
    phase_count = np.zeros(slots, np.int64)
    waited = np.zeros(total, np.int64)
    arrived = np.zeros((slots, 16), np.int64)
    waiting = np.full(total, -1, np.int64)
    alive = np.full(slots, warps, np.int64)
    first = np.ones(slots, np.uint8)
    left = ctas - slots
    running = total
    pipe_free = np.zeros((4, rec.PIPES), np.int64)
    queue = np.zeros((4, _QUEUE), np.int64)
    queued = np.zeros(4, np.int64)
    agu = np.zeros(4, np.int64)
    bank = np.zeros((4, 2), np.int64)
    last = np.full(4, -1, np.int64)
    keep = np.zeros(4, np.bool_)
    next_at = np.full(4, _NEVER, np.int64)
    # of each warp's next instruction: its pipe, register reads by bank, and cycles if it is an rec.HGMMA
    ahead = np.zeros((total, 4), np.int64)
    ahead[:, 0] = steps[0, rec.PIPE]
    top = np.zeros(4, np.int64)
    lsu = np.int64(0)
    port = 0.0
    end = np.int64(0)
    for w in range(total):
        ready[w] = starts[w]
        next_at[w % 4] = min(next_at[w % 4], ready[w])
        top[w % 4] += 1

    while True:
        s = 0
        for other in range(1, 4):
            if next_at[other] < next_at[s]:
                s = other
        t = next_at[s]
        if t >= _NEVER:
            break
        queue_free = np.int64(0)
        if queued[s] >= mem_queue:
            queue_free = queue[s, (queued[s] - mem_queue) % _QUEUE]
        # choose: the warp that issued last if it was told to keep the slot, else the oldest other one (the
        # youngest, as Huerta et al. saw, makes the model more chaotic)
        previous = last[s]
        chosen = np.int64(-1)
        soonest = _NEVER
        if previous >= 0 and ready[previous] <= t:
            at = _eligible(previous, s, ready, ahead, pipe_free, bank, queue_free, window, hgmma_queue)
            if at <= t:
                chosen = previous
            else:
                soonest = at
        if chosen < 0 or not keep[s]:
            for n in range(top[s]):
                other = s + 4 * n
                at = ready[other]
                if other == previous:
                    if at > t and at < soonest:
                        soonest = at
                    continue
                if at <= t:
                    at = _eligible(other, s, ready, ahead, pipe_free, bank, queue_free, window, hgmma_queue)
                    if at <= t:
                        chosen = np.int64(other)
                        break
                soonest = min(soonest, at)
        if chosen < 0:
            next_at[s] = soonest
            continue
        next_at[s] = t + 1

        # issue
        w = int(chosen)
        last[s] = w
        slot = w // warps
        step = pc[w]
        keep[s] = steps[step, rec.KEEP] == 1
        kind, pipe, argument = steps[step, rec.KIND], steps[step, rec.PIPE], steps[step, rec.ARG]
        busy, latency = np.int64(steps[step, rec.BUSY]), np.int64(steps[step, rec.LATENCY])
        banks = steps[step, rec.BANK0] + steps[step, rec.BANK1]
        if w == traced and first[slot]:
            issue_at[step] = t
            cause = why[w]
            if t > ready[w]:
                cause = NOT_SELECTED
                if pipe == rec.MEM and queue_free == t:
                    cause = QUEUE_FULL
                elif pipe != rec.NONE and pipe_free[s, pipe] == t:
                    cause = PIPE_BUSY
                elif banks > 0 and (
                    bank[s, 0] + steps[step, rec.BANK0] - window == t
                    or bank[s, 1] + steps[step, rec.BANK1] - window == t
                ):
                    cause = BANKS
                elif kind == rec.HGMMA and pipe_free[s, rec.TENSOR] - hgmma_queue * busy == t:
                    cause = PIPE_BUSY
            reason[step] = cause
        if steps[step, rec.MARK] > 0 and first[slot]:
            marks[0, steps[step, rec.MARK]] += t
            marks[1, steps[step, rec.MARK]] += 1

        done = t
        read = t
        after = t + max(1, steps[step, rec.STALL])
        cause = STALL_COUNT
        if pipe == rec.MEM:
            start = max(t + 1, agu[s], lsu)
            agu[s] = start + agu_interval
            lsu = start + max(lsu_interval, np.int64(steps[step, rec.WAVES]))
            queue[s, queued[s] % _QUEUE] = start
            queued[s] += 1
            read = start + steps[step, rec.READ]
            done = start + latency
            if steps[step, rec.BYTES] > 0:
                port = max(float(start), port) + steps[step, rec.BYTES] / bandwidth
                done = np.int64(port) + latency
            if kind == rec.LDGSTS:
                copying[w] = max(copying[w], done)
                # the scoreboard of rec.LDGSTS guards its operands only
                done = read
            elif kind == rec.TMA:
                phases[slot, phase_count[slot] % _RING] = done
                phase_count[slot] += 1
        elif pipe != rec.NONE:
            pipe_free[s, pipe] = t + busy
            if banks > 0:
                bank[s, 0] = max(bank[s, 0], t) + steps[step, rec.BANK0]
                bank[s, 1] = max(bank[s, 1], t) + steps[step, rec.BANK1]
            read = t + steps[step, rec.READ]
            done = t + latency
        elif kind == rec.HGMMA:
            done = read = max(t + latency, pipe_free[s, rec.TENSOR]) + busy
            pipe_free[s, rec.TENSOR] = done
            if argument & rec.GROUP_BIT:
                groups[w, _TENSOR, group_count[w, _TENSOR] % _RING] = done
                group_count[w, _TENSOR] += 1
        elif kind == rec.VARIABLE:
            read = t + steps[step, rec.READ]
            done = t + latency
        elif kind == rec.BRANCH:
            if argument == 1:
                after += branch_taken
        elif kind == rec.GROUP_COMMIT:
            groups[w, _COPIES, group_count[w, _COPIES] % _RING] = copying[w]
            group_count[w, _COPIES] += 1
            done = t + latency
        elif kind == rec.PHASE_WAIT:
            done = t + latency
            if waited[w] < phase_count[slot]:
                done = max(done, phases[slot, waited[w] % _RING])
                waited[w] += 1

        if steps[step, rec.WRITE_BARRIER] < 6:
            board[w, steps[step, rec.WRITE_BARRIER]] = max(board[w, steps[step, rec.WRITE_BARRIER]], done)
        if steps[step, rec.READ_BARRIER] < 6:
            board[w, steps[step, rec.READ_BARRIER]] = max(board[w, steps[step, rec.READ_BARRIER]], read)

        # what the next instruction waits for
        if kind in (rec.GROUP_WAIT, rec.HGMMA_WAIT):
            of = _COPIES if kind == rec.GROUP_WAIT else _TENSOR
            pending = group_count[w, of] - argument
            if pending > 0 and groups[w, of, (pending - 1) % _RING] + latency > after:
                after = groups[w, of, (pending - 1) % _RING] + latency
                cause = GROUP + of
        elif kind in (rec.BAR_SYNC, rec.BAR_ARRIVE):
            which, need = argument >> 6, argument & 63
            if need == 0:
                need = warps
            arrived[slot, which] += 1
            if kind == rec.BAR_SYNC:
                waiting[w] = which
            if arrived[slot, which] >= need:
                arrived[slot, which] = 0
                for v in range(slot * warps, (slot + 1) * warps):
                    if waiting[v] == which:
                        waiting[v] = -1
                        if v != w:
                            if ready[v] >= _NEVER:
                                ready[v] = ready[v] - _NEVER
                            if t + latency > ready[v]:
                                ready[v] = t + latency
                                why[v] = BARRIER
                            next_at[v % 4] = min(next_at[v % 4], max(ready[v], t + 1))
                if t + latency > after and kind == rec.BAR_SYNC:
                    after = t + latency
                    cause = BARRIER

        pc[w] += 1
        if pc[w] >= count:
            # EXIT
            ready[w] = _NEVER
            end = max(end, after)
            alive[slot] -= 1
            running -= 1
            if alive[slot] == 0 and left > 0:
                left -= 1
                alive[slot] = warps
                running += warps
                first[slot] = 0
                phase_count[slot] = 0
                arrived[slot, :] = 0
                for v in range(slot * warps, (slot + 1) * warps):
                    pc[v] = 0
                    ready[v] = t + parameters[6] + starts[v] - starts[slot * warps]
                    why[v] = START
                    ahead[v, :] = 0
                    ahead[v, 0] = steps[0, rec.PIPE]
                    board[v, :] = 0
                    group_count[v, :] = 0
                    copying[v] = 0
                    waited[v] = 0
                    waiting[v] = -1
                    next_at[v % 4] = min(next_at[v % 4], ready[v])
            continue
        mask = steps[pc[w], rec.WAIT]
        if mask:
            for b in range(6):
                if (mask >> b) & 1 and board[w, b] > after:
                    after = board[w, b]
                    cause = b
        why[w] = cause
        ahead[w, 0] = steps[pc[w], rec.PIPE]
        ahead[w, 1] = steps[pc[w], rec.BANK0]
        ahead[w, 2] = steps[pc[w], rec.BANK1]
        ahead[w, 3] = steps[pc[w], rec.BUSY] if steps[pc[w], rec.KIND] == rec.HGMMA else 0
        # a warp at an unopened barrier keeps its own ready time, shifted out of reach
        ready[w] = after + _NEVER if waiting[w] >= 0 else after
    return end if running == 0 else np.int64(-1)
