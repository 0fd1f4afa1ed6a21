"""`audit` on real cubins: compiled code is clean, and what is planted is found without the original."""

from __future__ import annotations

import struct
import subprocess
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest

from sassafras.gemm.configs.registry import parse_instance
from sassafras.sass import Instruction, Program
from sassafras.sass.control import STALL_SHIFT, WAIT_SHIFT
from sassafras.sass.tools import find
from sassafras.validate import Validator
from sassafras.validate.audit import RULES, Auditor, KernelAudit, audit
from sassafras.validate.slicing import Slice
from tests import kernels
from tests.gemm.together import together

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REPRODUCERS = BENCHMARKS / "reproducers"
SCAN = r"""
extern "C" __global__ void __launch_bounds__(256) sums(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  for (int d = 1; d < 256; d *= 2) {
    __syncthreads();
    float x = t >= d ? s[t - d] : 0.f;
    __syncthreads();
    s[t] += x;
  }
  out[blockIdx.x * 256 + t] = s[t];
}
"""
SPILLED = r"""
#include <cuda_pipeline.h>
extern "C" __global__ void __launch_bounds__(256, 8) spilled(float* out, const float* in, int n) {
  __shared__ __align__(16) float s[2][1024];
  int t = threadIdx.x;
  int at = (((t * 37) ^ (t >> 3)) * 29 ^ (t << 2)) & 1020;
  float v[48];
  for (int k = 0; k < 48; ++k) v[k] = in[t + 256 * k];
  __pipeline_memcpy_async(&s[0][at], &in[4 * t], 16);
  __pipeline_commit();
  __syncthreads();
  for (int k = 0; k < n; ++k) for (int j = 0; j < 48; ++j) v[j] = v[j] * v[(j + 1) % 48] + 1.f;
  __pipeline_wait_prior(0);
  __syncthreads();
  float x = s[0][at ^ 4];
  for (int k = 0; k < 48; ++k) out[t + 256 * k] = v[k] + x;
}
"""


@lru_cache
def code_of(cubin: bytes) -> tuple[int, tuple[Instruction, ...]]:
    """File offset of the only kernel's code, and its instructions."""
    function = Program.parse(cubin).function()
    return function.text_offset, function.instructions


def with_word(cubin: bytes, i: Instruction, low: int, high: int) -> bytes:
    """The cubin with another word in the place of an instruction."""
    start, _ = code_of(cubin)
    copy = bytearray(cubin)
    copy[start + i.offset : start + i.offset + 16] = low.to_bytes(8, "little") + high.to_bytes(8, "little")
    return bytes(copy)


def kinds(found: KernelAudit) -> set[str]:
    return {violation.kind for violation in found.hazards}


def without(cubin: bytes, i: Instruction) -> bytes:
    """The cubin with a NOP of the same stall and yield in the place of an instruction."""
    return with_word(cubin, i, 0x7918, i.high & 0x1F << STALL_SHIFT | 0b111111 << 46)


@pytest.mark.parametrize("cubin", [kernels.matmul_cubin, kernels.softmax_cubin], ids=["matmul", "softmax"])
def test_compiled_code_has_no_hazard(cubin) -> None:
    found = audit(cubin())
    assert not found.hazards and not found.unsupported
    assert found.instructions > 100


def test_a_wait_that_is_needed_is_missed() -> None:
    cubin = kernels.softmax_cubin()
    _, code = code_of(cubin)
    loads = {i.control.write_barrier for i in code if i.base == "LDG"}
    waiter = next(
        i for i in code if i.base.startswith("FM") and any(i.control.wait_mask >> s & 1 for s in loads)
    )
    found = audit(with_word(cubin, waiter, waiter.low, waiter.high & ~(0x3F << WAIT_SHIFT)))
    assert kinds(found) == {"scoreboard"}
    assert any("result of" in v.message and "LDG" in v.message for v in found.hazards)


def test_a_wait_that_nothing_needs_is_surplus() -> None:
    cubin = kernels.softmax_cubin()
    _, code = code_of(cubin)
    exit_ = next(n for n, i in enumerate(code) if i.base == "EXIT")
    idle = next(
        i for i in reversed(code[:exit_]) if not i.control.wait_mask and i.base in ("FMUL", "FADD", "FMNMX")
    )
    before = audit(cubin)
    after = audit(with_word(cubin, idle, idle.low, idle.high | 0x3F << WAIT_SHIFT))
    assert not after.hazards
    new = {str(v) for v in after.surplus} - {str(v) for v in before.surplus}
    assert any(idle.text in text for text in new)


