"""Slot names and opcode keys, on the spellings that nvdisasm prints."""

from __future__ import annotations

import pytest

from sassafras.sass import Control, Instruction
from sassafras.sass.instruction import split_text
from sassafras.sass.latency import opcode_key, slots
from sassafras.sass.opcodes import OPCODES, base
from sassafras.sass.registers import GPR, PRED, UGPR, UPRED

_BASES = {"R": GPR, "P": PRED, "UR": UGPR, "UP": UPRED}


def numbers(names: str) -> frozenset[int]:
    """``"R4-R7 UR2 P0"`` as register numbers."""
    found = set()
    for part in names.split():
        first, _, last = part.partition("-")
        prefix = first.rstrip("0123456789")
        start = int(first[len(prefix) :])
        end = int(last[len(prefix) :]) if last else start
        found |= {_BASES[prefix] + n for n in range(start, end + 1)}
    return frozenset(found)


def instruction(text: str, reads: str, writes: str) -> Instruction:
    guard, opcode, operands = split_text(text)
    return Instruction(
        0, 0, 0, 0, text, guard, opcode, operands, Control.decode(0), OPCODES[base(opcode)],
        numbers(reads), numbers(writes),
    )  # fmt: skip


#: text, registers read, registers written, slots read, slots written (as the disassembler's oracle has them)
CASES = [
    ("FFMA R1, R2, R2, R3", "R2 R3", "R1", "R2:1 R2:2 R3:3", "R1:0"),
    ("@!P0 FADD R1, -R2, R3.reuse", "P0 R2 R3", "R1", "P0:G R2:1 R3:2", "R1:0"),
    # predicates do not count: operand B is "2" with and without a carry out
    ("LEA R6, P0, R5, UR8, 0x1", "R5 UR8", "R6 P0", "R5:1 UR8:2", "R6:0 P0:1p0"),
    ("LEA R6, R5, UR8, 0x1", "R5 UR8", "R6", "R5:1 UR8:2", "R6:0"),
    ("IADD3 R2, P4, P5, R15, UR4, R2", "R2 R15 UR4", "R2 P4 P5", "R15:1 UR4:2 R2:3", "R2:0 P4:1p0 P5:1p1"),
    (
        "IADD3.X R3, R10, UR5, R9, P4, P5", "R9 R10 UR5 P4 P5", "R3",
        "R10:1 UR5:2 R9:3 P4:4p0 P5:4p1", "R3:0",
    ),
    (
        "ISETP.GE.U32.AND.EX P0, PT, R3, R5, PT, P0", "R3 R5 P0", "P0",
        "R3:0 R5:1 P0:2p1", "P0:0p0",
    ),
    ("PLOP3.LUT P0, PT, P1, P0, PT, 0x80, 0x0", "P0 P1", "P0", "P1:0p2 P0:0p3", "P0:0p0"),
    ("SEL R0, R1, R2, !P3", "R1 R2 P3", "R0", "R1:1 R2:2 P3:3p0", "R0:0"),
    ("P2R R4, PR, R5, 0x3", "P0 P1 R5", "R4", "P0:1 P1:1 R5:2", "R4:0"),
    ("R2P PR, R5, 0x3", "R5", "P0 P1", "R5:1", "P0:0 P1:0"),
    ("VOTEU.ANY UP0, P1", "P1", "UP0", "P1:0p1", "UP0:0p0"),
    # wide operands; one may lie inside another
    (
        "IMAD.WIDE R4, R3, 0x4, R2", "R2-R3", "R4-R5",
        "R3:1 R2:3 R3:3+1", "R4:0 R5:0+1",
    ),
    ("IMAD.HI.U32 R11, R11, R13, R10", "R10 R11 R13", "R11", "R11:1 R13:2 R10:3 R11:3+1", "R11:0"),
    ("DFMA R8, R4, -R8, 1", "R4-R5 R8-R9", "R8-R9", "R4:1 R5:1+1 R8:2 R9:2+1", "R8:0 R9:0+1"),
    (
        "HMMA.16816.F32 R4, R8, R12, R4", "R4-R13", "R4-R7",
        "R8:1 R9:1+1 R10:1+2 R11:1+3 R12:2 R13:2+1 R4:3 R5:3+1 R6:3+2 R7:3+3", "R4:0 R5:0+1 R6:0+2 R7:0+3",
    ),
    # memory: address, descriptor, data
    (
        "@P1 LDG.E.64 R8, desc[UR6][R2.64+0x10]", "P1 R2-R3 UR6-UR7", "R8-R9",
        "P1:G R2:1a R3:1a+1 UR6:1d UR7:1d+1", "R8:0 R9:0+1",
    ),
    ("LDG.E R8, [R2.64]", "R2-R3 UR6-UR7", "R8", "R2:1a R3:1a+1 UR6:1d UR7:1d+1", "R8:0"),
    (
        "STG.E.128 desc[UR14][R2.64], R32", "R2-R3 R32-R35 UR14-UR15", "",
        "R2:0a R3:0a+1 UR14:0d UR15:0d+1 R32:1 R33:1+1 R34:1+2 R35:1+3", "",
    ),
    ("STS [R2+UR4], R77", "R2 R77 UR4", "", "R2:0a UR4:0u R77:1", ""),
    (
        "LDGSTS.E.BYPASS.128 [R41+0x6000], desc[UR14][R32.64], P1", "R41 R32-R33 UR14-UR15 P1", "",
        "R41:0a R32:1a R33:1a+1 UR14:1d UR15:1d+1 P1:2p0", "",
    ),
    ("LDC R4, c[0x0][R5+0x10]", "R5", "R4", "R5:1a", "R4:0"),
    ("ULDC.64 UR8, c[0x0][0x218]", "", "UR8-UR9", "", "UR8:0 UR9:0+1"),
    ("SHFL.BFLY PT, R2, R5, 0x10, 0x1f", "R5", "R2", "R5:1", "R2:0"),
    ("BRA.U UP0, `(.L_x_0)", "UP0", "", "UP0:0p0", ""),
    (
        "HGMMA.64x8x16.F32 R24, gdesc[UR8], R24, !UPT", "R24-R27 UR8-UR11", "R24-R27",
        "UR8:1d UR9:1d+1 UR10:1d+2 UR11:1d+3 R24:2 R25:2+1 R26:2+2 R27:2+3",
        "R24:0 R25:0+1 R26:0+2 R27:0+3",
    ),
]  # fmt: skip


