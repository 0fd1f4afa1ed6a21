"""What ptxas holds to between neighbours of one pipe, and when it sets the yield bit.

Read off its code: of 1,538 neighbours of which the first keeps a
pipe that the second needs, all but one are issued no sooner than it is free; a stall count of 1 never stands
with a clear yield bit, nor one of 3 or more with a set one on instructions of fixed latency. No register
needs either, and no result depends on it: it is speed only.
"""

from __future__ import annotations

from sassafras.sass import Instruction, Queue

_ALU, _MULTIPLY, _UNIFORM = 1, 2, 4
#: go to whichever pipe is free, or take one cycle: ptxas issues them next to anything
_LIGHT = frozenset("VIADD UMOV ULDC NOP".split())  # noqa: SIM905
_INTEGER = frozenset("IMAD IDP IDP4A".split())  # noqa: SIM905


def uses(i: Instruction) -> int:
    """Bit mask of the pipes that an instruction needs free."""
    if i.base in _LIGHT or i.op.variable:
        return 0
    queue = i.op.queue
    if queue is Queue.ALU:
        return _ALU
    if queue in (Queue.FMA, Queue.HALF):
        return _MULTIPLY
    return _UNIFORM if queue is Queue.UNIFORM else 0


def busy(i: Instruction) -> int:
    """Bit mask of the pipes that it keeps for more than a cycle: FP32 takes the multipliers at full rate."""
    return 0 if i.op.queue is Queue.FMA and i.base not in _INTEGER else uses(i)


def holds(i: Instruction) -> int:
    """Cycles for which it keeps them: products of 64 bits take four."""
    if not busy(i):
        return 1
    return 4 if i.base in _INTEGER and {"HI", "WIDE"} & set(i.opcode.split(".")) else 2


def plain(i: Instruction) -> bool:
    """Whether its yield bit follows from its stall count alone: fixed latency, and no memory."""
    return (
        i.base != "NOP"
        and not i.op.variable
        and (i.op.queue in (Queue.ALU, Queue.FMA, Queue.HALF, Queue.UNIFORM))
    )
