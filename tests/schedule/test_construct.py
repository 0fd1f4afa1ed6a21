"""Schedules built from scratch: in the space, approved by the validator."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from sassafras.api.instruction_costs import informed
from sassafras.core import Kernel
from sassafras.sass import Program
from sassafras.schedule import ScheduleSpace
from sassafras.schedule.spaces import space_of
from sassafras.targets import load
from sassafras.timing_model import ModelDevice
from sassafras.validate import Validator
from tests import kernels

CUBINS = {
    "softmax": lambda: kernels.softmax_cubin(),
    "matmul": lambda: kernels.matmul_cubin(),
    "hmma": lambda: kernels.matmul_cubin(bm=32, bn=32),
}
CONTROL = ("keep", "regenerate")


@lru_cache
def space(name: str, control: Any) -> ScheduleSpace:
    data = CUBINS[name]()
    function = Program.parse(data).function()
    return ScheduleSpace(Kernel(data, function.name, function.arch, 128), control=control)


@lru_cache
def opened(name: str, named: str = "swaps") -> tuple[ModelDevice, Any]:
    """A suite kernel on the timing model, and its space, told the model's costs."""
    workload = load(f"suite:{name}")
    case = workload.case(None)
    kernel = workload.build(case, "sm_90a")
    device = ModelDevice()
    device.open(workload, case, kernel)
    return device, informed(space_of(named, Validator), workload, case)(kernel)


def approved(s: ScheduleSpace, name: str, state: Any) -> None:
    assert s.violation(state) == ""
    report = Validator(CUBINS[name]()).check(s.emit(state))
    assert report.ok, report.violations[0]


@pytest.mark.parametrize("control", CONTROL)
@pytest.mark.parametrize("name", CUBINS)
def test_every_rule_gives_legal_schedules(name: str, control: str) -> None:
    s = space(name, control)
    builder, rng = s.constructor, np.random.default_rng(0)
    assert builder.parts
    made = 0
    for rule, haste in builder.rules.items():
        state = s.start()
        for part in builder.parts:
            priority = builder.priorities(state, part, rule)
            found = builder.construct(state, part, priority, haste, rule)
            state = found or state
            made += found is not None
        approved(s, name, state)
    for part in builder.parts[:2]:
        priority = builder.priorities(s.start(), part, "path")
        mixed = priority + rng.normal(0.0, 20.0, len(priority))
        if (found := builder.construct(s.start(), part, mixed, 1.0, "carried")) is not None:
            approved(s, name, found)
            made += 1
    assert made > 2 * len(builder.parts)


@pytest.mark.parametrize("control", CONTROL)
def test_the_rule_order_keeps_the_order_and_only_lowers_stalls(control: str) -> None:
    s = space("softmax", control)
    builder, start = s.constructor, s.start()
    for part in builder.parts:
        found = builder.construct(start, part, builder.priorities(start, part, "order"), 0.0, "order")
        assert found is not None and (found.order == start.order).all()
        assert int(found.stall.sum()) <= int(start.stall.sum())


def test_random_priorities_give_other_orders_and_the_same_ones_again() -> None:
    s = space("hmma", "keep")
    builder = s.constructor
    part = builder.parts[0]
    seen = set()
    for seed in (1, 2, 1):
        priority = np.random.default_rng(seed).random(len(builder.priorities(s.start(), part, "order")))
        state = builder.construct(s.start(), part, priority, 0.0, "path")
        if state is not None:
            approved(s, "hmma", state)
            seen.add(state.digest)
    assert len(seen) == 2


@pytest.mark.parametrize("named", ["swaps", "control"])
@pytest.mark.parametrize("name", ["gemv_int4", "softmax", "attention"])
def test_the_machine_never_takes_longer_than_the_timing_model(name: str, named: str) -> None:
    """Blocks of one warp in the model's trace: what is expected of them alone is a lower bound."""
    device, s = opened(name, named)
    builder, rng = s.constructor, np.random.default_rng(0)
    first = {int(p): b for b, p in enumerate(s.tables.start)}
    state, seen = s.start(), 0
    for _ in range(3):
        trace = device.trace(s.candidate(state).kernel, 0)
        begin = [k for k, p in enumerate(trace.positions.tolist()) if p in first]
        for k, nxt in itertools.pairwise(begin):
            part = first[int(trace.positions[k])]
            assert builder.cycles(state.order, part) <= int(trace.issue[nxt] - trace.issue[k])
            seen += 1
        for part in builder.parts:
            priority = builder.priorities(state, part, "path")
            noisy = priority + rng.normal(0.0, 0.5 * priority.std(), len(priority))
            state = builder.construct(state, part, noisy, 1.0, "path") or state
    assert seen > 0


def test_list_scheduling_shortens_the_longest_block_that_has_room() -> None:
    _, s = opened("gemv_int4")
    builder, start = s.constructor, s.start()
    part = builder.parts[0]
    found = builder.construct(start, part, builder.priorities(start, part, "path"), 1e6, "path")
    assert found is not None
    assert builder.cycles(found.order, part) < 0.97 * builder.cycles(start.order, part)
    assert s.constructor.costs.source.startswith("timing model")
