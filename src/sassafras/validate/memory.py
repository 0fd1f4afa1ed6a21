"""The order of memory operations within blocks, checked in one pass and without listing pairs.

Two operations keep their order where one of them stores (or is ordered) and both may touch the same bytes.
Two loads of the very same bytes do, too: a volatile pair looks no different. A large kernel has millions of
such pairs. So each operation is compared with the latest place of the earlier ones of each kind.

Asynchronous copies (LDGSTS) have a rule of their own. ptxas has `PADDING` instructions, SHFL or ``@!PT LDS``,
between a use of shared memory or a barrier and the next copy, in all 470 places of code for four
architectures, and adds as many ``@!PT LDS`` as are missing. Why is not known: none of them may be overtaken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .classes import SHARED, Kind
from .effects import Effects
from .graph import GraphBlock
from .rules_jit import Accesses

PADDING = 3


def accesses(blocks: Sequence[GraphBlock], kinds: Sequence[Kind], effects: Sequence[Effects]) -> Accesses:
    """Read a function's memory operations."""
    at, index, kind, base, byte_at, byte = [0], [], [], [], [0], []
    names: dict[tuple[int, int, bool], int] = {}
    bases: dict[object, int] = {}
    places: dict[tuple[int, int], int] = {}
    for block in blocks:
        versions: dict[int, int] = {}
        for n in range(block.start, block.end):
            k, e = kinds[n], effects[n]
            if k.memory and not e.never:
                index.append(n)
                kind.append(names.setdefault((k.loads, k.stores, k.ordered), len(names)))
                base.append(-1)
                if k.address is not None and not k.ordered:
                    registers, low, size = k.address
                    held = tuple((r, versions.get(r[0], 0), versions.get(r[0] + 1, 0)) for r in registers)
                    # an address belongs to one space: what LDGSTS writes is nothing to compare with LDG's.
                    # No other use of shared memory comes between a copy and its padding
                    key = block.start, k.stores or k.loads, k.queue == "LDGSTS", held
                    base[-1] = bases.setdefault(key, len(bases))
                    byte += [places.setdefault((base[-1], low + b), len(places)) for b in range(size)]
                byte_at.append(len(byte))
            for register in e.writes:
                versions[register] = versions.get(register, 0) + 1
        at.append(len(index))
    conflict = [
        [
            a_ordered or b_ordered or bool(a_stores & (b_loads | b_stores) or b_stores & a_loads)
            for b_loads, b_stores, b_ordered in names
        ]
        for a_loads, a_stores, a_ordered in names
    ]
    return Accesses(
        at=np.array(at, dtype=np.int32),
        instruction=np.array(index, dtype=np.int32),
        kind=np.array(kind, dtype=np.int32),
        base=np.array(base, dtype=np.int32),
        byte_at=np.array(byte_at, dtype=np.int32),
        byte=np.array(byte, dtype=np.int32),
        conflict=np.array(conflict, dtype=np.bool_).reshape(len(names), len(names)),
    )


def padding(block: GraphBlock, kinds: Sequence[Kind], effects: Sequence[Effects]) -> set[tuple[int, int]]:
    """(first, second) of a block that keep their order because a copy's padding stands or follows there."""
    found: set[tuple[int, int]] = set()
    users: list[int] = []
    pads: list[int] = []
    copied = False
    for n in range(block.start, block.end):
        k = kinds[n]
        if k.queue == "LDGSTS":
            copied = True
            for pad in pads[-PADDING:]:
                found.add((pad, n))
                found.update((user, pad) for user in users if user < pad)
        elif k.queue == "SHFL" or (k.queue == "LDS" and effects[n].never):
            if not copied:
                pads.append(n)
        elif k.queue == "BAR" or ((k.loads | k.stores) & SHARED and not effects[n].never):
            users.append(n)
            pads, copied = [], False
        if k.fence:
            users = []
    return found


def pairs(a: Accesses, rows: Sequence[int], place: np.ndarray) -> Iterator[tuple[int, int]]:
    """What the operations that `overtaken` found have overtaken: (earlier one, operation)."""
    for n in rows:
        start = int(a.at[np.searchsorted(a.at, n, side="right") - 1])
        earlier = np.arange(start, n)
        apart = (a.base[earlier] == a.base[n]) & (a.base[n] >= 0)
        mine = a.byte[a.byte_at[n] : a.byte_at[n + 1]]
        for m in earlier[place[a.instruction[earlier]] > place[a.instruction[n]]].tolist():
            meet = a.conflict[a.kind[n], a.kind[m]]
            if apart[m - start]:
                meet = bool(np.isin(mine, a.byte[a.byte_at[m] : a.byte_at[m + 1]]).any())
            if meet:
                yield int(a.instruction[m]), int(a.instruction[n])
