"""A small real kernel whose memory schedules can all be listed: the tests' assembly game."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from sassafras.core import Buffer, Candidate, Case, Kernel, Outcome, Workload
from sassafras.schedule import ScheduleSpace
from sassafras.timing_model import ModelDevice
from sassafras.validate import Validator
from tests.kernels import softmax_cubin


@lru_cache(maxsize=1)
def workload() -> Workload:
    """A softmax of rows of 512, one CTA an SM."""
    kernel = Kernel(softmax_cubin("sm_90a", 512, True, 4), "softmax", "sm_90a", 128, 128)
    case = Case(
        "132x512", (132, 1, 1), {"x": Buffer("fp32", (132, 512)), "y": Buffer("fp32", (132, 512), "out")}
    )
    return Workload("small_softmax", (case,), build=lambda *_, **__: kernel)


@lru_cache(maxsize=1)
def _device() -> tuple[ModelDevice, Validator]:
    case = workload().case()
    kernel = workload().build(case, "sm_90a")
    device = ModelDevice()
    device.open(workload(), case, kernel)
    return device, Validator(kernel.cubin, kernel.name)


class Judge:
    """The timing model behind the validator; both are functions of the candidate alone."""

    known: ClassVar[dict[str, Outcome]] = {}

    def evaluate(self, candidate: Candidate) -> Outcome:
        digest = candidate.digest
        if digest not in self.known:
            device, validator = _device()
            assert validator.check(candidate.kernel.cubin).ok
            self.known[digest] = device.run(candidate)
        return self.known[digest]


@lru_cache(maxsize=4)
def _space(moves: str, view: str) -> ScheduleSpace:
    kernel = workload().build(workload().case(), "sm_90a")
    return ScheduleSpace(kernel, moves=moves, view=view)  # type: ignore[arg-type]


def space(moves: str = "all", view: str = "all") -> ScheduleSpace:
    """Its schedule space: states are values, so that tests may share it."""
    return _space(moves, view)


@lru_cache(maxsize=1)
def best() -> float:
    """Smallest relative runtime of all of its memory schedules: every one is listed and modelled."""
    judge, memory = Judge(), space(moves="memory")
    seen, queue, lowest = {memory.start()}, [memory.start()], 1.0
    while queue:
        state = queue.pop()
        for move in memory.moves(state):
            after = memory.apply(state, move)
            if after not in seen:
                seen.add(after)
                queue.append(after)
                cost = judge.evaluate(memory.candidate(after)).cost
                assert cost is not None
                lowest = min(lowest, cost)
    assert 50 < len(seen) < 200 and lowest < 0.999
    return lowest
