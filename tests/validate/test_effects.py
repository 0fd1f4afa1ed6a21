"""The validator's own reading of registers, on instructions of real ptxas output and on spoilt ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sassafras.sass import Program
from sassafras.sass.control import STALL_SHIFT
from sassafras.sass.instruction import split_text
from sassafras.validate import Validator, effects, operands
from tests import kernels

ANY = frozenset[int]()


def registers(found: frozenset[int]) -> set[str]:
    return {operands.spell(r) for r in found}


def read(text: str, low: int = 0, high: int = 0) -> effects.Effects:
    """Read a text; the encoding and the oracle are not compared (they are in the tests on whole kernels)."""
    guard, opcode, texts = split_text(text)
    return effects.read(guard, opcode, texts, low, high, ANY, ANY)


@pytest.mark.parametrize(
    ("text", "low", "high", "reads", "writes"),
    [
        ("P2R R5, PR, RZ, 0x11", 0x11_FF05_7803, 0x0, {"P0", "P4"}, {"R5"}),
        ("R2P PR, R5, 0x6", 0x6_0500_7804, 0x0, {"R5"}, {"P1", "P2"}),
        ("IADD3 R8, P0, P1, R4, R6, R2", 0x6_0408_7210, 0x7F3E002, {"R4", "R6", "R2"}, {"R8", "P0", "P1"}),
    ],
)
def test_masks_and_second_predicates(
    text: str, low: int, high: int, reads: set[str], writes: set[str]
) -> None:
    guard, opcode, texts = split_text(text)
    found = effects.read(guard, opcode, texts, low, high, ANY, ANY)
    assert reads <= registers(found.reads)
    assert writes <= registers(found.writes)


def test_a_mask_that_the_encoding_contradicts_is_a_problem() -> None:
    found = read("P2R R5, PR, RZ, 0x11", low=0x13_FF05_7803)
    assert "mask" in found.problem


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("LDG.E.128 R4, desc[UR6][R2.64+0x10]", "R2 R3 UR6 UR7", "R4 R5 R6 R7"),
        ("STS.64 [R10+UR4], R8", "R10 UR4 R8 R9", ""),
        ("IMAD.WIDE.U32 R4, R2, R3, R6", "R2 R3 R6 R7", "R4 R5"),
        ("IMAD.HI.U32 R4, R2, R3, R6", "R2 R3 R6 R7", "R4"),
        ("HMMA.16816.F32 R36, R20, R12, R36", "R20 R21 R22 R23 R12 R13 R36 R37 R38 R39", "R36 R37 R38 R39"),
        ("DFMA R6, R4, R2, R8", "R4 R5 R2 R3 R8 R9", "R6 R7"),
        ("F2F.F64.F32 R4, R6", "R6", "R4 R5"),
        ("F2I.S64.F64.TRUNC R4, R6", "R6 R7", "R4 R5"),
        ("LDSM.16.MT88.4 R8, [R3+UR2]", "R3 UR2", "R8 R9 R10 R11"),
        ("UIADD3.64 UR24, UR8, 0x2, URZ", "UR8 UR9", "UR24 UR25"),
        ("ATOMG.E.CAS.STRONG.GPU PT, R7, [R2], R6, R8", "R2 R3 R6 R8", "R7"),
        ("RED.E.ADD.F64.RN.STRONG.GPU [R2.64], R4", "R2 R3 R4 R5", ""),
        ("ISETP.GE.AND.EX P0, P3, R2, R4, !P1, P2", "R2 R4 P1 P2", "P0 P3"),
        ("SHFL.BFLY PT, R3, R4, 0x2, 0x1f", "R4", "R3"),
        ("VOTEU.ANY UR6, UPT, P0", "P0", "UR6"),
        ("CS2R R24, SRZ", "", "R24 R25"),
        ("@!P2 FSEL R1, R2, -INF , P3", "P2 P3 R2", "R1"),
    ],
)
def test_widths(text: str, reads: str, writes: str) -> None:
    found = read(text, high=1 << 27 if "desc[" in text else 0)
    # encoding and oracle disagree on purpose here: what the text says must be in, whatever else was added
    assert registers(found.reads) == set(reads.split())
    assert registers(found.writes) == set(writes.split())


def test_hgmma_accumulators_operands_and_descriptors() -> None:
    found = read("HGMMA.64x64x16.F32 R56, R168, gdesc[UR16], R56, gsb0")
    assert {f"R{n}" for n in range(56, 88)} == registers(found.writes)
    assert {"R168", "R171", "UR16", "UR19", "R87"} <= registers(found.reads)


def test_an_opcode_without_a_rule_is_pinned() -> None:
    assert "no rule" in read("FROB R1, R2").problem
    assert "sparse" in read("HMMA.SP.16816.F32 R4, R8, R12, R4, R16").problem


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_both_readings_agree_on_whole_kernels(arch: str) -> None:
    for data in (
        kernels.softmax_cubin(arch),
        kernels.softmax_cubin(arch, aligned=False),
        kernels.matmul_cubin(arch),
    ):
        for i in Program.parse(data).function().instructions:
            found = effects.read(i.guard, i.opcode, i.operands, i.low, i.high, i.reads, i.writes)
            assert not found.problem, f"{i}: {found.problem}"


def test_an_oracle_that_misses_a_register_pins_the_instruction() -> None:
    function = Program.parse(kernels.softmax_cubin()).function()
    i = next(i for i in function.instructions if i.base == "FADD" and len(i.reads) == 2)
    found = effects.read(i.guard, i.opcode, i.operands, i.low, i.high, frozenset(list(i.reads)[:1]), i.writes)
    assert "differ" in found.problem
    more = i.writes | {7, 300}
    found = effects.read(i.guard, i.opcode, i.operands, i.low, i.high, i.reads, more)
    assert "differ" in found.problem and more <= found.writes  # what either reading names is kept


def test_a_guard_that_the_encoding_contradicts_pins_the_instruction() -> None:
    function = Program.parse(kernels.softmax_cubin()).function()
    i = next(i for i in function.instructions if i.guard == "" and i.base == "FADD")
    found = effects.read("P3", i.opcode, i.operands, i.low, i.high, i.reads, i.writes)
    assert "guard" in found.problem


@pytest.mark.parametrize("side", ["first", "second"])
def test_a_pinned_instruction_keeps_the_compilers_distances(side: str) -> None:
    """The table's are of what is read right: where the oracle names a register more, none of them holds."""
    data = kernels.softmax_cubin()
    program = Program.parse(data)
    function = program.function()
    code, validator = function.instructions, Validator(data, program=program)
    a = validator.analysis
    pair, cycles, need = next(
        (pair, a.original_times[0][pair.second] - a.original_times[0][pair.first], need)
        for pair, need, known in zip(a.inside.pairs, a.inside.need, a.inside.known, strict=True)
        if known
        and code[pair.first].base == code[pair.second].base == "FMNMX"
        and pair.second - pair.first > 2
    )
    slow = next(i for i in code[pair.first + 1 : pair.second] if i.control.stall == 2)
    high = function.words[:, 1].copy()
    high[slow.index] -= np.uint64(1 << STALL_SHIFT)
    closer = program.emit(function.name, np.arange(len(code)), high)
    assert cycles > need and validator.check(closer).ok
    odd = code[getattr(pair, side)]
    misread = [replace(i, reads=i.reads | {200}) if i is odd else i for i in code]
    spoilt = replace(program, functions={function.name: replace(function, instructions=tuple(misread))})
    pinned = Validator(data, program=spoilt)
    assert [n for n, _ in pinned.pinned] == [odd.index] and pinned.check(data).ok
    found = pinned.check(closer).violations
    assert {v.kind for v in found} == {"raw"}
    assert any(
        f"{cycles - 1} cycles after {code[pair.first].text}, needs {cycles}" in v.message for v in found
    )
