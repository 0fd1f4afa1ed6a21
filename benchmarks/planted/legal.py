"""Permutations that are legal by a simple argument: neighbours swapped that share nothing at all.

Both are of fixed latency, touch no memory, no special register and no register of the other, and carry no
scoreboard, and no fence stands between them. Each instruction of the whole stretch stalls 15 cycles, waits
for every scoreboard and caches no operand: every distance in it is at least 15, those over its edges only
grew. Matrix units and FP64 take longer than that, so stretches with them are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .subject import Subject


def permutations(s: Subject, rng: np.random.Generator, most: int) -> Iterator[tuple[str, bytes]]:
    """(note, cubin) of up to `most` permutations, each of one to eight swaps in one stretch."""
    slow = [i.op.queue in ("tensor", "wgmma", "fp64") for i in s.code]
    wide = [(a, b) for a, b in s.stretches if b - a >= 4 and not any(slow[a:b])]
    if not wide:
        return
    sizes = np.array([b - a for a, b in wide], dtype=float)
    made = 0
    for _ in range(20 * most):
        start, end = wide[rng.choice(len(wide), p=sizes / sizes.sum())]
        order, notes = s.identity(), []
        for _ in range(int(rng.integers(1, 9))):
            at = int(rng.integers(start + 1, end - 1))
            i, j = order[at], order[at + 1]
            if _plain(s, i) and _plain(s, j) and not any(s.conflicts(i, j)) and not any(s.conflicts(j, i)):
                order[at], order[at + 1] = j, i
                notes.append(f"{at}")
        if order == s.identity():
            continue
        yield "swaps at " + ",".join(notes), s.emit(order, s.generous(start, end))
        made += 1
        if made == most:
            return


def _plain(s: Subject, n: int) -> bool:
    """Fixed latency, no memory, no scoreboard of its own, no special register."""
    i = s.code[n]
    return (
        s.fixed(n)
        and not s.still[n]
        and not s.touches(n)
        and i.control.read_barrier is None
        and not any("SR" in o for o in i.operands)
    )
