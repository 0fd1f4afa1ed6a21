"""Which operand of an instruction holds which register: the slots by which latencies are keyed.

The naming is defined in the package's docstring (`sassafras.sass.latency`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..instruction import Instruction
from ..registers import BREG, GPR, PRED, UGPR, UPRED, is_predicate

_REGISTER = re.compile(r"(?<![A-Za-z0-9_.])(UR|UP|R|P|B)(\d+)(?![A-Za-z0-9_])(\.64)?")
_PREDICATE = re.compile(r"^!?U?P(\d+|T)$")
_BASES = {"R": GPR, "P": PRED, "UR": UGPR, "UP": UPRED, "B": BREG}
_FILES = (GPR, PRED, UGPR, UPRED, BREG)

#: all predicate operands of these are inputs but the first two, the first one, or none
_PREDICATE_OUTPUTS = {
    "PLOP3": 2, "UPLOP3": 2, "PSETP": 2, "UPSETP": 2, "VOTE": 1, "VOTEU": 1, "ELECT": 1,
    "BRA": 0, "BRX": 0, "BRXU": 0, "JMP": 0, "JMX": 0, "EXIT": 0, "CALL": 0, "RET": 0, "BAR": 0, "BSYNC": 0,
    "BREAK": 0, "WARPSYNC": 0, "LDGSTS": 0, "HGMMA": 0, "QGMMA": 0, "IGMMA": 0, "BGMMA": 0,
}  # fmt: skip
_STORES = frozenset(["STG", "ST", "STL", "STS", "RED", "REDG", "STSM", "SUST"])
_CALLS = frozenset(["CALL", "RET"])


@dataclass(frozen=True, slots=True)
class SlotUse:
    """One register in one place of an instruction.

    Attributes:
        register: a `sass.registers` number.
        slot: where it stands, see `sassafras.sass.latency`.
        write: True when it is written there.
    """

    register: int
    slot: str
    write: bool


@dataclass(slots=True)
class _Token:
    """A register named in the text: slot of its first register, number, known width, and direction."""

    slot: str
    register: int
    width: int
    output: bool

    def at(self, register: int) -> str:
        offset = register - self.register
        return f"{self.slot}+{offset}" if offset else self.slot


def _file(register: int) -> int:
    return next(base for base in reversed(_FILES) if register >= base)


def _data_width(opcode: str) -> int:
    modifiers = opcode.split(".")
    return 4 if "128" in modifiers else 2 if "64" in modifiers else 1


def _plain_width(i: Instruction, position: int) -> int:
    """Registers that operand `position` is known to span; 1 where the oracle must tell."""
    base = i.base
    if base in _CALLS:
        return 2
    if base.startswith("D") and base != "DEPBAR":
        return 1 if base == "DMMA" else 2
    if base in ("IMAD", "UIMAD"):
        # the addend is a pair; so is WIDE's result
        wide = position in (0, 3) if ".WIDE" in i.opcode else position == 3 and ".HI" in i.opcode
        return 2 if wide else 1
    if base in ("LDG", "LD", "LDL", "LDS", "LDC", "ULDC"):
        return _data_width(i.opcode) if position == 0 else 1
    if base in _STORES:
        return _data_width(i.opcode) if position == 1 else 1
    return 1


def _tokens(i: Instruction) -> list[_Token]:
    tokens: list[_Token] = []
    position = run = predicates = 0
    for text in i.operands:
        if _PREDICATE.match(text):
            limit = _PREDICATE_OUTPUTS.get(i.base)
            # outputs come first, or right after the one general output
            output = predicates < limit if limit is not None else position == 0 or _after_output(i, position)
            for prefix, number, _ in _REGISTER.findall(text):
                tokens.append(_Token(f"{position}p{run}", _BASES[prefix] + int(number), 1, output))
            run += 1
            predicates += 1
            continue
        tokens += _operand(i, text, position)
        position += 1
        run = 0
    return tokens


def _after_output(i: Instruction, position: int) -> bool:
    if position != 1 or i.base in _STORES:
        return False
    first = next((o for o in i.operands if not _PREDICATE.match(o)), "")
    return bool(re.match(r"^(U?R\d+|U?RZ)$", first))


def _operand(i: Instruction, text: str, position: int) -> list[_Token]:
    tokens = []
    for found in _REGISTER.finditer(text):
        prefix, number, wide = found.groups()
        register = _BASES[prefix] + int(number)
        before = text[: found.start()]
        inside = before.count("[") > before.count("]")
        width = 2 if wide else 1
        if not inside:
            output = position == 0 and register in i.writes and i.base not in _CALLS
            output = output or (register in i.writes and register not in i.reads)
            width = max(width, _plain_width(i, position))
            tokens.append(_Token(str(position), register, width, output))
            continue
        descriptor = "[" in text[found.end() :] or re.search(r"desc\[[^\]]*$", before) is not None
        if descriptor:
            tokens.append(_Token(f"{position}d", register, 2, False))
        else:
            tokens.append(_Token(f"{position}{'u' if prefix == 'UR' else 'a'}", register, width, False))
    return tokens


def _attribute(register: int, tokens: list[_Token]) -> list[str]:
    """Slots of a register: the operands that are known to hold it, else the one that begins before it."""
    known = [t.at(register) for t in tokens if t.register <= register < t.register + t.width]
    if known:
        return known
    if is_predicate(register):
        return []  # predicates come one by one
    file = _file(register)
    before = [t for t in tokens if t.register < register and _file(t.register) == file]
    if not before:
        return []
    nearest = max(t.register for t in before)
    return [t.at(register) for t in before if t.register == nearest]


def slots(instruction: Instruction) -> tuple[SlotUse, ...]:
    """Every register that an instruction reads or writes, with its slot.

    A register in two operands gives two entries. One that the oracle reports and no operand explains has
    slot ``"?"``, which is in no table. CALL and RET, for which the oracle sums up the callee, give
    only what their text names.
    """
    i = instruction
    tokens = _tokens(i)
    found = [
        SlotUse(_BASES[file] + int(number), "G", False) for file, number, _ in _REGISTER.findall(i.guard)
    ]
    if i.base in _CALLS:
        named = [(t, t.register + k) for t in tokens for k in range(t.width)]
        return (*found, *(SlotUse(register, t.at(register), False) for t, register in named))
    bank = _bank(i)
    for write, registers in ((False, i.reads), (True, i.writes)):
        side = [t for t in tokens if t.output == write]
        for register in sorted(registers):
            names = _attribute(register, side)
            if not names and not bank and not write and any(u.register == register for u in found):
                continue  # the guard
            if not names:
                other = [t for t in tokens if t.output != write]
                names = _attribute(register, other) or [_implicit(i, register, registers, bank)]
            found += [SlotUse(register, slot, write) for slot in names]
    return tuple(found)


def _implicit(i: Instruction, register: int, registers: frozenset[int], bank: str) -> str:
    """The slot of a register that the text does not print at all."""
    if bank and is_predicate(register):
        return bank
    first = register - 1 if register - 1 in registers else register
    if _file(register) == UGPR:
        # before sm_90 the descriptor of a 64-bit access is not printed: LDG.E R4, [R2.64]
        position = 0
        for text in i.operands:
            if "[" in text:
                return f"{position}d" + ("+1" if first != register else "")
            position += not _PREDICATE.match(text)
    return "?"


def _bank(i: Instruction) -> str:
    """The slot of ``PR``, which stands for the predicates that a mask selects."""
    position = 0
    for text in i.operands:
        if text in ("PR", "UPR"):
            return str(position)
        position += not _PREDICATE.match(text)
    return ""
