"""Random edits of a kernel's words: quick enough for millions, and made again from a seed and a number."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import numpy as np
from planted.subject import put

#: how often each kind is drawn
KINDS = {
    "swap": 20, "move": 16, "exchange": 6, "stall": 22, "wait": 10, "wait moved": 6, "scoreboard": 6,
    "scoreboards exchanged": 4, "setter moved": 4, "reuse": 3, "yield": 1, "across a branch": 2, "guard": 1,
    "register": 2,
}  # fmt: skip
_STALL, _WRITE, _READ, _WAIT, _REUSE = 41, 46, 49, 52, 58


def _exchanged(word: int, a: int, b: int) -> int:
    """An upper word that names scoreboard `a` where it named `b`, and the reverse."""
    for shift in (_WRITE, _READ):
        has = word >> shift & 7
        if has in (a, b):
            word = put(word, shift, 3, b if has == a else a)
    mask = word >> _WAIT & 63
    if (mask >> a ^ mask >> b) & 1:
        word ^= 1 << _WAIT + a | 1 << _WAIT + b
    return word


class Editor:
    """Makes mutants of one kernel.

    Args:
        function: the kernel (`sassafras.sass.Function`).
        seed: of this run.
    """

    def __init__(self, function: Any, seed: int) -> None:
        from sassafras.sass.opcodes import BRANCHES

        self._key = f"{seed}:{function.name}:{len(function)}"
        self._words = function.words
        self._order = np.arange(len(self._words), dtype=np.int64)
        self._fixed = [i.base in BRANCHES or i.base == "NOP" for i in function.instructions]
        self._blocks = [
            (b.start, b.end)
            for b in function.blocks
            if b.end - b.start > 2 and not all(self._fixed[b.start : b.end])
        ]
        self._sizes = list(accumulate(end - start for start, end in self._blocks))
        self._names, self._weights = list(KINDS), list(accumulate(KINDS.values()))
        #: edits per mutant: mostly one, up to four
        self._many = (1, 1, 1, 1, 2, 2, 3, 4)

    @property
    def empty(self) -> bool:
        """Nothing in this kernel can be edited."""
        return not self._blocks

    def make(self, number: int) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
        """Mutant `number`: (order, words by position, kinds of its edits); None where nothing changed."""
        rng = random.Random(f"{self._key}:{number}")
        order, words = self._order.copy(), self._words.copy()
        kinds = []
        most = rng.choice(self._many)
        for _ in range(12):
            if len(kinds) == most:
                break
            start, end = rng.choices(self._blocks, cum_weights=self._sizes)[0]
            kind = rng.choices(self._names, cum_weights=self._weights)[0]
            at = rng.randrange(start, end)
            if not self._fixed[order[at]] and self._edit(rng, kind, at, start, end, order, words):
                kinds.append(kind)
        if np.array_equal(words, self._words):
            return None
        return order, words, kinds

    def _edit(
        self, rng: random.Random, kind: str, at: int, start: int, end: int, order: np.ndarray,
        words: np.ndarray,
    ) -> bool:  # fmt: skip
        if kind in ("swap", "move", "exchange", "across a branch"):
            return self._reorder(rng, kind, at, start, end, order, words)
        low, high = words[:, 0], words[:, 1]
        word = int(high[at])
        if kind == "stall":
            old = word >> _STALL & 15
            new = max(1, old - rng.randint(1, 4)) if rng.random() < 0.7 else rng.randint(1, 15)
            word = put(word, _STALL, 4, new)
            high[at] = word & ~(1 << 45) if new >= 12 else word
        elif kind == "wait":
            mask = word >> _WAIT & 63
            bits = [s for s in range(6) if mask >> s & 1]
            high[at] = word ^ 1 << _WAIT + (
                rng.choice(bits) if bits and rng.random() < 0.8 else rng.randrange(6)
            )
        elif kind == "wait moved":
            mask, to = word >> _WAIT & 63, at + rng.choice((-2, -1, 1, 2, 3))
            if not mask or not start <= to < end or self._fixed[order[to]]:
                return False
            high[at], high[to] = put(word, _WAIT, 6, 0), int(high[to]) | mask << _WAIT
        elif kind == "scoreboard":
            shift = rng.choice((_WRITE, _READ))
            has = word >> shift & 7
            high[at] = put(word, shift, 3, rng.choice((0, 1, 2, 3, 4, 5, 7, 7 if has < 7 else 0)))
        elif kind == "scoreboards exchanged":
            a, b = rng.sample(range(6), 2)
            stop = min(end, at + rng.randint(1, 24))
            for p in range(at, stop):
                if not self._fixed[order[p]]:
                    high[p] = _exchanged(int(high[p]), a, b)
        elif kind == "setter moved":
            shift, to = rng.choice((_WRITE, _READ)), at + rng.choice((-3, -2, -1, 1, 2, 3))
            has = word >> shift & 7
            if has == 7 or not start <= to < end or self._fixed[order[to]]:
                return False
            high[at], high[to] = put(word, shift, 3, 7), put(int(high[to]), shift, 3, has)
        elif kind == "reuse":
            high[at] = word ^ 1 << _REUSE + rng.randrange(3)
        elif kind == "yield":
            high[at] = word ^ 1 << 45
        elif kind == "guard":
            low[at] = int(low[at]) ^ (1 << 15 if rng.random() < 0.5 else rng.randint(1, 7) << 12)
        else:
            shift = rng.choice((16, 24, 32))
            low[at] = put(int(low[at]), shift, 8, rng.randrange(0, 64))
        return True

    def _reorder(
        self, rng: random.Random, kind: str, at: int, start: int, end: int, order: np.ndarray,
        words: np.ndarray,
    ) -> bool:  # fmt: skip
        if kind == "across a branch":
            to = end + rng.randrange(0, 3)
            if to >= len(order) or self._fixed[order[to]]:
                return False
        elif kind == "exchange":
            to = rng.randrange(start, end)
        else:
            reach = 1 if kind == "swap" else rng.randint(2, 24)
            to = min(end - 1, max(start, at + reach * rng.choice((-1, 1))))
        if to == at or self._fixed[order[to]]:
            return False
        if kind in ("exchange", "across a branch"):
            for row in (order, words):
                row[[at, to]] = row[[to, at]]
            return True
        if any(self._fixed[order[p]] for p in range(min(at, to), max(at, to) + 1)):
            return False
        for row in (order, words):
            moved = row[at].copy()
            if to > at:
                row[at:to] = row[at + 1 : to + 1]
            else:
                row[to + 1 : at + 1] = row[to:at]
            row[to] = moved
        return True
