"""The validator benchmark, scaled down: planted violations are caught, legal permutations accepted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import Kernel
from sassafras.sass import ARCHS, Program
from sassafras.sass.latency import LatencyTable, opcode_key, slots
from sassafras.schedule import ScheduleSpace
from sassafras.schedule.spaces import space_of
from sassafras.targets import load
from sassafras.validate import Validator
from tests import kernels

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted import SOURCES, Subject, names, permutations, places, scoreboards, swaps, timing
from planted.subject import STALL, put
from planted.swaps import pairs


def suite(name: str) -> bytes:
    workload = load(f"suite:{name}")
    return workload.build(workload.case(), "sm_90a").cubin


CASES = {
    "softmax": lambda: kernels.softmax_cubin(),
    "scalar softmax": lambda: kernels.softmax_cubin(aligned=False, block=2048),
    "HGMMA": lambda: kernels.matmul_cubin(),
    "HMMA": lambda: kernels.matmul_cubin(bm=16, bn=64, bk=32),
    "attention": lambda: suite("attention"),
    "sm_80": lambda: kernels.matmul_cubin("sm_80"),
    "scan": lambda: kernels.cumsum_cubin(4, 512, 1, "fp32"),
    "scan of four warps": lambda: kernels.cumsum_cubin(8, 1024, 4, "bf16"),
}
#: classes that every one of these kernels must provide, so that a source that plants nothing is noticed
EVERYWHERE = {
    "raw register", "war register", "memory across BAR", "BRA moved", "EXIT moved",
    "wait for result dropped", "barrier of result dropped", "barrier of result retargeted",
    "stall below a register's latency", "stall below war", "stall of control flow and fences",
    "reuse flag that keeps a stale operand", "reuse flag with a new successor",
    "stall and yield that cannot be encoded",
    "instruction lost", "instruction replaced by another", "bit of an instruction flipped",
    ".nv.info offset stale", "byte outside the kernel's code changed",
}  # fmt: skip
SCALAR = {"raw of a guard", "stall below an address's latency", "stall below the guard's latency",
          "waiter one cycle behind its setter"}  # fmt: skip
COPIES = {
    "LDGSTS across LDGDEPBAR",
    "LDGDEPBAR too soon for what it counts",
    "raw of a carry",
    "scoreboard that DEPBAR names",
    "war predicate",
}
OPERANDS = {"barrier of operand dropped", "wait for operand dropped"}
WGMMA = {
    "HGMMA above WARPGROUP.ARRIVE",
    "WARPGROUP too soon for what it counts",
    "raw of a matrix descriptor",
    "raw uniform register",
}
#: and the ones that each provides besides
PROVIDES = {
    "softmax": SCALAR | {"raw of a wide operand's other registers"},
    "scalar softmax": SCALAR | OPERANDS | {"raw through P2R's mask"},
    "HGMMA": COPIES | OPERANDS | WGMMA,
    "HMMA": COPIES | {"raw uniform register", "waiter one cycle behind its setter"},
    "attention": COPIES | OPERANDS | WGMMA | {"accumulator read before its WARPGROUP.DEPBAR"},
    "scan": OPERANDS | {"what overwrites a queued operand moved above it"},
    "scan of four warps": {"what overwrites a queued result moved above it"},
    "sm_80": COPIES | OPERANDS | {"raw of a wide operand's other registers"},
}


LACKS = {"scan": {"memory across BAR"}}  # one warp needs none


@pytest.mark.parametrize("case", CASES)
def test_planted_violations_are_caught_and_legal_permutations_accepted(case: str) -> None:
    data = CASES[case]()
    program = Program.parse(data)
    subject = Subject(program, program.function().name)
    validator = Validator(data)
    rng = np.random.default_rng(7)
    planted = []
    for source in SOURCES:
        for mutant in source(subject, rng, 12):
            planted.append(mutant.kind)
            report = validator.check(mutant.cubin)
            assert not report.ok, f"{mutant.kind}: {mutant.note}"
    missing = (EVERYWHERE | PROVIDES[case]) - LACKS.get(case, set()) - set(planted)
    assert not missing
    assert len(planted) > 150
    judged = [validator.check(cubin) for _, cubin in permutations(subject, rng, 40)]
    assert len(judged) >= 10 or case in ("HGMMA", "attention")
    assert sum(r.ok for r in judged) >= 0.95 * len(judged), next(str(r) for r in judged if not r.ok)


def regenerated(data: bytes) -> bytes:
    """The same order under scoreboards, waits and stall counts from scratch."""
    program = Program.parse(data)
    function = program.function()
    kernel = Kernel(data, function.name, function.arch, 128)
    space = ScheduleSpace(kernel, program, arch_by_name=True, control="regenerate")
    return space.emit(space.tightened(space.start()))


@pytest.mark.parametrize("case", CASES)
def test_violations_planted_in_regenerated_control_codes_are_caught(case: str) -> None:
    data = CASES[case]()
    validator = Validator(data)
    changed = regenerated(data)
    assert changed != data and validator.check(changed).ok
    subject = Subject(Program.parse(changed), Program.parse(data).function().name)
    rng = np.random.default_rng(3)
    planted: list[str] = []
    for source in (scoreboards, timing, swaps, places):
        for mutant in source(subject, rng, 12):
            planted.append(mutant.kind)
            assert not validator.check(mutant.cubin).ok, f"{mutant.kind}: {mutant.note}"
    wanted = {"wait for result dropped", "barrier of result dropped", "barrier of result retargeted"}
    assert wanted | {"stall below a register's latency"} <= set(planted)
    assert len(planted) > 60


RENAMED = {
    "read under its old name", "written under its old name", "in a name that is written before it is read",
    "in a name whose value is still needed",
}  # fmt: skip


@pytest.mark.parametrize("case", ["scalar softmax"])
def test_no_copy_under_other_names_is_proved_that_is_another_program(case: str) -> None:
    data = CASES[case]()
    program = Program.parse(data)
    subject = Subject(program, program.function().name)
    validator = Validator(data)
    planted = []
    for mutant in names(subject, np.random.default_rng(11), 1):
        planted.append(mutant.kind)
        report = validator.via(mutant.cubin)
        assert not report.ok, f"{mutant.kind}: {mutant.note}"
        assert report.violations[0].kind == "renaming", str(report)  # for the right reason
    assert {f"renaming: register {what}" for what in RENAMED} <= set(planted)
    assert validator.check(data).ok and not validator.check(mutant.cubin).ok


def test_violations_planted_in_a_renamed_copys_schedule_are_caught() -> None:
    workload = load("suite:rotary")
    kernel = workload.build(workload.case(), "sm_90a")
    space = space_of("renaming", Validator)(kernel)
    validator = Validator(kernel.cubin)
    assert space.via and validator.via(space.via[0]).ok
    subject = Subject(Program.parse(space.via[0]), kernel.name)
    rng = np.random.default_rng(5)
    planted: list[str] = []
    for source in (scoreboards, timing, swaps, places):
        for mutant in source(subject, rng, 6):
            planted.append(mutant.kind)
            assert not validator.check(mutant.cubin).ok, f"{mutant.kind}: {mutant.note}"
    assert {"wait for result dropped", "raw register", "stall below a register's latency"} <= set(planted)


def test_what_goes_elsewhere_does_not_vouch() -> None:
    """Seen on an H200: LDSM's result was back before a load issued ahead of it had read its address."""
    cubin = suite("gemv_int4")
    program = Program.parse(cubin)
    name = next(iter(program.functions))
    validator = Validator(cubin, name)
    planted = scoreboards(Subject(program, name), np.random.default_rng(0), 9)
    found = [m for m in planted if "another queue" in m.kind]
    assert {m.kind.split()[0] for m in found} == {"LDG", "S2R"}
    assert not [m.note for m in found if validator.check(m.cubin).ok]