def pairs(text: str) -> set[tuple[int, str]]:
    return {(next(iter(numbers(r))), slot) for r, slot in (p.split(":") for p in text.split())}


@pytest.mark.parametrize(("text", "reads", "writes", "read_slots", "written_slots"), CASES)
def test_slots(text: str, reads: str, writes: str, read_slots: str, written_slots: str) -> None:
    found = slots(instruction(text, reads, writes))
    assert {(u.register, u.slot) for u in found if not u.write} == pairs(read_slots)
    assert {(u.register, u.slot) for u in found if u.write} == pairs(written_slots)


def test_what_the_text_does_not_explain_gets_a_slot_that_no_table_knows() -> None:
    found = slots(instruction("FADD R4, R5, R6", "R5 R6 P3", "R4"))
    assert [u.slot for u in found if u.register == PRED + 3] == ["?"]


@pytest.mark.parametrize(
    ("opcode", "key"),
    [
        ("ISETP.GE.U32.AND", "ISETP"),
        ("ISETP.NE.AND.EX", "ISETP.EX"),
        ("IMAD.MOV.U32", "IMAD"),
        ("IMAD.WIDE.U32", "IMAD.WIDE"),
        ("HFMA2.MMA", "HFMA2.MMA"),
        ("LDG.E.128.CONSTANT", "LDG.128"),
        ("LDGSTS.E.BYPASS.128", "LDGSTS.128"),
        ("HMMA.16816.F32.BF16", "HMMA.16816.F32.BF16"),
        ("MUFU.EX2", "MUFU"),
        ("SHF.R.U32.HI", "SHF"),
        ("LEA.HI.X.SX32", "LEA.HI.X"),
        ("BAR.SYNC.DEFER_BLOCKING", "BAR.SYNC"),
    ],
)
def test_opcode_key(opcode: str, key: str) -> None:
    assert opcode_key(opcode) == key
    assert opcode_key(key) == key
