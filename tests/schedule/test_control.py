"""Control codes from scratch: legal for the compiler's order and any other, no slower on the model."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import Candidate, Kernel, SassafrasError
from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass.tools import find
from sassafras.schedule import ScheduleSpace
from sassafras.schedule.control import regenerate
from sassafras.schedule.pipes import busy, holds, plain, uses
from sassafras.schedule.state import REORDER, Move, ScheduleState
from sassafras.targets import load
from sassafras.timing_model import ModelDevice
from sassafras.validate import Validator
from tests import kernels

CUBINS = {
    "softmax": lambda: kernels.softmax_cubin(),
    "scalar softmax": lambda: kernels.softmax_cubin(block=2048, aligned=False),
    "matmul": lambda: kernels.matmul_cubin(),
    "hmma": lambda: kernels.matmul_cubin(bm=32, bn=32),
    "sm_80 matmul": lambda: kernels.matmul_cubin("sm_80"),
}


@lru_cache
def space(name: str) -> ScheduleSpace:
    data = CUBINS[name]()
    function = Program.parse(data).function()
    kernel = Kernel(data, function.name, function.arch, 128)
    return ScheduleSpace(kernel, arch_by_name=True, control="regenerate")


@pytest.mark.parametrize("name", CUBINS)
def test_start_is_the_baseline_and_its_order_under_new_codes_is_legal(name: str) -> None:
    s = space(name)
    assert s.emit(s.start()) == CUBINS[name]()
    new = s.emit(s.tightened(s.start()))
    report = Validator(CUBINS[name]()).check(new)
    assert report.ok, report.violations[0]
    before, after = (Program.parse(x).function().instructions for x in (CUBINS[name](), new))
    assert [i.text for i in before] == [i.text for i in after]
    differ = [(a, b) for a, b in zip(before, after, strict=True) if a.control != b.control]
    assert differ


@pytest.mark.parametrize("name", ["softmax", "matmul", "hmma"])
def test_stalls_leave_pipes_their_time_and_yield_bits_follow_stalls(name: str) -> None:
    s = space(name)
    code = Program.parse(s.emit(s.tightened(s.start()))).function()
    for b in code.blocks:
        for i, after in pairwise(code.instructions[b.start : b.end]):
            if busy(i) & uses(after):
                original = s.function.instructions[i.index].control.stall
                assert i.control.stall >= min(holds(i), max(original, 1)), i.text
            assert i.control.stall != 1 or i.control.yield_hint, i.text
            if plain(i) and i.control.stall > 2 and not i.control.reuse:
                assert not i.control.yield_hint, i.text


def test_what_the_compiler_shares_stays_shared_in_its_order() -> None:
    for name in ("softmax", "matmul", "hmma"):
        s = space(name)
        new = Program.parse(s.emit(s.tightened(s.start()))).function().instructions
        for before, after in zip(s.function.instructions, new, strict=True):
            if after.control.write_barrier is not None:
                assert after.control.write_barrier == before.control.write_barrier, after.text


@pytest.mark.parametrize("name", CUBINS)
def test_random_walks_are_approved(name: str) -> None:
    s, validator = space(name), Validator(CUBINS[name]())
    for seed in range(1):
        rng = np.random.default_rng(seed)
        state = s.start()
        for _ in range(60):
            move = s.sample(state, rng)
            assert move is not None
            state = s.apply(state, move)
            report = validator.check(s.emit(state))
            assert report.ok, f"{move} at depth {state.depth}: {report.violations[0]}"
    assert s.emit(state) == s.emit(state)


def test_nothing_is_waited_for_directly_before_what_cannot_wait() -> None:
    """A store moved to just before MEMBAR, which must not pass it pending and can carry no wait itself."""
    workload = load("suite:batched_gemm/2x500x509x2047")
    kernel = workload.build(workload.case("2x500x509x2047"), "sm_90a")
    s = ScheduleSpace(kernel, control="regenerate")
    start, code = s.start(), s.function.instructions
    fence = next(i.index for i in code if i.base == "MEMBAR")
    refused = 0
    for at in range(fence - 16, fence - 1):
        if code[at].base != "STS":
            continue
        order = start.order.copy()
        order[at:fence] = np.roll(order[at:fence], -1)  # `at` now stands directly before the fence
        made = regenerate(s.control, order, start.stall)
        if not made.placed:
            refused += 1
            with pytest.raises(SassafrasError, match="is not legal here"):
                s.apply(start, Move(REORDER, at, fence - 1))
            assert s.violation(ScheduleState(order, np.full_like(start.stall, 15), 1))
    assert refused > 2


@pytest.mark.parametrize("name", ("two kernels", "reduce_block"))
def test_compiled_cuda_is_approved(name: str) -> None:
    folder = Path(__file__).parents[2] / "benchmarks" / "corpus" / "cuda"
    source = kernels.TWO_KERNELS if name == "two kernels" else (folder / f"{name}.cu").read_text()
    data = kernels.nvcc_cubin(source)
    if data is None:
        pytest.skip("no nvcc")
    program = Program.parse(data)
    for entry, function in program.functions.items():
        s = ScheduleSpace(Kernel(data, entry, function.arch, 256), program, control="regenerate")
        validator = Validator(data, entry)
        state = s.tightened(s.start())
        assert validator.check(s.emit(state)).ok
        rng = np.random.default_rng(1)
        for _ in range(30):
            move = s.sample(state, rng)
            assert move is not None
            state = s.apply(state, move)
            report = validator.check(s.emit(state))
            assert report.ok, f"{entry}, {move}: {report.violations[0]}"


@pytest.mark.parametrize("name", ("softmax", "rotary"))
def test_new_codes_cost_less_than_one_percent_on_the_model(name: str) -> None:
    workload = load(f"suite:{name}")
    kernel = workload.build(workload.case(), "sm_90a")
    device = ModelDevice("sm_90a")
    device.open(workload, workload.case(), kernel)
    s = ScheduleSpace(kernel, control="regenerate")
    tight = device.run(Candidate(kernel.with_cubin(s.emit(s.tightened(s.start())))))
    assert tight.modelled_ratio is not None and tight.modelled_ratio > 0.99


def test_more_moves_are_legal_without_the_compilers_waits() -> None:
    kept = ScheduleSpace(space("matmul").kernel)
    free = space("matmul")
    assert len(free.graph.order) < len(kept.graph.order)
    from sassafras.schedule.moves_jit import reach, working

    start = free.start()
    w = working(start.order, start.stall)
    room = [sum(hi - lo for lo, hi in (reach(s.tables, w, int(p)) for p in s.movable)) for s in (kept, free)]
    assert room[1] > room[0]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(SassafrasError, match="keep or regenerate"):
        ScheduleSpace(space("softmax").kernel, control="both")  # type: ignore[arg-type]


def test_what_waits_for_a_later_operation_of_a_queue_does_not_wait_for_an_earlier_one() -> None:
    """Loops of asynchronous copies: the compiler sets no scoreboard for most of them, as the last vouches."""
    workload = load("suite:gemm_leakyrelu")
    kernel = workload.build(workload.case(), "sm_90a")
    s = ScheduleSpace(kernel, control="regenerate")
    new = s.emit(s.tightened(s.start()))
    assert Validator(kernel.cubin).check(new).ok
    before, after = (Program.parse(x).function() for x in (kernel.cubin, new))
    loop = next(b for b in before.blocks if b.index in b.successors and len(range(b.start, b.end)) > 50)
    waits = [
        sum(i.control.wait_mask.bit_count() for i in f.instructions[loop.start : loop.end])
        for f in (before, after)
    ]
    assert waits[1] <= waits[0]
    copies = [i for i in after.instructions if i.base == "LDGSTS"]
    assert sum(i.control.read_barrier is None for i in copies) > len(copies) // 3


def test_what_other_queues_vouch_for_gets_a_scoreboard() -> None:
    """INT4 GEMV: 465 schedules were wrong on an H200 when LDSM vouched for LDG and S2UR for S2R."""
    workload = load("suite:gemv_int4")
    kernel = workload.build(workload.case(), "sm_90a")
    s = ScheduleSpace(kernel, control="regenerate")
    new = Program.parse(s.emit(s.tightened(s.start()))).function()
    assert all(i.control.write_barrier is not None for i in new.instructions if i.base == "S2R")
    assert Validator(kernel.cubin).check(s.emit(s.tightened(s.start()))).ok


def test_a_group_of_copies_that_nothing_waits_for_keeps_its_scoreboard() -> None:
    """A commit whose DEPBAR is missing: all schedules had another scoreboard there, and were refused."""
    ptx = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) {
.shared .align 16 .b8 room[64]; .reg .b64 %p0; .reg .b32 %x<4>;
ld.param.u64 %p0, [p];
ld.global.v4.b32 {%x0, %x1, %x2, %x3}, [%p0];
cp.async.ca.shared.global [room], [%p0], 16;
cp.async.commit_group;
st.global.v4.b32 [%p0+16], {%x3, %x2, %x1, %x0};
ret;
}
"""
    data = assemble(ptx, "sm_90a", str(find("ptxas").path))
    code = Program.parse(data).function("k").instructions
    assert "DEPBAR" not in {i.base for i in code}
    (commit,) = (i for i in code if i.base == "LDGDEPBAR")
    s = ScheduleSpace(Kernel(data, "k", "sm_90a", 32), control="regenerate")
    for state in (s.start(), s.tightened(s.start())):
        made = s.emit(state)
        assert Validator(data).check(made).ok
        (now,) = (i for i in Program.parse(made).function("k").instructions if i.base == "LDGDEPBAR")
        assert now.control.write_barrier == commit.control.write_barrier is not None
