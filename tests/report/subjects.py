"""A softmax kernel, schedules of it, and a slower original that hoisted loads improve."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sassafras.core import Buffer, Case, Kernel, Workload
from sassafras.schedule import ScheduleSpace, ScheduleState
from sassafras.validate import Validator
from tests.kernels import softmax_cubin


def kernel() -> Kernel:
    return Kernel(softmax_cubin(), "softmax", "sm_90a", 128, 32, meta={"source_hash": "softmax"})


def case() -> Case:
    x = Buffer("fp32", (512, 1024))
    y = Buffer("fp32", (512, 1024), "out")
    return Case("512x1024", (512, 1, 1), {"x_ptr": x, "y_ptr": y, "n": 1024, "stride": 1024})


def workload_of(baseline: Kernel) -> Workload:
    return Workload("softmax", (case(),), lambda case, arch: baseline)


@lru_cache(maxsize=1)
def space() -> ScheduleSpace:
    return ScheduleSpace(kernel())


def walked(seed: int, moves: int) -> ScheduleState:
    rng, state = np.random.default_rng(seed), space().start()
    for _ in range(moves):
        move = space().sample(state, rng)
        assert move is not None
        state = space().apply(state, move)
    return state


def shifted(made: ScheduleSpace, up: bool) -> Kernel:
    """The kernel with every global load as far up, or down, as it may go."""
    state = made.start()
    loads = [i.index for i in made.function.instructions if i.base == "LDG"]
    for x in loads if up else reversed(loads):
        while True:
            at = int(np.flatnonzero(state.order == x)[0])
            found = [m for m in made.moves(state) if m.i == at and (m.j < at) == up]
            if not found:
                break
            state = made.apply(state, max(found, key=lambda m: abs(m.j - m.i)))
    return made.kernel.with_cubin(made.emit(state))


@lru_cache(maxsize=1)
def sunk() -> tuple[Kernel, Kernel]:
    """A kernel whose loads were sunk to their first use, and the same with its loads hoisted again."""
    slow = shifted(space(), up=False)
    assert Validator(kernel().cubin, "softmax").check(slow.cubin).ok
    return slow, shifted(ScheduleSpace(slow), up=True)
