"""The validator on real kernels: accepts what the compiler made, refuses edits, says why."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sassafras.core.errors import CubinError
from sassafras.gemm.configs.registry import parse_instance
from sassafras.sass import Control, Program
from sassafras.sass.control import READ_BARRIER_SHIFT, STALL_SHIFT, WAIT_SHIFT, WRITE_BARRIER_SHIFT
from sassafras.validate import Validator, validate
from tests import kernels
from tests.gemm.together import accepted, together


def edited(program: Program, name: str, index: int, **fields: object) -> bytes:
    """The cubin with fields of one instruction's control code replaced."""
    function = program.function(name)
    high = function.words[:, 1].copy()
    control = Control.decode(int(high[index]))
    high[index] = np.uint64(replace(control, **fields).encode(int(high[index])))  # type: ignore[arg-type]
    return program.emit(name, np.arange(len(function)), high)


def moved(program: Program, name: str, at: int, to: int) -> bytes:
    order = list(range(len(program.function(name))))
    order.insert(to, order.pop(at))
    return program.emit(name, np.array(order))


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_unmodified_compiler_output_is_accepted(arch: str) -> None:
    for data in (
        kernels.softmax_cubin(arch),
        kernels.softmax_cubin(arch, aligned=False),
        kernels.matmul_cubin(arch),
        kernels.matmul_cubin(arch, bm=16, bn=32, bk=32),
    ):
        validator = Validator(data)
        report = validator.check(data)
        assert report.ok, str(report)
        assert not validator.pinned


def test_several_kernels_in_a_cubin_with_calls_atomics_and_a_jump_table() -> None:
    data = kernels.nvcc_cubin(kernels.TWO_KERNELS)
    if data is None:
        pytest.skip("no nvcc")
    for name in ("reverse", "choose"):
        assert validate(data, data, name).ok, str(validate(data, data, name))
    with pytest.raises(CubinError, match="several kernels"):
        validate(data, data)


def test_an_architecture_that_is_parsed_only_is_unsupported_not_accepted() -> None:
    data = kernels.softmax_cubin("sm_100a")
    report = validate(data, data)
    assert not report.ok and not report.supported
    assert report.violations[0].kind == "unsupported"
    assert "parsed only" in report.violations[0].message


def test_a_file_that_is_no_cubin_raises_for_the_original_and_is_refused_as_candidate() -> None:
    data = kernels.softmax_cubin()
    with pytest.raises(CubinError):
        Validator(b"not a cubin")
    assert validate(data, b"not a cubin").violations[0].kind == "bytes"


def test_the_false_win_that_taught_us_is_refused() -> None:
    """P2R moved above the ISETP whose predicate it saves: nothing but the mask shows the dependence."""
    data = kernels.softmax_cubin(aligned=False, block=2048)
    program = Program.parse(data)
    function = program.function()
    saves = [i for i in function.instructions if i.base == "P2R"]
    if not saves:
        pytest.skip("this ptxas saves no predicates here")
    validator = Validator(data)
    tried = 0
    for save in saves:
        mask = int(save.operands[-1], 16)
        wanted = {f"P{n}" for n in range(7) if mask >> n & 1}
        for i in reversed(function.instructions[: save.index]):
            if i.base in ("ISETP", "PLOP3", "FSETP") and set(i.operands[:2]) & wanted:
                report = validator.check(moved(program, function.name, save.index, i.index))
                kinds = {v.kind for v in report.violations}
                assert not report.ok and kinds & {"order", "place"}, str(report)
                tried += 1
                break
    assert tried


def test_lowering_a_stall_below_the_latency_is_refused_and_named() -> None:
    data = kernels.softmax_cubin()
    program = Program.parse(data)
    function = program.function()
    code = function.instructions
    at = next(
        i.index
        for i in code[:-1]
        if i.base in ("FADD", "FMUL") and i.control.stall >= 4 and i.writes & code[i.index + 1].reads
        and i.control.write_barrier is None and not code[i.index + 1].op.variable
    )  # fmt: skip
    report = validate(data, edited(program, function.name, at, stall=1))
    assert [v.kind for v in report.violations].count("raw") >= 1
    assert "needs" in str(report)


def test_a_dropped_wait_and_a_dropped_barrier_are_refused() -> None:
    data = kernels.softmax_cubin()
    program = Program.parse(data)
    function = program.function()
    code = function.instructions
    load = next(i for i in code if i.base == "LDG")
    user = next(i for i in code[load.index + 1 :] if i.reads & load.writes)
    validator = Validator(data)
    barrier = load.control.write_barrier
    assert barrier is not None
    waiter = next(i for i in code[load.index + 1 :] if i.control.wait_mask >> barrier & 1)
    assert waiter.index <= user.index
    without = waiter.control.wait_mask & ~(1 << barrier)
    for candidate in (
        edited(program, function.name, waiter.index, wait_mask=without),
        edited(program, function.name, load.index, write_barrier=None),
    ):
        report = validator.check(candidate)
        assert "scoreboard" in {v.kind for v in report.violations}, str(report)


