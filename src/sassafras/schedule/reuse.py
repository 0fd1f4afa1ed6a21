"""When a `.reuse` flag may stay.

A flagged source operand stays in the reuse cache of its slot until something of that slot consumes it, not
just until the next instruction. Where its reader was moved away and the register written, a later read of
that slot gets the old value (observed on an H200). So a flag stays only where everything from the flagged
instruction to the register's next reader stands as in the original.
"""

from __future__ import annotations

import re

import numpy as np

from sassafras.sass import Function
from sassafras.sass.opcodes import BRANCHES
from sassafras.sass.registers import GPR

_FLAGGED = re.compile(r"\bR(\d+)(?:\.\w+)*?\.reuse")


def reaches(function: Function) -> np.ndarray:
    """How far each instruction's `.reuse` flags reach.

    Returns:
        int32 (instructions,): the number of instructions after this one, up to and including the last of
        the flagged registers' next readers, that must follow it unchanged; to the next branch where a
        register has no reader before that or before it is written; -1 at that branch; 0 without flags.
    """
    reach = np.zeros(len(function), dtype=np.int32)
    for block in function.blocks:
        end = _end(function, block.end)
        for index in range(block.start, block.end):
            instruction = function.instructions[index]
            if not instruction.control.reuse:
                continue
            rest = end - 1 - index
            registers = [GPR + int(n) for n in _FLAGGED.findall(instruction.text)]
            furthest = max((_reader(function, index, end, r) for r in registers), default=rest)
            reach[index] = furthest or -1
    return reach


def _end(function: Function, end: int) -> int:
    """Where straight-line code that goes through `end` stops: labels alone do not flush the cache."""
    while end < len(function) and function.instructions[end - 1].base not in BRANCHES:
        end += 1
    return end


def _reader(function: Function, index: int, end: int, register: int) -> int:
    """Instructions from `index` to the next reader of `register`; to the block's end if there is none."""
    if register not in function.instructions[index].writes:
        for later in range(index + 1, end):
            if register in function.instructions[later].reads:
                return later - index
            if register in function.instructions[later].writes:
                break
    return end - 1 - index
