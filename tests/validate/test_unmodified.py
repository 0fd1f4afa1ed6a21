"""Compiled code as it is must be accepted, for a reason: what it leans on, taken away, is refused."""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np
import pytest

from sassafras.sass import Function, Program
from sassafras.sass.control import READ_BARRIER_SHIFT, STALL_SHIFT, WAIT_SHIFT, WRITE_BARRIER_SHIFT
from sassafras.sass.eiattr import EMULATED_ATOMICS, SYSTEM_CALLS
from sassafras.validate import Validator
from sassafras.validate.classes import READS_COVERED_BY, RESULTS_COVERED_BY
from tests import kernels
from tests.validate import queue_kernels

COUNT = r"""
extern "C" __global__ void count(const unsigned* in, unsigned* out, int n) {
  __shared__ unsigned bins[4][256];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) (&bins[0][0])[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    unsigned x = in[i];
#pragma unroll
    for (int k = 0; k < 4; k++) atomicAdd(&bins[k][x >> 8 * k & 255], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) out[i] = (&bins[0][0])[i];
}
"""
HALVES = r"""
#include <cuda_fp16.h>
extern "C" __global__ void one(__half* p, const __half* q, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) atomicAdd(p + (i & 7), q[i]);
}
"""
PAIRS = r"""
#include <cuda_fp16.h>
extern "C" __global__ void two(__half2* p, const __half2* q, __half2* o, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) o[i] = atomicAdd(p + (i & 7), q[i]);
}
"""
CHECKED = r"""
#include <cassert>
extern "C" __global__ void checked(float* a, const float* b, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  float x = b[i], y = a[i];
  assert(x > y);
  a[i] = x * y + (float)n;
}
"""


@lru_cache
def compiled(source: str, flags: tuple[str, ...] = ()) -> tuple[bytes, Function]:
    data = kernels.nvcc_cubin(source, flags=flags)
    if data is None:
        pytest.skip("no nvcc")
    return data, Program.parse(data).function()


def edited(data: bytes, function: Function, index: int, shift: int, bits: int, value: int) -> bytes:
    """The cubin with another control field of one instruction."""
    out = bytearray(data)
    at = function.text_offset + 16 * index + 8
    (high,) = struct.unpack_from("<Q", out, at)
    struct.pack_into("<Q", out, at, high & ~(((1 << bits) - 1) << shift) | value << shift)
    return bytes(out)


def leaned(function: Function, first: str, later: str) -> list[tuple[int, list[int], list[int], int]]:
    """Reads of `first` that nothing but scoreboards of `later` ones protect: (it, those, the waits, who
    overwrites what it reads)."""
    found = []
    for block in function.blocks:
        code = function.instructions[block.start : block.end]
        for n, i in enumerate(code):
            late = {r for r in i.reads if r < 255}
            if i.base != first or {i.control.write_barrier, i.control.read_barrier} != {None}:
                continue
            set_by: dict[int, list[int]] = {}
            voices: list[int] = []
            waits: list[int] = []
            for j in code[n + 1 :]:
                for barrier in list(set_by):
                    if j.control.wait_mask >> barrier & 1:
                        voices += set_by.pop(barrier)
                        waits.append(j.index)
                if late & j.writes:
                    if voices and {function.instructions[v].base for v in voices} == {later}:
                        found.append((i.index, voices, waits, j.index))
                    break
                for barrier in (j.control.write_barrier, j.control.read_barrier):
                    if barrier is not None:
                        set_by.setdefault(barrier, []).append(j.index)
    return found


def test_the_address_beside_an_atomic_of_16_bits_keeps_its_register_and_its_place() -> None:
    data, function = compiled(HALVES)
    (record,) = (r for r in Program.parse(data).cubin.entries["one"].info if r.attribute == EMULATED_ATOMICS)
    beside = dict(zip(record.words()[::2], record.words()[1::2], strict=True))
    validator = Validator(data)
    assert validator.check(data).ok, str(validator.check(data))
    a = validator.analysis
    named = [n for n in range(a.count) if a.pinned[n]]
    assert [a.code[n].base for n in named] == ["LD", "ATOM"]
    for n in named:
        register = beside[16 * n]
        assert f"R{register}" not in a.code[n].text
        assert register in a.effects[n].reads and register in a.code[n].reads
        # whoever stands beside it may not pass it, and its record may not name another place
        for order in (n, n - 1):
            swapped = np.arange(a.count)
            swapped[[order, order + 1]] = order + 1, order
            report = validator.check(Program.parse(data).emit("one", swapped))
            assert "place" in {v.kind for v in report.violations}, str(report)
    at, _ = next((at, offset) for at, offset in function.offset_slots if offset == 16 * named[0])
    wrong = bytearray(data)
    struct.pack_into("<I", wrong, at, 16 * named[0] + 16)
    assert [v.kind for v in validator.check(bytes(wrong)).violations] == ["info"]


