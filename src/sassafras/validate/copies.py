"""Copies of the original that `Validator.via` proves: other register names, or moves over branches."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from sassafras.core.errors import SassafrasError
from sassafras.sass import Program

from . import moves, renaming
from . import reuse as reuse_windows
from .report import Violation
from .words import CLEAN

if TYPE_CHECKING:
    from .validator import Validator


def prove(first: Validator, copy: bytes) -> list[Violation]:
    """What keeps `copy` from being the original of `first` in other words.

    Where nothing does, `first` takes schedules of the copy from now on.

    Args:
        first: the validator of the original; its kernel is supported.
        copy: a cubin.
    """
    if len(copy) != len(first.original):
        return [Violation("bytes", "cubin", f"{len(copy)} bytes, not {len(first.original)}")]
    a = first.analysis
    data = np.frombuffer(copy, dtype=np.uint8)
    if len(np.flatnonzero(first.rest(data) != first.elsewhere)):
        return [Violation("bytes", "cubin", "changed outside the kernel's code")]
    words = np.frombuffer(copy, dtype="<u8", count=2 * a.count, offset=first.start).reshape(-1, 2)
    clean = words[:, 1] & CLEAN
    stays = (words[:, 0] == first.function.words[:, 0]) & (clean == a.words[:, 1])
    # other names make other words; moves put the original's elsewhere, and change offsets of branches
    pairs = (words[:, 0], clean), (first.function.words[:, 0], a.words[:, 1])
    new, old = (Counter(zip(w.tolist(), h.tolist(), strict=True)) for w, h in pairs)
    moved = not stays.all() and all(low & 0xFFF in moves.AIMED for low, _ in new - old)
    return _moves(first, copy, words) if moved else _names(first, copy, words, ~stays)


def _slots_wrong(first: Validator, copy: bytes, place: np.ndarray | None = None) -> bool:
    """An offset record does not follow its instruction (`place`: where each one went)."""
    for at, index, rest in first.slots:
        moved = index if place is None or index >= len(place) else int(place[index])
        if struct.unpack_from("<I", copy, at)[0] != moved * 16 + rest:
            return True
    return False


def _names(first: Validator, copy: bytes, words: np.ndarray, changed: np.ndarray) -> list[Violation]:
    """Of a copy under other register names; `changed`: the instructions whose words differ."""
    a = first.analysis
    if _slots_wrong(first, copy):
        return [Violation("bytes", "cubin", "changed outside the kernel's code")]
    # the copy under the compiler's own control codes: what its schedules are measured against
    cleared = np.where(changed, np.uint64(0xF << 58), np.uint64(0))
    words = words.copy()
    words[:, 1] = (words[:, 1] & CLEAN) | (a.original_high & ~CLEAN & ~cleared)
    made = _copy(first, copy, words, "renaming")
    if isinstance(made, list):
        return made
    other = made.analysis
    if other.blocks != a.blocks or len(other.code) != a.count or (other.fence != a.fence).any():
        return [Violation("renaming", "cubin", "another control flow or other fences")]
    found = renaming.differences(
        first.function, made.function, (a.effects, other.effects), a.pinned, a.fence.tolist(), a.blocks
    )
    return found or _accept(first, made, copy)


def _moves(first: Validator, copy: bytes, words: np.ndarray) -> list[Violation]:
    """Of a copy in which instructions moved over branches."""
    a = first.analysis
    try:
        read = Program.parse(copy).function(first.name)
    except SassafrasError as error:
        return [Violation("moves", "cubin", str(error))]
    place = moves.match(first.function, read)
    if place is None:
        return [Violation("moves", "cubin", "an instruction is not the original's, or there too often")]
    where = np.empty(a.count, dtype=np.int64)
    where[place] = np.arange(a.count)
    if _slots_wrong(first, copy, where):
        return [Violation("info", "cubin", "a .nv.info offset does not follow its instruction")]
    # the compiler's control codes go with their instructions; operands stay cached where nothing moved
    words = words.copy()
    words[:, 1] = (words[:, 1] & CLEAN) | (a.original_high[place] & ~CLEAN)
    stays = reuse_windows.kept(np.array(place, dtype=np.int32), *first.windows)
    words[~stays, 1] &= ~np.uint64(0xF << 58)
    made = _copy(first, copy, words, "moves", place)
    if isinstance(made, list):
        return made
    one, two = _reading(first), _reading(made)
    untouchable = renaming.untouchable(first.function, a.effects, a.pinned, a.fence.tolist())
    found = moves.differences(one, two, place, untouchable)
    return found or _accept(first, made, copy)


def _copy(
    first: Validator, copy: bytes, words: np.ndarray, kind: str, place: list[int] | None = None
) -> Validator | list[Violation]:
    """The validator of a copy with these words, or why there is none."""
    base = copy[: first.start] + words.tobytes() + copy[first.end :]
    try:
        made = type(first)(base, first.name, first.latencies, first, place)
    except SassafrasError as error:
        return [Violation(kind, "cubin", str(error))]
    return [Violation(kind, "cubin", made.unsupported)] if made.unsupported else made


def _accept(first: Validator, made: Validator, copy: bytes) -> list[Violation]:
    """The copy is the same program; its own control codes have to be legal, too."""
    found = made.violations(copy)
    if not found:
        first.copies.append(made)
    return found


def _reading(first: Validator) -> moves.Reading:
    """This program as `moves` wants it."""
    a = first.analysis
    pure = [
        k.own_lane
        and not (a.fence[n] or a.pinned[n] or a.variable[n] or k.memory or k.variable or e.never)
        and e.guard is None
        and i.control.read_barrier is None
        and bool(e.writes)
        for n, (i, k, e) in enumerate(zip(a.code, a.kinds, a.effects, strict=True))
    ]
    return moves.Reading(first.function, a.effects, a.fence.tolist(), pure, a.blocks)