def shortened(s: Subject, run: list[int], cycles: int) -> bytes | None:
    """The cubin in which the stalls of these instructions add up to so many cycles, if they can."""
    high = list(s.high)
    excess = sum(max(1, s.code[n].control.stall) for n in run) - cycles
    for n in run:
        stall = max(1, s.code[n].control.stall)
        if excess > 0 and not s.still[n] and stall < 12:
            cut = min(excess, stall - 1)
            excess -= cut
            high[n] = put(high[n], STALL, 4, stall - cut)
    return None if excess else s.emit(s.identity(), high)


@pytest.mark.parametrize(("case", "least"), [("scalar softmax", 4), ("sm_80", 5)])
def test_where_no_distance_is_known_the_compilers_stays(case: str, least: int) -> None:
    data = CASES[case]()
    program = Program.parse(data)
    s, validator = Subject(program, program.function().name), Validator(data)
    table, tried = LatencyTable.load(ARCHS[program.arch].table), 0
    for i, j, register in pairs(s, np.random.default_rng(2)):
        run, a, b = range(i, j), s.code[i], s.code[j]
        cycles = sum(max(1, s.code[n].control.stall) for n in run)
        keys = [
            ("raw", opcode_key(a.opcode), x.slot, opcode_key(b.opcode), y.slot)
            for x in slots(a) for y in slots(b)
            if x.register == y.register == register and x.write and not y.write
        ]  # fmt: skip
        if not keys or not s.fixed(i) or any(table.distance(*key) for key in keys) or tried >= least:
            continue
        if max(table.bound(*key) or 64 for key in keys) >= cycles:
            candidate = shortened(s, list(run), cycles - 1)
            if candidate is not None:
                tried += 1
                found = validator.check(candidate).violations
                assert any("the original's" in v.message for v in found), f"{a.text} / {b.text}: {found}"
    assert tried >= least


