"""Registers that nothing writes: in a published fault of ptxas, planted, and in no compiled code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sassafras.frontend._ptxas import assemble
from sassafras.sass import Function, Instruction, Program
from sassafras.sass.registers import BREG, GPR, PRED, UGPR, UPRED
from sassafras.sass.tools import Tool, find_all
from sassafras.sass.undefined import explain, suspects, undefined
from tests import kernels

REPRODUCER = Path(__file__).parents[2] / "benchmarks" / "reproducers" / "triton-11660.ptx"


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def without(cubin: bytes, function: Function, i: Instruction) -> bytes:
    """The cubin with a NOP of the same control code in the place of an instruction."""
    made = bytearray(cubin)
    at = function.text_offset + i.offset
    made[at : at + 8] = (0x7918).to_bytes(8, "little")
    made[at + 8 : at + 16] = (i.high & ~0xFFFFFFFF & (1 << 58) - 1).to_bytes(8, "little")
    return bytes(made)


def only_writers(function: Function) -> dict[int, Instruction]:
    """By register the only instruction that writes it, where another one reads it."""
    writers: dict[int, list[Instruction]] = {}
    for i in function.instructions:
        for register in i.writes:
            writers.setdefault(register, []).append(i)
    return {
        register: found[0]
        for register, found in sorted(writers.items())
        if len(found) == 1
        and any(register in i.reads for i in function.instructions if i is not found[0] and i.guard != "!PT")
    }


@pytest.mark.parametrize(
    "tool", {one.version: one for one in find_all("ptxas")}.values(), ids=lambda one: one.version
)
def test_a_copy_with_a_policy_has_no_registers_before_ptxas_13_4(tool: Tool) -> None:
    cubin = assemble(REPRODUCER.read_text(), "sm_90a", str(tool.path))
    function = Program.parse(cubin).function()
    (copy,) = (i for i in function.instructions if i.base == "LDGSTS")
    assert "+UR" in copy.text and not copy.writes, "the form that ptxas gets wrong"
    if release(tool.version) < (13, 4):
        assert undefined(function) == [(copy, UGPR), (copy, UGPR + 1)]
        assert suspects(function.words) == [0, 1]
        assert explain(cubin, function.name) == f"LDGSTS at {copy.offset:#x} reads UR0, which nothing writes"
    else:
        assert not undefined(function) and not suspects(function.words)
        assert explain(cubin, function.name) == ""


@pytest.mark.parametrize("made", [kernels.matmul_cubin, kernels.softmax_cubin], ids=["matmul", "softmax"])
def test_a_lost_write_is_found(made: Callable[[], bytes]) -> None:
    cubin = made()
    function = Program.parse(cubin).function()
    writers = only_writers(function)
    files = [(GPR, PRED), (PRED, UGPR), (UGPR, UPRED), (UPRED, BREG)]
    some = [next((r for r in writers if first <= r < end), None) for first, end in files]
    assert sum(register is not None for register in some) >= 2, "registers of several files"
    for register in (register for register in some if register is not None):
        lost = without(cubin, function, writers[register])
        found = {other: i for i, other in undefined(Program.parse(lost).function())}
        assert register in found[register].reads and found[register] is not writers[register]
        if UGPR <= register < UPRED:
            assert " reads UR" in explain(lost, function.name)


@pytest.mark.parametrize("made", [kernels.matmul_cubin, kernels.softmax_cubin], ids=["matmul", "softmax"])
def test_words_alone_show_lost_uniform_registers(made: Callable[[], bytes]) -> None:
    function = Program.parse(made()).function()
    writers = [i for r, i in only_writers(function).items() if UGPR <= r < UPRED]
    assert writers and not suspects(function.words)
    for writer in writers:
        words = function.words.copy()
        words[writer.index] = 0x7918, 0
        assert {r - UGPR for r in writer.writes} & set(suspects(words)), writer.text


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_compiled_code_reads_nothing_undefined(arch: str) -> None:
    for cubin in (kernels.matmul_cubin(arch), kernels.softmax_cubin(arch), kernels.softmax_cubin(arch, 256)):
        function = Program.parse(cubin).function()
        assert not undefined(function) and not suspects(function.words)


def test_code_that_is_called_takes_what_its_callers_wrote() -> None:
    source = r"""
extern "C" __global__ void divided(float* out, const float* in, long n) {
  out[threadIdx.x] = in[threadIdx.x] / in[threadIdx.x + 32] + float(n / (long(in[5]) + 3));
}
"""
    cubin = kernels.nvcc_cubin(source)
    if cubin is None:
        pytest.skip("needs nvcc")
    function = Program.parse(cubin).function()
    assert sum(i.base == "CALL" for i in function.instructions) >= 2
    assert not undefined(function) and not suspects(function.words)