def test_the_predicate_of_a_generic_atomic_is_there_when_its_operands_are_read() -> None:
    data, function = compiled(PAIRS)
    validator = Validator(data)
    assert validator.check(data).ok, str(validator.check(data))
    atom = next(i for i in function.instructions if i.base == "ATOM" and "F16x2" in i.opcode)
    assert atom.operands[0] == "P0" and atom.control.read_barrier is not None
    waiter = next(
        i for i in function.instructions[atom.index :] if i.control.wait_mask >> atom.control.read_barrier & 1
    )
    for broken in (
        edited(data, function, waiter.index, WAIT_SHIFT, 6, 0),
        edited(data, function, atom.index, READ_BARRIER_SHIFT, 3, 7),
        edited(data, function, atom.index, WRITE_BARRIER_SHIFT, 3, 7),
    ):
        assert {v.kind for v in validator.check(broken).violations} == {"scoreboard"}
    # its result is not there as soon: a store of it that leaves the wait to EXIT is too early
    store = next(i for i in function.instructions if i.base == "STG")
    end = next(i for i in function.instructions[store.index :] if i.base == "EXIT")
    assert store.control.wait_mask == 1 << (atom.control.write_barrier or 0)
    late = edited(data, function, end.index, WAIT_SHIFT, 6, store.control.wait_mask)
    assert validator.check(late).ok
    report = validator.check(edited(late, function, store.index, WAIT_SHIFT, 6, 0))
    assert [v.message for v in report.violations] == [
        f"result of {atom.text} ({atom.offset:#x}) may be pending"
    ]


def test_nothing_is_taken_for_granted_of_a_call_into_the_driver() -> None:
    data, function = compiled(CHECKED)
    assert any(r.attribute == SYSTEM_CALLS for r in Program.parse(data).cubin.entries["checked"].info)
    validator = Validator(data)
    assert validator.check(data).ok, str(validator.check(data))
    code, a = function.instructions, validator.analysis
    (call,) = (i.index for i in code if 16 * i.index in function.system_calls)
    (block,) = (b for b in a.blocks if b.start <= call < b.end)
    assert [a.blocks[n].start for n in block.follow] == [call + 1]
    # the stack pointer, which a load brings and only the call needs
    stack = next(i for i in code if i.base == "LDC" and 1 in i.writes)
    report = validator.check(edited(data, function, stack.index, WRITE_BARRIER_SHIFT, 3, 7))
    assert {v.kind for v in report.violations} == {"scoreboard"}
    # where the call is, which only the call reads
    pointer = next(i for i in code[block.start : call] if i.base == "LDC")
    report = validator.check(edited(data, function, pointer.index, WRITE_BARRIER_SHIFT, 3, 7))
    assert "scoreboard" in {v.kind for v in report.violations}
    # an argument that arithmetic brings is as far ahead of it as the compiler put it
    late = [
        i.index
        for i in code[block.start : call]
        if not i.op.variable and i.control.stall > 2 and any(r < 16 for r in i.writes)
    ]
    assert late
    for index in late:
        report = validator.check(edited(data, function, index, STALL_SHIFT, 4, 1))
        assert "raw" in {v.kind for v in report.violations}
    # an argument stays in its register, though nothing in this cubin reads it there
    moves = [
        i
        for i in code[block.start : call]
        if "MOV" in i.opcode and not any(i.writes & j.reads for j in code[i.index + 1 : call])
    ]
    assert moves
    used = {r for i in code for r in i.reads | i.writes}
    free = next(r for r in range(function.registers) if r not in used)
    for i in moves:
        copy = bytearray(data)
        copy[function.text_offset + i.offset + 2] = free
        report = validator.via(bytes(copy))
        assert {v.kind for v in report.violations} == {"renaming"} and "in use" in str(report), str(report)


#: (seed, kernel), who reads late, whose scoreboard alone says that it has
LEANED = {
    (0, 3): [("STSM", "MOVM")],
    (0, 24): [("STS", "STSM")],
    (1, 9): [("STSM", "ATOMS")],
    (2, 24): [("ATOMS", "STSM"), ("ATOMS", "ATOMS")],
}


@pytest.mark.parametrize("made", LEANED)
def test_a_queue_is_leaned_on_in_pairs_and_no_further(made: tuple[int, int]) -> None:
    seed, number = made
    data, function = compiled(queue_kernels.kernels(seed, True)[number], queue_kernels.LIMITS[seed % 3])
    only_these(data, function, LEANED[made])


def only_these(data: bytes, function: Function, pairs: list[tuple[str, str]]) -> None:
    """The code is accepted; with what it leans on not set, or not waited for, it is refused."""
    validator = Validator(data)
    assert validator.check(data).ok, str(validator.check(data))
    for first, later in pairs:
        cases = leaned(function, first, later)
        assert cases, "the compiler no longer does what this test is about"
        for _, voices, waits, _ in cases:
            silent = broken = data
            for voice in voices:
                silent = edited(silent, function, voice, READ_BARRIER_SHIFT, 3, 7)
                silent = edited(silent, function, voice, WRITE_BARRIER_SHIFT, 3, 7)
            for wait in waits:
                broken = edited(broken, function, wait, WAIT_SHIFT, 6, 0)
            for mutant in (silent, broken):
                assert "scoreboard" in {v.kind for v in validator.check(mutant).violations}


def test_what_ptxas_never_leaves_to_another_queue_is_refused() -> None:
    """Loads from global memory are another queue: none of the rest says that their operands are read."""
    rest = {"LDS", "LDSM", "SHFL", "MOVM", "STS", "STSM", "STG", "STL", "ATOMS", "MUFU", "LDL"}
    assert not rest & (READS_COVERED_BY["LDG"] | READS_COVERED_BY["LDGSTS"])
    assert not {"LDG", "LDGSTS"} & set().union(*(READS_COVERED_BY[name] for name in rest - {"MUFU"}))
    assert not rest & set(RESULTS_COVERED_BY.get("LDG", ()))
