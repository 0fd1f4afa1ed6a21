"""Table keys: an opcode's mnemonic without the modifiers that change no latency."""

from __future__ import annotations

from functools import lru_cache

_COMPARISONS = "F T LT EQ LE GT NE GE NUM NAN LTU EQU LEU GTU NEU GEU AND OR XOR PAND POR PXOR LUT MIN MAX"
#: rounding, denormals, saturation, sign of a 32-bit operand
_ARITHMETIC = "FTZ DNZ FMZ RN RM RP RZ RNI SAT RELU TRUNC CEIL FLOOR U32 S32"
#: caching, coherence, scope and kind of an access: data and address registers are read alike
_ACCESSES = (
    "E CONSTANT STRONG WEAK SYS GPU CTA SM VC PRIVATE EF EL LU EU NA LTC64B LTC128B LTC256B BYPASS "
    "ACCESS U8 S8 U16 S16 U MMIO"
)
#: modifiers that choose a function within one datapath, not the datapath
_DROPPED = frozenset(
    f"{_COMPARISONS} {_ARITHMETIC} {_ACCESSES} NOINC NODEC REL ABS DEFER_BLOCKING RECONVERGENT "
    "EX2 RCP RSQ LG2 SIN COS SQRT TANH ADD INC DEC EXCH CAS BFLY DOWN UP IDX".split()
)
#: mnemonics that nvdisasm prints for special operands of one and the same instruction
_ALIASES = {
    "IMAD": frozenset(["MOV", "SHL", "IADD"]),
    "SHF": frozenset(["L", "R", "HI", "W", "U64", "S64", "CLAMP"]),
    "USHF": frozenset(["L", "R", "HI", "W", "U64", "S64", "CLAMP"]),
    "LEA": frozenset(["SX32"]),
    "ULEA": frozenset(["SX32"]),
    "PRMT": frozenset(["F4E", "B4E", "RC8", "ECL", "ECR", "RC16"]),
    "VOTE": frozenset(["ANY", "ALL"]),
    "VOTEU": frozenset(["ANY", "ALL"]),
}
#: opcodes of which no modifier matters
_BARE = frozenset(["MUFU", "S2R", "S2UR", "CS2UR", "P2R", "R2P", "CCTL", "MEMBAR", "FENCE", "EXIT", "BRA"])


@lru_cache(maxsize=8192)
def opcode_key(opcode: str) -> str:
    """The normal form under which the tables know an opcode.

    Modifiers that select another datapath or another width stay (``IMAD.WIDE``, ``HFMA2.MMA``, ``LDG.128``,
    ``LEA.HI``, ``IADD3.X``, the whole of ``HMMA.16816.F32.BF16``); modifiers that select a function
    within one datapath go (comparison and boolean operators, rounding, ``.FTZ``, ``.SAT``, ``.LUT``,
    signedness, cache policies, a MUFU's function). ``IMAD.MOV``, ``.SHL`` and ``.IADD`` are IMADs with
    special operands, and are so called. A modifier that is not listed stays: a finer key has fewer samples,
    and that errs on the side of "unknown".

    >>> opcode_key("ISETP.GE.U32.AND.EX"), opcode_key("LDG.E.128.CONSTANT"), opcode_key("IMAD.MOV.U32")
    ('ISETP.EX', 'LDG.128', 'IMAD')
    """
    name, *modifiers = opcode.split(".")
    if name in _BARE:
        return name
    aliases = _ALIASES.get(name, frozenset())
    return ".".join([name, *(m for m in modifiers if m not in _DROPPED and m not in aliases)])