def test_a_stall_that_is_too_short() -> None:
    cubin = kernels.softmax_cubin()
    _, code = code_of(cubin)
    pair = next(
        (a, b)
        for a, b in pairwise(code)
        if a.base == b.base == "FMNMX" and a.writes & b.reads and a.control.stall == 4
    )
    short = pair[0].high & ~(0x1F << STALL_SHIFT) | 0x11 << STALL_SHIFT
    found = audit(with_word(cubin, pair[0], pair[0].low, short))
    assert "raw" in kinds(found)
    assert f"+{pair[1].offset:#x}" in next(v.where for v in found.hazards if v.kind == "raw")


def test_a_uniform_load_over_a_result_that_comes_later() -> None:
    """ULDC's value is there before UIADD3's, 6 cycles behind which it may stand: an H200 lost it at 5."""
    cubin = kernels.matmul_cubin()
    _, code = code_of(cubin)
    results, loads = ("UIADD3", "UIMAD", "ULEA", "USHF", "ULOP3"), ("ULDC", "UMOV")
    flagged: dict[int, list[bool]] = {}  # by distance
    for n, first in enumerate(code):
        if first.base not in results or "UP" in first.operands[0]:
            continue
        cycles = first.control.stall
        for second in code[n + 1 : n + 6]:
            if cycles >= 6 or set(first.writes) & {*second.reads, *second.writes}:
                break
            if second.opcode in loads:
                register = int(first.operands[0].removeprefix("UR"))
                planted = with_word(cubin, second, second.low & ~(0x3F << 16) | register << 16, second.high)
                found = [v for v in audit(planted).hazards if v.kind == "waw"]
                told = any(f"{cycles} cycles after {first.base}" in v.message for v in found)
                flagged.setdefault(cycles, []).append(told)
            cycles += second.control.stall
    assert 5 in flagged and all(all(told) for told in flagged.values())


def test_weaker_waits_for_products_and_copies() -> None:
    cubin = kernels.matmul_cubin()
    _, code = code_of(cubin)
    copies = [i for i in code if i.opcode == "DEPBAR.LE"]
    products = [i for i in code if i.opcode == "WARPGROUP.DEPBAR.LE"]
    assert copies and products
    in_loop = next(i for i in copies if i.operands[1] != "0x0")
    assert "copy" in kinds(audit(with_word(cubin, in_loop, in_loop.low + (1 << 38), in_loop.high)))
    assert "copy" in kinds(audit(without(cubin, in_loop)))
    last = products[-1]
    assert "wgmma" in kinds(audit(with_word(cubin, last, last.low, last.high | 1 << 8)))
    assert "wgmma" in kinds(audit(without(cubin, last)))


RINGS = (
    "cs_tn_64x32_s8q1",
    "cs_tn_64x64_s12q1p",  # no thread of it accesses shared memory
    "ws_tn_128x128_pp2s6b2c1x1",
    "ws_nn_192x128_pp2s4b3c1x2",
    "ws_tn_128x160_co2s5b2c2x1l3f",  # a tile is stored between the product and its wait
    "ce_tn_64x64_s6q2e",  # its ring begins at the least of the stages and an unknown length
    "ws_nn_128x256_co2s4b2c1x1l3",  # a branch that is unknown has the wait for all products on one way
)


#: one of each family
STRONGER = (RINGS[0], RINGS[2], RINGS[5])


@lru_cache
def rings(shared: Path) -> tuple[Program, Program, Program]:
    """The kernels, with a group more in flight behind the wait of each, and with one less."""
    made = together(shared, map(parse_instance, RINGS))
    copies = bytearray(made.cubin.data), bytearray(made.cubin.data)
    for name in RINGS:
        function = made.function(name)
        (wait,) = (i for i in function.instructions if "DEPBAR" in i.opcode and i.operands == ("gsb0", "0x1"))
        for copy, more in zip(copies, (1, -1), strict=True):
            struct.pack_into("<Q", copy, function.text_offset + wait.offset + 8, wait.high + (more << 8))
    return made, Program.parse(bytes(copies[0])), Program.parse(bytes(copies[1]))


@pytest.mark.parametrize("name", RINGS)
def test_a_slot_is_given_back_behind_the_wait_for_its_products(name: str, shared: Path) -> None:
    made, weak, strong = rings(shared)

    def report(program: Program) -> KernelAudit:
        return Auditor(Validator(bytes(program.cubin.data), name, program=program)).report()

    found, weaker = report(made), report(weak)
    assert not found.hazards and not found.unsupported
    assert kinds(weaker) == {"slot"}
    assert "before the wait for the group of HGMMA" in weaker.hazards[0].message
    if name in STRONGER:  # what waits for more has no more hazards
        assert not report(strong).hazards


