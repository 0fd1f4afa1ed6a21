"""The one path from candidate to outcome, on a tiny device of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sassafras.core import Candidate, Case, Evaluation, Interval, Kernel, Modelled, Outcome, Verdict, Workload
from sassafras.evaluate import KernelEvaluator


@dataclass
class ByteDevice:
    """A 'kernel' is right when its bytes sum up to what the baseline's do."""

    modelled: bool = False
    name: str = "byte machine"
    arch: str = "sm_90a"
    ran: list[bytes] = field(default_factory=list)
    total: int = 0

    def open(self, workload: Workload | None, case: Case | None, baseline: Kernel) -> None:
        self.total = sum(baseline.cubin)

    def run(self, candidate: Candidate) -> Outcome:
        self.ran.append(candidate.kernel.cubin)
        if self.modelled:
            return Modelled(candidate.digest, None, cycles=100.0, baseline_cycles=110.0)
        if sum(candidate.kernel.cubin) != self.total:
            return Evaluation(candidate.digest, Verdict.WRONG_RESULT, detail="sums differ")
        return Evaluation(candidate.digest, Verdict.CORRECT, speedup=1.1, interval=Interval(1.0, 1.2))

    def environment(self) -> dict[str, Any]:
        return {"gpu": self.name}

    def close(self) -> None:
        self.ran.clear()


@dataclass
class Judgement:
    violations: list[str]

    @property
    def ok(self) -> bool:
        return not self.violations


def same_bytes(original: bytes, candidate: bytes) -> Judgement:
    """A permutation validator."""
    missing = [f"byte {b:#x} lost" for b in original if b not in candidate]
    return Judgement(missing)


BASE = Kernel(b"\x01\x02\x03", "kernel", "sm_90a", threads=128)


def make(modelled: bool = False) -> tuple[KernelEvaluator, ByteDevice]:
    device = ByteDevice(modelled)
    device.open(None, None, BASE)
    return KernelEvaluator(device, same_bytes, BASE), device


def test_legal_candidate_runs() -> None:
    evaluator, device = make()
    candidate = Candidate(BASE.with_cubin(b"\x03\x02\x01"))
    outcome = evaluator.evaluate(candidate)
    assert outcome.verdict is Verdict.CORRECT
    assert outcome.cost == pytest.approx(1 / 1.1)
    assert device.ran == [b"\x03\x02\x01"]


def test_same_code_is_judged_once() -> None:
    evaluator, device = make()
    first = evaluator.evaluate(Candidate(BASE.with_cubin(b"\x03\x02\x01"), {"move": 1}))
    second = evaluator.evaluate(Candidate(BASE.with_cubin(b"\x03\x02\x01"), {"move": 2}))
    assert first is second
    assert len(device.ran) == 1


def test_illegal_candidate_never_reaches_the_device() -> None:
    evaluator, device = make()
    outcome = evaluator.evaluate(Candidate(BASE.with_cubin(b"\x01\x01\x01")))
    assert isinstance(outcome, Evaluation)
    assert outcome.verdict is Verdict.ILLEGAL_SCHEDULE
    assert outcome.detail == "byte 0x2 lost; 1 more violations"
    assert outcome.cost is None
    assert device.ran == []


@pytest.mark.parametrize(
    "change",
    [{"threads": 256}, {"shared_bytes": 4}, {"name": "other"}, {"cluster": (2, 1, 1)}, {"hidden_args": 1}],
)
def test_a_schedule_may_not_change_the_launch(change: dict[str, Any]) -> None:
    evaluator, device = make()
    outcome = evaluator.evaluate(Candidate(replace(BASE, cubin=b"\x03\x02\x01", **change)))
    assert outcome.verdict is Verdict.ILLEGAL_SCHEDULE
    assert device.ran == []


def test_refusals_on_a_model_stay_modelled() -> None:
    evaluator, _ = make(modelled=True)
    refused = evaluator.evaluate(Candidate(BASE.with_cubin(b"\x01")))
    modelled = evaluator.evaluate(Candidate(BASE.with_cubin(b"\x03\x02\x01")))
    assert isinstance(refused, Modelled)
    assert refused.verdict is Verdict.ILLEGAL_SCHEDULE
    assert isinstance(modelled, Modelled)
    assert modelled.verdict is None


def test_what_was_judged_elsewhere_is_remembered() -> None:
    evaluator, device = make()
    candidate = Candidate(BASE.with_cubin(b"\x03\x02\x01"))
    known = Evaluation(candidate.digest, Verdict.CRASHED)
    assert evaluator.settle(candidate, known) is known
    assert evaluator.evaluate(candidate) is known
    assert device.ran == []


def test_wrong_results_have_no_cost() -> None:
    evaluator, _ = make()
    outcome = evaluator.evaluate(Candidate(BASE.with_cubin(b"\x01\x02\x03\x04")))
    assert outcome.verdict is Verdict.WRONG_RESULT
    assert outcome.cost is None
