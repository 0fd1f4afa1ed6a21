"""Which of the original's instructions stands at each place of another order, by their words."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable

import numpy as np

from sassafras.sass.control import CONTROL_MASK

#: a word's upper half without its control code
CLEAN = np.uint64(~CONTROL_MASK & (2**64 - 1))
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def match(words: Iterable[Hashable], original: Iterable[Hashable]) -> tuple[list[int], int]:
    """For each word its place in `original`; equal words in their order there.

    Returns:
        (places, -1), or (places so far, the first word that is not or no longer available).
    """
    left: dict[Hashable, deque[int]] = defaultdict(deque)
    for n, word in enumerate(original):
        left[word].append(n)
    found: list[int] = []
    for word in words:
        if not left[word]:
            return found, len(found)
        found.append(left[word].popleft())
    return found, -1


class Words:
    """The original's words without control codes, uint64 (instructions, 2)."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words
        self._sorted = np.argsort(_keys(words), kind="stable")

    def order(self, code: np.ndarray) -> tuple[np.ndarray, int]:
        """`match` for a candidate's words by position, with control codes; places as int32."""
        clean = code.copy()
        clean[:, 1] &= CLEAN
        order = np.empty(len(clean), dtype=np.int32)
        order[np.argsort(_keys(clean), kind="stable")] = self._sorted
        if (self.words[order] == clean).all():
            return order, -1
        found, failed = match(map(tuple, clean.tolist()), map(tuple, self.words.tolist()))
        return np.array(found, dtype=np.int32), failed


def _keys(words: np.ndarray) -> np.ndarray:
    keys: np.ndarray = words[:, 0] * _MIX[0] ^ words[:, 1] * _MIX[1]
    return keys