def test_a_store_may_not_raise_a_write_scoreboard() -> None:
    """Nothing would ever release it: eleven random mutants with one hung on an H200 (2026-11-21)."""
    for data in (kernels.softmax_cubin(), kernels.matmul_cubin()):
        program = Program.parse(data)
        function = program.function()
        validator = Validator(data)
        stores = [i for i in function.instructions if i.base in ("STG", "STS", "STSM")]
        assert stores
        for store in stores:
            assert store.control.write_barrier is None
            for barrier in range(6):
                report = validator.check(edited(program, function.name, store.index, write_barrier=barrier))
                assert not report.ok, f"{store} with write scoreboard {barrier}"


OURS = "cs_tn_64x96_s8q1", "cs_nn_64x256_s5q1", "lean_tn_m1n2s2", "ws_tn_64x128_pp2s8b2c1x1"


@pytest.mark.parametrize("name", OURS)
def test_our_own_kernels_are_accepted(name: str, shared: Path) -> None:
    """What CUDA 13's ptxas made of them: SYNCS whose uniform address is overwritten at once, 64 stores that
    raise one scoreboard, LD after LD of its address."""
    accepted(together(shared, map(parse_instance, OURS)), name)


def test_more_waits_and_longer_stalls_are_accepted() -> None:
    data = kernels.matmul_cubin()
    program = Program.parse(data)
    function = program.function()
    validator = Validator(data)
    for i in function.instructions[20:200:7]:
        if i.base in ("BRA", "EXIT", "NOP") or i.control.stall > 10:
            continue
        longer = edited(program, function.name, i.index, stall=i.control.stall + 1)
        assert validator.check(longer).ok, f"{i}: {validator.check(longer)}"


def test_swapping_independent_neighbours_is_accepted_with_their_offsets_following() -> None:
    data = kernels.softmax_cubin()
    program = Program.parse(data)
    function = program.function()
    code = function.instructions
    high = function.words[:, 1].copy()
    for i in code:  # time to spare, nothing cached
        if i.base not in ("BRA", "EXIT", "NOP", "BAR"):
            generous = replace(i.control, stall=15, yield_hint=False, reuse=0)
            high[i.index] = np.uint64(generous.encode(i.high))
    validator = Validator(data)
    order = np.arange(len(function))
    assert validator.check(program.emit(function.name, order, high)).ok
    accepted = 0
    for a, b in pairwise(code):
        if a.op.variable or b.op.variable or a.guard or b.guard or a.base in ("NOP", "BRA", "EXIT", "BAR"):
            continue
        if b.base in ("NOP", "BRA", "EXIT", "BAR") or a.writes & (b.reads | b.writes) or a.reads & b.writes:
            continue
        if a.control.wait_mask:
            continue  # b may lean on it
        swapped = order.copy()
        swapped[[a.index, b.index]] = [b.index, a.index]
        report = validator.check(program.emit(function.name, swapped, high[swapped]))
        accepted += report.ok
        assert report.ok, f"{a} / {b}: {report}"
    assert accepted > 5


def test_a_stale_exit_offset_is_refused() -> None:
    data = kernels.softmax_cubin()
    program = Program.parse(data)
    at, offset = program.function().offset_slots[0]
    stale = bytearray(data)
    struct.pack_into("<I", stale, at, offset + 16)
    report = validate(data, bytes(stale))
    assert [v.kind for v in report.violations] == ["info"]


def test_a_warp_barrier_that_became_a_nop_stays_between_its_accesses() -> None:
    """__syncwarp() compiles to a NOP: accesses on its two sides may be of different lanes."""
    source = r"""
    extern "C" __global__ void lanes(float* o, const float* a) {
      __shared__ float s[64];
      int t = threadIdx.x;
      s[t] = a[t]; s[t + 32] = a[t + 32];
      __syncwarp();
      float v = s[t + 1];
      __syncwarp();
      s[t] = v * 2;
      __syncwarp();
      o[t] = s[t + 1] + s[t + 3];
    }"""
    data = kernels.nvcc_cubin(source)
    if data is None:
        pytest.skip("no nvcc")
    program = Program.parse(data)
    function = program.function()
    code = function.instructions
    validator = Validator(data)
    assert validator.check(data).ok
    barriers = [i.index for i in code if i.base == "NOP" and i.control.stall]
    assert barriers
    for n in barriers:
        report = validator.check(moved(program, function.name, n, n - 1))
        assert not report.ok and report.violations[0].kind == "place"


def test_reports_read_well() -> None:
    data = kernels.softmax_cubin()
    program = Program.parse(data)
    end = next(i.index for i in program.function().instructions if i.base == "EXIT")
    report = validate(data, moved(program, program.function().name, end, end - 2))
    assert not report.ok
    for violation in report.violations:
        assert violation.where.startswith("+0x") and str(violation).startswith(violation.kind)
    assert "legal" in str(validate(data, data))


def test_damaged_candidates_are_judged_not_raised_over() -> None:
    data = kernels.matmul_cubin()
    program = Program.parse(data)
    function = program.function()
    validator = Validator(data)
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(300):
        candidate = bytearray(data)
        for _ in range(int(rng.integers(1, 5))):
            at = function.text_offset + int(rng.integers(16 * len(function)))
            candidate[at] = int(rng.integers(256))
        report = validator.check(bytes(candidate))
        assert report.ok or str(report)
        refused += not report.ok
    assert refused > 250


