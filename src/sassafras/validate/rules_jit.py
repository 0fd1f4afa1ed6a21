"""Compiled inner loops: the order of memory operations, and distances over the control-flow graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .flow import Flow

_FAR = np.int32(1 << 20)


class Accesses(NamedTuple):
    """The memory operations of a function in the original's order; int32 but where noted.

    Attributes:
        at: CSR by block.
        instruction: which one each is.
        kind: rows of `conflict`.
        base: the value of its address registers and its memory space, by number within all blocks; -1 where
            that tells nothing. Operations of one base meet where they share a byte, and nowhere else.
        byte_at, byte: CSR of the bytes that it touches, numbered by base and offset.
        conflict: bool (kinds, kinds): whether two that may touch the same bytes keep their order.
    """

    at: np.ndarray
    instruction: np.ndarray
    kind: np.ndarray
    base: np.ndarray
    byte_at: np.ndarray
    byte: np.ndarray
    conflict: np.ndarray


@njit(cache=True, no_cfunc_wrapper=True)
def overtaken(a: Accesses, place: np.ndarray, out: np.ndarray) -> int:
    """Find operations that stand before an earlier one with which they keep their order.

    Args:
        a: the function's accesses.
        place: int32, position by instruction.
        out: filled with their rows in `a`.

    Returns:
        How many were written (at most len(out)).
    """
    kinds, count = len(a.conflict), 0
    # by kind: the latest place so far, the base that has it, and the latest place of any other base
    latest, holder = np.empty(kinds, np.int32), np.empty(kinds, np.int32)
    other = np.empty(kinds, np.int32)
    touched = np.full(len(a.byte), -1, np.int32)
    for block in range(len(a.at) - 1):
        latest[:], holder[:], other[:] = -1, -1, -1
        for n in range(a.at[block], a.at[block + 1]):
            here, base, mine = place[a.instruction[n]], a.base[n], a.kind[n]
            before = np.int32(-1)
            for k in range(kinds):
                if a.conflict[mine, k]:
                    same = base >= 0 and holder[k] == base
                    before = max(before, other[k] if same else latest[k])
            for b in a.byte[a.byte_at[n] : a.byte_at[n + 1]]:
                before = max(before, touched[b])
                touched[b] = max(touched[b], here)
            if before > here and count < len(out):
                out[count] = n
                count += 1
            if base >= 0 and base == holder[mine]:
                latest[mine] = max(latest[mine], here)
            elif here > latest[mine]:
                other[mine], latest[mine], holder[mine] = latest[mine], here, base
            else:
                other[mine] = max(other[mine], here)
    return count


@njit(cache=True, no_cfunc_wrapper=True)
def block_distances(lengths: np.ndarray, flow: Flow, horizon: int) -> np.ndarray:
    """Least cycles from the end of block a to the start of block b over all paths, up to `horizon`."""
    follow_at, follow = flow.follow_at, flow.follow
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