def test_copies_into_a_ring_whose_stage_is_a_remainder() -> None:
    cubin = kernels.nvcc_cubin((BENCHMARKS / "corpus" / "cuda" / "mma_cp_async.cu").read_text())
    if cubin is None:
        pytest.skip("needs nvcc")
    assert not audit(cubin).hazards
    wait = next(i for i in code_of(cubin)[1] if i.opcode == "DEPBAR.LE")
    assert wait.operands == ("SB0", "0x1")
    assert "copy" in kinds(audit(with_word(cubin, wait, wait.low + (1 << 38), wait.high)))
    assert not audit(with_word(cubin, wait, wait.low - (1 << 38), wait.high)).hazards


def test_a_copy_whose_address_is_spilled() -> None:
    cubin = kernels.nvcc_cubin(SPILLED, "sm_80")
    if cubin is None:
        pytest.skip("needs nvcc")
    code = code_of(cubin)[1]
    (read,) = [i for i in code if i.base == "LDS"]
    address = read.operands[1].strip("[]")
    assert any(i.base == "LDL" and i.operands[0] == address for i in code)
    assert not audit(cubin).hazards
    (wait,) = [i for i in code if i.opcode == "DEPBAR.LE"]
    found = audit(with_word(cubin, wait, wait.low + (1 << 38), wait.high)).hazards
    assert {v.kind for v in found} == {"copy"} and f"+{read.offset:#x}" in found[0].where


def test_a_walk_takes_what_addresses_and_branches_depend_on() -> None:
    cubin = kernels.nvcc_cubin(SCAN)
    if cubin is None:
        pytest.skip("needs nvcc")
    v = Validator(cubin)
    a = v.analysis
    part = Slice(a.code, a.operands, a.effects, a.blocks)
    taken = {n for block in part.work for n in block}
    assert all(n in taken for n, i in enumerate(a.code) if i.base in ("LDS", "STS", "BAR"))
    assert not any(i.base in ("FADD", "STG", "LDG") for n, i in enumerate(a.code) if n in taken)


def test_a_barrier_that_is_missing() -> None:
    cubin = kernels.nvcc_cubin(SCAN)
    if cubin is None:
        pytest.skip("needs nvcc")
    assert not audit(cubin).hazards
    barriers = [i for i in code_of(cubin)[1] if i.base == "BAR"]
    assert len(barriers) > 2
    for barrier in barriers[:2]:
        assert "barrier" in kinds(audit(without(cubin, barrier)))


@pytest.mark.parametrize(
    ("name", "kind", "message", "right"),
    [
        ("triton-9433", "wgmma", "is overwritten before the wait for its group", "99"),
        ("triton-11781", "wgmma", "is overwritten before the wait for its group", "13.3"),
        ("triton-11660", "undefined", "reads UR0, which nothing writes", "13.4"),
    ],
)
def test_published_miscompilations_are_found(
    name: str, kind: str, message: str, right: str, tmp_path: Path
) -> None:
    tool = find("ptxas")
    if tool.version >= right:
        pytest.skip(f"ptxas {tool.version} has mended it")
    out = tmp_path / "out.cubin"
    subprocess.run([tool.path, "-arch=sm_90a", REPRODUCERS / f"{name}.ptx", "-o", out], check=True)
    found = audit(out.read_bytes())
    assert kinds(found) == {kind}
    assert message in found.hazards[0].message


def test_a_lost_constant_is_no_hazard(tmp_path: Path) -> None:
    """Of this miscompilation the audit says nothing: releases differ in what they compute."""
    tool, out = find("ptxas"), tmp_path / "out.cubin"
    subprocess.run([tool.path, "-arch=sm_90a", REPRODUCERS / "triton-11581.ptx", "-o", out], check=True)
    assert not audit(out.read_bytes()).hazards
    (sums,) = [i for i in code_of(out.read_bytes())[1] if i.base == "VIADD"]
    assert int(sums.operands[2], 16) == (1 if tool.version >= "13.2" else 0)


def test_every_kind_of_finding_has_its_rule() -> None:
    named = "raw war waw scoreboard wgmma copy barrier slot undefined surplus"
    assert set(RULES) >= set(named.split())
    assert all(rule[0].islower() and not rule.endswith(".") for rule in RULES.values())