def test_control_fields_that_no_compiler_emits_are_refused() -> None:
    data = kernels.softmax_cubin()
    program = Program.parse(data)
    function = program.function()
    validator = Validator(data)
    load = next(i for i in function.instructions if i.base == "LDG" and i.control.write_barrier is not None)
    add = next(i for i in function.instructions if i.base == "FADD" and i.control.stall >= 2)
    nop = next(i for i in function.instructions if i.base == "NOP")

    def kinds(index: int, at: int, width: int, value: int) -> set[str]:
        high = [int(word) for word in function.words[:, 1]]
        high[index] = high[index] & ~(((1 << width) - 1) << at) | value << at
        report = validator.check(program.emit(function.name, np.arange(len(high)), np.array(high, np.uint64)))
        return {v.kind for v in report.violations}

    for at, width, value in (
        (WRITE_BARRIER_SHIFT, 3, 0), (WRITE_BARRIER_SHIFT, 3, 6), (READ_BARRIER_SHIFT, 3, 0),
        (READ_BARRIER_SHIFT, 3, 6), (STALL_SHIFT, 5, 0), (STALL_SHIFT, 5, 16), (STALL_SHIFT, 5, 28),
        (62, 2, 1), (62, 2, 2),
    ):  # fmt: skip
        assert "encoding" in kinds(add.index, at, width, value), (at, value)
    assert "encoding" in kinds(load.index, WRITE_BARRIER_SHIFT, 3, 6)
    assert "encoding" in kinds(load.index, READ_BARRIER_SHIFT, 3, 6)
    assert "encoding" in kinds(nop.index, WAIT_SHIFT, 6, 1)


def test_fences_keep_their_stalls_and_copies_their_scoreboards() -> None:
    data = kernels.matmul_cubin()
    program = Program.parse(data)
    function, validator = program.function(), Validator(data)
    fence = validator.analysis.fence
    tried = Counter[str]()
    for i in function.instructions:
        stall, named = i.control.stall, i.base in ("LDGDEPBAR", "DEPBAR")
        lower = edited(program, function.name, i.index, stall=stall - 1) if stall > 1 else data
        other = edited(
            program, function.name, i.index, write_barrier=4 if i.control.write_barrier != 4 else 5
        )
        for what, candidate, holds in (
            ("than in the original", lower, fence[i.index] and stall > 1),
            ("names a scoreboard in its operands", other, named),
        ):
            if holds:
                tried[what] += 1
                assert any(what in v.message for v in validator.check(candidate).violations), f"{i}: {what}"
    assert min(tried.values()) > 3 and len(tried) == 2, tried


def test_each_offset_record_follows_its_instruction() -> None:
    data = kernels.softmax_cubin()
    slots, validator = Program.parse(data).function().offset_slots, Validator(data)
    assert len(slots) > 4
    for at, offset in slots:
        stale = bytearray(data)
        struct.pack_into("<I", stale, at, offset + 16)
        assert "info" in {v.kind for v in validator.check(bytes(stale)).violations}


def test_a_product_keeps_its_distance_to_the_arrival_before_it() -> None:
    """What is between them stalls for less, what is ahead of both for more: nothing else comes closer."""
    data = kernels.matmul_cubin()
    program = Program.parse(data)
    function, validator = program.function(), Validator(data)
    code = function.instructions
    arrival = next(i.index for i in code if i.opcode == "WARPGROUP.ARRIVE")
    product = next(i.index for i in code[arrival:] if i.base == "HGMMA")
    last, early = code[product - 1], code[arrival - 1]
    assert product - arrival > 1 and last.control.stall > 4
    for cycles, wrong in ((6, set()), (5, {"spacing"})):
        high = function.words[:, 1].copy()
        between = sum(i.control.stall for i in code[arrival : product - 1])
        for i, stall in ((last, cycles - between), (early, early.control.stall + 6)):
            high[i.index] = np.uint64(replace(i.control, stall=stall).encode(i.high))
        report = validator.check(program.emit(function.name, np.arange(len(code)), high))
        assert {v.kind for v in report.violations} == wrong, str(report)


def test_the_wait_for_a_product_keeps_its_distance_to_it() -> None:
    """Sooner it may not count the product: 3 cycles are the least in all compiled code, which pads them."""
    data = kernels.matmul_cubin()
    program = Program.parse(data)
    function, validator = program.function(), Validator(data)
    code = function.instructions
    last = next(i for i in code if "gsb0" in i.operands and code[i.index + 1].opcode == "WARPGROUP.DEPBAR.LE")
    assert last.base == "HGMMA" and last.control.stall == 3
    for stall in (1, 2):
        report = validator.check(edited(program, function.name, last.index, stall=stall))
        assert {v.kind for v in report.violations} == {"spacing"}, str(report)
    assert validator.check(edited(program, function.name, last.index, stall=4)).ok
