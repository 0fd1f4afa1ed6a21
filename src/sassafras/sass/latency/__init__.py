"""Fixed latencies: how far apart ptxas issues two dependent instructions, mined from its output.

Instructions of fixed latency carry no interlock: the stall counts between a producer and its consumer have
to add up to the producer's latency. NVIDIA documents none of these numbers, so the smallest distance that
ptxas ever left is taken, keyed by architecture, both opcodes and both slots.

Time
    The distance between two instructions is the sum of the stall counts of the first one and of everything
    issued between them (`issue_cycles`; a stall count of 0 counts as 1), the minimum over all paths of the
    control-flow graph. Waits for scoreboards are not counted.

Kinds
    ``raw``: a writer, then a reader of its value. ``waw``: a writer whose value nothing reads, then the next
    writer (where something reads it in between, or the second writer itself reads it, ``raw`` and ``war``
    keep the two apart). ``war``: a reader, then the next writer. Two instructions guarded by one predicate
    value, once negated, never both run and make no pair; a guarded write replaces a value only for a
    reader or writer under the same guard. ``issue``: no register is involved, see
    `LatencyTable.own_stall` and `LatencyTable.spacing`.
    Producers of variable latency (and any instruction with a write barrier) make no ``raw`` or ``waw`` pair,
    HGMMA neither; readers of variable latency make a ``war`` pair only where no wait for a scoreboard stands
    between.

Slots
    A slot names a place in the operand text. Operands are separated by commas outside brackets. A *predicate
    operand* is ``P0``, ``!UP1``, ``PT`` and so on; all others count from 0, from left to right,
    constants and RZ included.

    ``G``
        the guard (``@P0``).
    ``0``, ``1``, ...
        a plain register in the n-th operand that is no predicate, however many predicates are printed before
        it, so that ``LEA R1, P0, R2, R3, 0x1`` and ``LEA R1, R2, R3, 0x1`` both have R2 in ``1``.
    ``4p0``, ``0p1``
        the first, second, ... predicate operand printed after so many other operands: ``ISETP.EX``'s outputs
        are ``0p0`` and ``0p1``, its inputs ``2p0`` and ``2p1``; IADD3's carries out are ``1p0`` and ``1p1``,
        IMAD.X's carry in is ``4p0``; LDGSTS's predicate is ``2p0``, SEL's ``3p0``, BRA's ``0p0``.
    ``1a``, ``1u``, ``1d``
        inside brackets in operand 1: a general register (address), a uniform register (address), and a
        register of a descriptor or bank, that is a bracket that another one follows (``desc[UR6][...]``,
        ``cx[UR4][...]``) or that ``desc`` precedes (``gdesc[UR8]``).
    ``1+1``, ``1a+1``, ``1d+1``
        the second (third, ...) register of a wide operand, counted from the one that is printed.
    ``1`` for ``PR``
        the predicates that P2R and R2P select by a mask have the slot of the operand ``PR``.

    A register that stands in two operands has two slots. A general or uniform register that the disassembler
    reports and the text does not name belongs to the operand, on the same side (read or written) and of the
    same register file, whose printed register is the nearest below it. What fits nowhere has slot ``?``,
    which no table knows.

Unknown
    A minimum of few samples can be larger than the truth; only a floor that many kernels meet is one that
    ptxas keeps. `LatencyTable.distance` gives None for what is unknown: keep the original distance then, or
    `LatencyTable.bound` if that is smaller. `LatencyTable.needed` does both.
"""

from .flow import HORIZON, issue_cycles
from .keys import opcode_key
from .mining import mine
from .slots import SlotUse, slots
from .table import LatencyTable

__all__ = [
    "HORIZON",
    "LatencyTable",
    "SlotUse",
    "issue_cycles",
    "mine",
    "opcode_key",
    "slots",
]
