"""What each instruction reads and writes, read off its operand text and checked against its encoding.

This is the second of two independent readings. The first is the disassembler's liveness oracle
(`Instruction.reads` and `.writes`), which the scheduler uses. Rules here say for each opcode which operands
are outputs and how many registers each spans; an opcode without a rule, an operand that cannot be read,
or a disagreement with the oracle or with the encoding's register fields makes the instruction *pinned*.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from . import encoding, operands
from .operands import UP, UR, B, Operand, P, R, Role

Widths = dict[int, int]
#: the guard of what may or may not happen: no register's number
_PERHAPS = -1


@dataclass(frozen=True, slots=True)
class Access:
    """One register in one place: its number, its slot (as the latency tables name it), read or written."""

    register: int
    slot: str
    write: bool


@dataclass(frozen=True, slots=True)
class Effects:
    """What an instruction reads and writes.

    Attributes:
        accesses: one for each register and place.
        guard: the guard's predicate register, or None; `negated` its sign; `never` for ``@!PT``.
        problem: why it is pinned, or ``""``.
        reads, writes: registers read, and written (perhaps, when guarded).
    """

    accesses: tuple[Access, ...]
    guard: int | None
    negated: bool
    never: bool
    problem: str
    reads: frozenset[int] = field(init=False, repr=False, compare=False)
    writes: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", frozenset([a.register for a in self.accesses if not a.write]))
        object.__setattr__(self, "writes", frozenset([a.register for a in self.accesses if a.write]))


@dataclass(frozen=True, slots=True)
class Rule:
    """How to read an opcode's operands.

    Attributes:
        outputs: leading data operands that are written.
        first: leading predicates that are written.
        after: predicates directly after the output operand that are written.
        widths: (modifiers, operands) -> registers that each data position spans (1 if absent).
    """

    outputs: int = 0
    first: int = 0
    after: int = 0
    widths: Callable[[tuple[str, ...], tuple[Operand, ...]], Widths] = lambda mods, ops: {}


def _access_width(mods: tuple[str, ...]) -> int:
    if "128" in mods:
        return 4
    return 2 if {"64", "S64", "U64", "F64"} & set(mods) else 1


def _at(*positions: int) -> Callable[[tuple[str, ...], tuple[Operand, ...]], Widths]:
    return lambda mods, ops: dict.fromkeys(positions, _access_width(mods))


def _wide_product(mods: tuple[str, ...], ops: tuple[Operand, ...]) -> Widths:
    if "WIDE" in mods:
        return {0: 2, 3: 2}
    # the addend of the high half is a 64-bit pair
    return {3: 2} if "HI" in mods else {}


def _all_64(mods: tuple[str, ...], ops: tuple[Operand, ...]) -> Widths:
    return dict.fromkeys(range(5), 2)


def _convert(mods: tuple[str, ...], ops: tuple[Operand, ...], name: str) -> Widths:
    wide = {"F64", "S64", "U64"}
    if name == "F2F":
        kinds = [m for m in mods if re.fullmatch(r"B?F\d+|TF32|E\dM\d", m)]
        if len(kinds) != 2:
            raise ValueError("two types expected")
        return {0: 1 + (kinds[0] in wide), 1: 1 + (kinds[1] in wide)}
    if name == "FRND":
        return dict.fromkeys((0, 1), 1 + ("F64" in mods))
    integer = bool({"S64", "U64"} & set(mods))
    real = "F64" in mods
    return {0: 1 + integer, 1: 1 + real} if name == "F2I" else {0: 1 + real, 1: 1 + integer}


def _matrix_rows(position: int) -> Callable[[tuple[str, ...], tuple[Operand, ...]], Widths]:
    """LDSM and STSM: as many registers as matrices."""
    return lambda mods, ops: {position: 4 if "4" in mods else 2 if "2" in mods else 1}


#: HMMA, IMMA, DMMA, BMMA shape and element type -> registers of A, B and of C and D in 32 bits an element
_SHAPES: dict[tuple[str, str], tuple[int, int, int]] = {
    ("16816", "h"): (4, 2, 4), ("1688", "h"): (2, 1, 4),
    ("1688", "TF32"): (4, 2, 4), ("1684", "TF32"): (2, 1, 4),
    ("16816", "8"): (2, 1, 4), ("16832", "8"): (4, 2, 4), ("8816", "8"): (1, 1, 2),
    ("16832", "4"): (2, 1, 4), ("16864", "4"): (4, 2, 4), ("8832", "4"): (1, 1, 2),
    ("884", "d"): (2, 2, 4), ("1684", "d"): (4, 2, 8), ("1688", "d"): (8, 4, 8), ("16816", "d"): (16, 8, 8),
    ("88128", "1"): (1, 1, 2), ("168128", "1"): (2, 1, 4), ("168256", "1"): (4, 2, 4),
}  # fmt: skip


def _matrix(mods: tuple[str, ...], ops: tuple[Operand, ...], name: str) -> Widths:
    if "SP" in mods:
        raise ValueError("sparse matrix products are not read")
    shape = next((m for m in mods if m.isdigit()), "")
    if name == "DMMA":
        kind = "d"
    elif name == "BMMA":
        kind = "1"
    elif name == "IMMA":
        kind = "4" if {"S4", "U4"} & set(mods) else "8"
    else:
        kind = "TF32" if "TF32" in mods else "h"
    if (shape, kind) not in _SHAPES:
        raise ValueError(f"unknown shape {shape}.{kind}")
    a, b, c = _SHAPES[shape, kind]
    if name == "HMMA" and "F32" not in mods:
        c //= 2
    return {0: c, 1: a, 2: b, 3: c}


def _warpgroup_matrix(mods: tuple[str, ...], ops: tuple[Operand, ...]) -> Widths:
    """``HGMMA.64xNxK``: 64 * N accumulators over 128 threads; A in registers is 64 x 32 bytes."""
    shape = re.fullmatch(r"64x(\d+)x\d+", mods[0]) if mods else None
    if not shape or "SP" in mods:
        raise ValueError("unknown shape")
    narrow = mods[1] == "F16" if len(mods) > 1 else False
    count = int(shape[1]) // (4 if narrow else 2)
    data = [o for o in ops if o.role is not Role.PREDICATE]
    descriptors = sum(o.role is Role.MATRIX for o in data)
    # one gdesc holds both matrices' descriptors when A is in shared memory too
    if descriptors != 1:
        raise ValueError("one gdesc expected")
    first = next(o.position for o in data if o.role is Role.MATRIX)
    if first == 1:
        return {0: count, 1: 4, 2: count}
    # with A in registers the descriptor still spans four
    return {0: count, 1: 4, 2: 4, 3: count}


def _rules() -> dict[str, Rule]:
    table: dict[str, Rule] = {}

    def add(names: str, rule: Rule) -> None:
        for name in names.split():
            table[name] = rule

    add(
        "FADD FADD32I FFMA FFMA32I FMUL FMUL32I FMNMX FSEL FSET FSWZADD MOV MOV32I PRMT SEL SGXT SHF SHL SHR "
        "IABS LOP32I POPC FLO BREV MUFU I2FP F2FP I2IP F2IP HADD2 HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I "
        "HMNMX2 HSET2 IDP IDP4A VABSDIFF VABSDIFF4 VIADD VIMNMX VIADDMNMX VHMNMX IMNMX BMSK S2R S2UR B2R "
        "R2UR UMOV USEL USGXT USHF UPRMT UBREV UBMSK UFLO UPOPC REDUX MOVM P2R UP2UR",
        Rule(1),
    )
    add("CS2R", Rule(1, widths=lambda mods, ops: {0: 1 if "32" in mods else 2}))
    add("IADD3 LEA ULEA", Rule(1, after=2))
    add("IMAD UIMAD", Rule(1, after=1, widths=_wide_product))
    add("UIADD3", Rule(1, after=2, widths=lambda mods, ops: _all_64(mods, ops) if "64" in mods else {}))
    add("LOP3 ULOP3", Rule(1, first=1))
    add("PLOP3 UPLOP3 PSETP UPSETP ISETP UISETP FSETP HSETP2", Rule(0, first=2))
    add("FCHK", Rule(0, first=1))
    add("DSETP", Rule(0, first=2, widths=_all_64))
    add("DADD DMUL DFMA DMNMX", Rule(1, widths=_all_64))
    for name in ("F2F", "F2I", "I2F", "FRND"):
        table[name] = Rule(1, widths=lambda mods, ops, name=name: _convert(mods, ops, name))  # type: ignore[misc]
    for name in ("HMMA", "IMMA", "DMMA", "BMMA"):
        table[name] = Rule(1, widths=lambda mods, ops, name=name: _matrix(mods, ops, name))  # type: ignore[misc]
    add("HGMMA IGMMA QGMMA BGMMA", Rule(1, widths=_warpgroup_matrix))
    add("SHFL MATCH", Rule(1, first=1))
    add("VOTE VOTEU", Rule(1, first=1, after=1))
    add("LDG LD LDL LDS LDC ULDC", Rule(1, widths=_at(0)))
    add("LDSM", Rule(1, widths=_matrix_rows(0)))
    add("STG ST STL STS", Rule(widths=_at(1)))
    add("STSM", Rule(widths=_matrix_rows(1)))
    add("LDGSTS", Rule())
    add("ATOM ATOMG ATOMS", Rule(1, first=1, widths=_at(0, 2, 3)))
    add("RED REDG", Rule(widths=_at(1)))
    add("R2P", Rule())
    add("CALL RET BRX BRXU JMX JMXU", Rule(widths=lambda mods, ops: {0: 2}))
    add("BMOV", Rule(1))
    add("ELECT", Rule(1, first=1))
    add(
        "BRA JMP EXIT KILL BSSY BSYNC BREAK BAR NOP WARPSYNC WARPGROUP DEPBAR LDGDEPBAR MEMBAR FENCE ERRBAR "
        "CGAERRBAR CCTL CCTLL NANOSLEEP YIELD ENDCOLLECTIVE BPT UCGABAR_ARV UCGABAR_WAIT ACQBULK PREEXIT RTT",
        Rule(),
    )
    return table


RULES: dict[str, Rule] = _rules()
_GLOBAL = frozenset(["LDG", "LD", "STG", "ST", "ATOM", "ATOMG", "RED", "REDG", "LDGSTS"])
#: no rule, immovable anyway; their registers are whatever either reading names
_UNREAD = """
    SYNCS UBLKCP UBLKPF UBLKRED UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH ARRIVES LEPC RPCMOV
    USETMAXREG STAS REDAS GETLMEMBASE SETLMEMBASE
