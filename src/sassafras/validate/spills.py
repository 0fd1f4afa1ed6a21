"""Registers that the compiler spilled to local memory: the words of the stack they live in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sassafras.sass import Instruction

from .effects import Effects
from .operands import Operand, Role

#: the register of the stack pointer
_STACK = 1
_PLACE = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]$")
#: of an opcode: how many words it moves
_WORDS = {"": 1, "64": 2, "128": 4}
#: words of the stack are numbered downwards from here, as registers are upwards
FIRST = -2

Moves = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]


def spills(
    code: Sequence[Instruction], ops: Sequence[tuple[Operand, ...]], effects: Sequence[Effects]
) -> Moves:
    """Of each spill and reload, by instruction: where its values go, and where they come from.

    Words of the stack are numbered ``FIRST`` and below. Nothing is said of a kernel that accesses its stack
    other than at ``R1`` and a constant, or whose ``R1`` is used for more or changes behind the first spill.
    """
    moves: Moves = {}
    begun = False
    for n, (i, e) in enumerate(zip(code, effects, strict=True)):
        if i.base not in ("STL", "LDL"):
            if (_STACK in e.writes and begun) or _STACK in e.reads - e.writes:
                return {}
            continue
        begun = True
        place = next(o for o in ops[n] if o.role is Role.ADDRESS)
        data = next((o for o in ops[n] if o.role is Role.REGISTER), None)
        mods = set(i.opcode.split(".")[1:]) - {"LU", "E", "EF", "EL"}
        found, count = _PLACE.match(place.text), _WORDS.get("".join(mods))
        if found is None or count is None or data is None or not data.named:
            return {}
        word = int(found[1] or "0", 16) // 4
        stack = tuple(FIRST - word - k for k in range(count))
        registers = tuple(data.named[0].register + k for k in range(count))
        moves[n] = (stack, registers) if i.base == "STL" else (registers, stack)
    return moves
