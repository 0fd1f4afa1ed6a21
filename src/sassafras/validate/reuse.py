"""How long a cached operand is awaited.

`.reuse` keeps a source operand in its slot's cache until something of that slot consumes it, whether or
not the register has been written since, and however many instructions stand between (observed on an H200).
A flag is therefore accepted only where everything from its instruction to the next reader of the register
stands in a row, as in the original.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from sassafras.sass import Instruction
from sassafras.sass.registers import GPR

from .effects import Effects

_CACHED = re.compile(r"R(\d+)\|?[.\w]*\.reuse\b")


def windows(
    code: Sequence[Instruction], effects: Sequence[Effects], ends: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """For each instruction, what its flags rely on.

    Args:
        code: the original instructions.
        effects: what they read and write, by the validator's own reading.
        ends: for each instruction, the index after its basic block.

    Returns:
        (length, fixed): int64 and bool, (instructions,). `length`: so many instructions must follow as in
        the original. `fixed`: nothing in the block reads a cached register before it is written (or the
        block ends): the instruction must also stand where it stood.
    """
    length = np.zeros(len(code), dtype=np.int64)
    fixed = np.zeros(len(code), dtype=bool)
    for n, instruction in enumerate(code):
        if not instruction.control.reuse:
            continue
        cached = {GPR + int(r) for text in instruction.operands for r in _CACHED.findall(text)}
        waiting = set(cached - effects[n].writes)
        fixed[n] = not cached or waiting != cached
        for later in range(n + 1, ends[n]):
            if not waiting or fixed[n]:
                break
            if waiting & effects[later].reads:
                waiting -= effects[later].reads
                length[n] = later - n
            fixed[n] = bool(waiting & effects[later].writes)
        if waiting or fixed[n]:
            fixed[n] = True
            length[n] = ends[n] - 1 - n
    return length, fixed


def kept(order: np.ndarray, length: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """For each position, True where what the flags of its instruction rely on is as it was."""
    count = len(order)
    breaks = np.flatnonzero(order[1:] != order[:-1] + 1)
    # the last position of the row of original neighbours that each position belongs to
    last = np.append(breaks, count - 1)[np.searchsorted(breaks, np.arange(count), side="left")]
    follows = last - np.arange(count) >= length[order]
    return follows & (~fixed[order] | (order == np.arange(count)))