"""
UNREAD = frozenset(_UNREAD.split())


@lru_cache(1 << 14)
def read(
    guard: str,
    opcode: str,
    texts: tuple[str, ...],
    low: int,
    high: int,
    oracle_reads: frozenset[int],
    oracle_writes: frozenset[int],
) -> Effects:
    """Read one instruction and compare with the oracle.

    Args:
        guard, opcode, texts: the disassembly, taken apart.
        low, high: the encoding.
        oracle_reads, oracle_writes: the scheduler's reading, which is compared, never used: it can
            only add registers to a pinned instruction.
    """
    name, *rest = opcode.split(".")
    try:
        found, problem = _explain(name, tuple(rest), guard, texts, low, high)
        predicate = operands.guard_register(guard)
    except ValueError as error:
        found, problem, predicate = [], f"{opcode}: {error}", None
    if name in UNREAD:
        problem = ""
    reads = {a.register for a in found if not a.write}
    writes = {a.register for a in found if a.write}
    if name in ("CALL", "RET"):
        # the oracle sums up the callee here; the validator follows the call instead
        oracle_reads, oracle_writes = frozenset(reads), frozenset(writes)
    if name == "BMOV" or name in ("BSSY", "BSYNC", "BREAK", "WARPSYNC"):
        # the oracle says nothing of convergence barriers: its completion is a guess that need not agree
        oracle_reads = frozenset(r for r in oracle_reads if r < B) | {r for r in reads if r >= B}
        oracle_writes = frozenset(r for r in oracle_writes if r < B) | {r for r in writes if r >= B}
    if not problem and name not in UNREAD and (reads != oracle_reads or writes != oracle_writes):
        odd = sorted((reads ^ oracle_reads) | (writes ^ oracle_writes))
        problem = f"{opcode}: the two readings differ in " + ", ".join(map(operands.spell, odd))
    if problem or name in UNREAD:
        found += [Access(r, "?", False) for r in sorted(oracle_reads - reads)]
        found += [Access(r, "?", True) for r in sorted(oracle_writes - writes)]
    never = guard in ("!PT", "!UPT")
    return Effects(tuple(dict.fromkeys(found)), predicate, guard.startswith("!"), never, problem)


def of_a_system_call(found: Effects, registers: int) -> Effects:
    """The effects of a CALL of a function that the driver brings: it may read and write every register.

    It need not write any, so its writes stand under a guard that nothing else has: they end no value's life.

    Args:
        found: the CALL's own.
        registers: general registers of a thread.
    """
    files = ((R, registers), (P, 7), (UR, 63), (UP, 7))
    every = [base + n for base, count in files for n in range(count)]
    accesses = (*found.accesses, *(Access(r, "?", write) for write in (False, True) for r in every))
    return Effects(accesses, _PERHAPS, False, found.never, "calls a function that the driver brings")


def _explain(
    name: str, mods: tuple[str, ...], guard: str, texts: tuple[str, ...], low: int, high: int
) -> tuple[list[Access], str]:
    found: list[Access] = []
    predicate = operands.guard_register(guard)
    if predicate is not None:
        found.append(Access(predicate, "G", False))
    ops = operands.read(texts)
    rule = RULES.get(name)
    if rule is None:
        for op in ops:
            found += [Access(n.register, op.slot + n.part, False) for n in op.named]
        return found, f"{name}: no rule"
    widths = rule.widths(mods, ops)
    outputs = _outputs(name, rule, ops)
    for op in ops:
        if op.role is Role.BANK:
            found += _bank(name, op, ops, low)
            continue
        for named in op.named:
            write = op in outputs
            width = _width(name, mods, op, named, widths)
            if named.register + width > _end(named.register):
                raise ValueError(f"{op.text} runs out of its register file")
            for k in range(width):
                slot = f"{op.slot}{named.part}" + (f"+{k}" if k else "")
                found.append(Access(named.register + k, slot, write))
            if named.register >= B and (name == "BREAK" or (name == "BMOV" and "CLEAR" in mods)):
                found.append(Access(named.register, op.slot, True))
    if name in _GLOBAL:
        found += _hidden_descriptor(name, ops, low, high)
    return found, encoding.disagreement(name, guard, ops, low, high)


def _hidden_descriptor(name: str, ops: tuple[Operand, ...], low: int, high: int) -> list[Access]:
    """sm_80 to sm_89 print no ``desc[URn]``; bit 91 says that there is one (seen on 14,000 accesses)."""
    named = any(n.register >= UR for op in ops if op.role is Role.ADDRESS for n in op.named)
    if not high >> 27 & 1:
        if named:
            raise ValueError("a descriptor in the text, none in the encoding")
        return []
    if named:
        return []
    field = (low >> 32 if name in ("LDG", "LD") else high) & 0x3F
    return [Access(UR + field + k, "?", False) for k in range(2)]


def _end(register: int) -> int:
    """One past the last register of a file."""
    if register >= B:
        return B + 16
    if register >= UP:
        return UP + 7
    if register >= UR:
        return UR + 255
    return P + 7 if register >= P else 255


def _outputs(name: str, rule: Rule, ops: tuple[Operand, ...]) -> list[Operand]:
    outputs = []
    leading = bool(ops) and ops[0].role is Role.PREDICATE
    data = rule.outputs
    if name in ("VOTE", "VOTEU") and leading:
        data = 0
    if name == "BSSY":
        data = 1
    for op in ops:
        if op.role is Role.PREDICATE:
            first = op.position == 0 and op.run < rule.first
            after = op.position == 1 and op.run < rule.after and data == 1 and not leading
            if first or after:
                outputs.append(op)
        elif op.position < data:
            if op.role not in (Role.REGISTER, Role.OTHER):
                raise ValueError(f"output expected, not {op.text}")
            outputs.append(op)
    return outputs


def _width(name: str, mods: tuple[str, ...], op: Operand, named: operands.Named, widths: Widths) -> int:
    if op.role is Role.PREDICATE or named.register >= B:
        return 1
    if op.role is Role.MATRIX:
        return widths.get(op.position, 2)
    if named.part == "d":
        return 2
    if op.role is Role.ADDRESS:
        if "64" in named.suffixes:
            return 2
        plain = "desc" not in op.text and not {"U32", "S32"} & set(named.suffixes)
        wide = name in _GLOBAL and "E" in mods and not (name == "LDGSTS" and op.position == 0)
        return 2 if wide and plain else 1
    if op.role is Role.CONSTANT:
        return 1
    return widths.get(op.position, 1)


def _bank(name: str, op: Operand, ops: tuple[Operand, ...], low: int) -> list[Access]:
    """``P2R Rd, PR, Ra, mask`` reads, ``R2P PR, Ra, mask`` writes the predicates that the mask selects."""
    try:
        mask = int(ops[-1].text, 16)
    except ValueError:
        raise ValueError(f"the mask {ops[-1].text} is not a number") from None
    if mask & ~0x7F or mask != low >> 32:
        raise ValueError(f"mask {mask:#x} in the text, {low >> 32:#x} in the encoding")
    base = UP if op.text == "UPR" else P
    write = name in ("R2P", "UR2UP")
    return [Access(base + i, str(op.position), write) for i in range(7) if mask >> i & 1]
