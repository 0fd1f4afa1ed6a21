"""Effects that the disassembler's liveness oracle misses, and a check of it against the operand text.

Known gaps (observed on nvdisasm 12.8 to 13.5; each has a test):

* ``P2R Rd, PR, Ra, mask`` reads the predicates in mask, ``R2P PR, Ra, mask`` writes them: neither is shown.
  Nor are those of UP2UR and UR2UP, which may have no mask.
* ``LDGSTS``: its input predicate is shown as a definition; ``[R4+UR6], desc[UR7]`` is not shown.
* convergence barriers (BSSY, BSYNC, BREAK, BMOV) are not shown.
* with 255 registers a thread the oracle is run on a copy that claims 254: R254 must come from the text.

Everything that is named in the text must be known to the oracle, as read or as written. Where it is not,
the instruction is marked `unexplained` and nothing may move it or pass it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .disassembly import Line
from .opcodes import base
from .registers import BREG, GPR, PRED, UGPR, UPRED
from .registers import name as spell

_REGISTER = re.compile(r"(?<![A-Za-z0-9_.])(UR|UP|R|P|B)(\d+)(?![A-Za-z0-9_])")
_BASES = {"R": GPR, "P": PRED, "UR": UGPR, "UP": UPRED, "B": BREG}
_LIMITS = {"R": 254, "P": 6, "UR": 254, "UP": 6, "B": 15}


@lru_cache(maxsize=16384)
def named_registers(text: str) -> frozenset[int]:
    """Registers that a piece of disassembly names (first register of a wide operand only)."""
    found = set()
    for prefix, number in _REGISTER.findall(text):
        if int(number) <= _LIMITS[prefix]:
            found.add(_BASES[prefix] + int(number))
    return frozenset(found)


def complete(
    line: Line, guard: str, opcode: str, operands: tuple[str, ...]
) -> tuple[frozenset[int], frozenset[int], str]:
    """Close the oracle's gaps for one instruction.

    Returns:
        (reads, writes, unexplained): register sets, and why the oracle and the text disagree or ``""``.
    """
    reads, writes = set(line.reads), set(line.writes)
    name = base(opcode)
    if name in ("P2R", "R2P"):
        predicates = _bank_predicates(operands)
        if predicates is None:
            return frozenset(reads), frozenset(writes), f"{opcode}: cannot read its predicate mask"
        (reads if name == "P2R" else writes).update(predicates)
    elif name in ("UP2UR", "UR2UP"):
        # seen with a byte of the register and without a mask: which predicates it means is not known
        (reads if name == "UP2UR" else writes).update(range(UPRED, UPRED + 7))
        return frozenset(reads), frozenset(writes), f"{opcode}: cannot read its predicate mask"
    elif name == "LDGSTS":
        # it defines no predicate at all: whatever is shown as one is its input
        shown = {r for r in writes if PRED <= r < UGPR}
        writes -= shown
        reads |= shown
    elif name in ("BSSY", "BSYNC", "BREAK", "BMOV", "WARPSYNC"):
        barriers = {r for r in named_registers(" ".join(operands)) if r >= BREG}
        reads |= barriers
        if name in ("BSSY", "BMOV"):
            writes |= barriers
    named = named_registers(" ".join((guard, *operands)))
    missing = named - reads - writes
    top = GPR + 254
    if top in missing:
        # shown as nothing because the oracle was told of 254 registers: first operand writes, others read
        first = operands[0] if operands else ""
        (writes if "R254" in first and "[" not in first else reads).add(top)
        missing -= {top}
    missing = frozenset(r for r in missing if r < BREG)
    if missing:
        lost = ", ".join(spell(r) for r in sorted(missing))
        why = f"{opcode}: {lost} in the text, not in the oracle"
        both = missing if name != "LDGSTS" else frozenset[int]()  # a copy writes no register
        return frozenset(reads | missing), frozenset(writes | both), why
    return frozenset(reads), frozenset(writes), ""


def _bank_predicates(operands: tuple[str, ...]) -> set[int] | None:
    """Predicates P0-P6 that the mask, the last operand, selects; None where it is no such number. A byte
    suffix (``.B1``) places the byte in the register only."""
    try:
        mask = int(operands[-1], 16)
    except (IndexError, ValueError):
        return None
    return None if mask & ~0x7F else {PRED + i for i in range(7) if mask >> i & 1}
