"""Prefix sums whose registers a queue keeps apart: SHFL behind STG, SHFL and LDS behind a wide LDS."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from sassafras.core import Kernel
from sassafras.sass import Instruction, Program
from sassafras.schedule import ScheduleSpace
from sassafras.validate import Validator
from sassafras.validate.dependences import WAW
from tests.kernels import cumsum_cubin

#: (rows, columns, warps, type), who reads or loads late, who overwrites it
CASES = {
    "an address": ((4, 512, 1, "fp32"), "STG", "SHFL"),
    "an unused word": ((8, 1024, 4, "bf16"), "LDS", "SHFL"),
}


@lru_cache
def kernel(case: str) -> Kernel:
    rows, columns, warps, kind = CASES[case][0]
    return Kernel(cumsum_cubin(rows, columns, warps, kind), "cumsum", "sm_90a", 32 * warps, 0)


def left_to_the_queue(code: tuple[Instruction, ...], first: str, second: str) -> list[tuple[int, int]]:
    """Pairs of which the second overwrites what the first reads (STG) or loads (LDS), with nobody in between
    who waits for a scoreboard that either, or what stands between, sets."""
    found = []
    for i in code:
        if i.base != first:
            continue
        late = {r for r in (i.writes if first == "LDS" else i.reads) if r < 255}
        raised = 0
        for j in code[i.index :]:
            if j.control.wait_mask & raised or j.base == "BAR":
                break
            if j is not i and late & j.writes:
                if j.base == second:
                    found.append((i.index, j.index))
                break
            for barrier in (j.control.write_barrier, j.control.read_barrier):
                raised |= 0 if barrier is None else 1 << barrier
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_ptxas_leaves_to_a_queue_is_accepted_in_its_order_alone(case: str) -> None:
    made, (_, first, second) = kernel(case), CASES[case]
    program = Program.parse(made.cubin)
    code = program.function().instructions
    pairs = left_to_the_queue(code, first, second)
    assert pairs, "the compiler no longer does what this test is about"
    validator = Validator(made.cubin)
    assert validator.check(made.cubin).ok, str(validator.check(made.cubin))
    for i, j in pairs:
        order = np.arange(len(code))
        order[i : j + 1] = [j, *range(i, j)]
        report = validator.check(program.emit(made.name, order))
        assert "order" in {v.kind for v in report.violations}, str(report)


@pytest.mark.parametrize("control", ["keep", "regenerate"])
@pytest.mark.parametrize("case", CASES)
def test_schedules_of_such_a_kernel_are_proved(case: str, control: str) -> None:
    made = kernel(case)
    space = ScheduleSpace(made, control=control)
    validator, rng = Validator(made.cubin), np.random.default_rng(0)
    state = space.tightened(space.start()) if control == "regenerate" else space.start()
    for _ in range(40):
        move = space.sample(state, rng)
        assert move is not None
        state = space.apply(state, move)
        report = validator.check(space.emit(state))
        assert report.ok, str(report)


def test_two_loads_whose_results_meet_keep_four_cycles() -> None:
    made = kernel("an unused word")
    a = Validator(made.cubin).analysis
    rows = [
        (pair, need, known)
        for pair, need, known in zip(a.inside.pairs, a.inside.need.tolist(), a.inside.known, strict=True)
        if a.code[pair.first].base == "LDS" and a.code[pair.second].base in ("LDS", "SHFL")
        if pair.kind == WAW
    ]
    assert rows and {(need, known) for _, need, known in rows} == {(4, True)}