def test_memory_keeps_its_distance_to_a_barrier() -> None:
    tried = 0
    for case in ("softmax", "HMMA", "sm_80", "scan of four warps"):
        data = CASES[case]()
        s, validator = Subject(Program.parse(data), Program.parse(data).function().name), Validator(data)
        for start, end in s.blocks:
            for bar in (n for n in range(start, end) if s.code[n].base == "BAR"):
                accesses = (n for n in range(bar + 1, end) if s.touches(n) and s.code[n].guard != "!PT")
                first = next(accesses, bar)
                candidate = shortened(s, list(range(bar, first)), 5) if first > bar else None
                if candidate is not None:
                    tried += 1
                    kinds = {v.kind for v in validator.check(candidate).violations}
                    assert "spacing" in kinds, f"{case}: {s.code[first].text}"
    assert tried


def test_distances_are_kept_over_the_edges_of_blocks() -> None:
    """Known ones, and the compiler's where none is known."""
    tried = {True: 0, False: 0}
    for data in (suite("gemv_int4"), CASES["scalar softmax"](), CASES["sm_80"]()):
        program = Program.parse(data)
        s, validator = Subject(program, program.function().name), Validator(data)
        table = LatencyTable.load(ARCHS[program.arch].table)
        for (start, end), block in zip(s.blocks, s.function.blocks, strict=True):
            last = {r: i for i in range(start, end) for r in s.code[i].writes if not s.still[i]}
            for first, stop in (s.blocks[m] for m in block.successors):
                for j in range(first, min(stop, first + 6)):
                    for i in {last.pop(r) for r in s.code[j].reads if r in last}:
                        a, b = s.code[i], s.code[j]
                        keys = [
                            ("raw", opcode_key(a.opcode), x.slot, opcode_key(b.opcode), y.slot)
                            for x in slots(a) for y in slots(b)
                            if x.register == y.register and x.write and not y.write
                        ]  # fmt: skip
                        run = [*range(i, end), *range(first, j)]
                        cycles = sum(max(1, s.code[n].control.stall) for n in run)
                        known = [found.cycles for key in keys if (found := table.distance(*key))]
                        if not s.fixed(i) or (
                            not known and (cycles > 64 or any(table.bound(*k) for k in keys))
                        ):
                            continue
                        if (
                            candidate := shortened(s, run, (max(known) if known else cycles) - 1)
                        ) is not None:
                            tried[bool(known)] += 1
                            assert not validator.check(candidate).ok, f"{a.text} / {b.text}"
    assert min(tried.values()) > 1, tried
