"""From a worker's raw answers to evaluations, and the driver's error codes to verdicts."""

from __future__ import annotations

import pytest

from sassafras.core import Candidate, Kernel, Verdict
from sassafras.cuda.driver import CudaError
from sassafras.evaluate.gpu.reports import frozen_evaluation, quick_evaluation, sample_report

CANDIDATE = Candidate(Kernel(b"cubin", "k", "sm_90a", threads=32))


def measured(speed: float, null: float, samples: int = 5) -> dict[str, object]:
    base = [10.0, 10.1, 9.9, 10.05, 9.95]
    return {
        "verdict": "correct", "detail": "", "samples": samples, "baseline_us": base,
        "candidate_us": [b / speed for b in base], "null_us": [b / null for b in base],
    }  # fmt: skip


def test_quick_evaluation_takes_the_median_of_paired_ratios() -> None:
    answer = {
        "verdict": "correct", "detail": "", "samples": 9, "stopped": False,
        "baseline_us": [10.0, 20.0, 10.0], "candidate_us": [8.0, 16.0, 10.0],
    }  # fmt: skip
    outcome = quick_evaluation(CANDIDATE, answer, 0.01)
    assert outcome.speedup == 1.25
    assert outcome.time_us == 10.0
    assert outcome.samples == 9
    assert outcome.interval is not None
    assert outcome.interval.low == 1.0


def test_quick_evaluation_of_a_failure_has_no_figures() -> None:
    answer = {"verdict": "wrong_result", "detail": "y differs", "samples": 3, "kinds": ["output"]}
    outcome = quick_evaluation(CANDIDATE, answer, 0.01)
    assert (outcome.verdict, outcome.speedup, outcome.cost) == (Verdict.WRONG_RESULT, None, None)
    assert outcome.facts == {"kinds": ["output"]}


def test_frozen_evaluation_spans_the_processes() -> None:
    answers = [
        measured(s, n) for s, n in ((1.10, 1.0), (1.12, 1.001), (1.08, 0.999), (1.11, 1.0), (1.09, 1.0))
    ]
    outcome = frozen_evaluation(CANDIDATE, answers, 1.0, {"case": "c"})
    assert outcome.verdict is Verdict.CORRECT
    assert outcome.speedup == pytest.approx(1.0999, abs=1e-3)
    assert outcome.interval is not None
    assert outcome.null_interval is not None
    assert 1.07 < outcome.interval.low < 1.09 < 1.11 < outcome.interval.high < 1.13
    assert outcome.interval.outside(outcome.null_interval)
    assert outcome.samples == 25
    assert [round(p["speedup"], 2) for p in outcome.facts["processes"]] == [1.1, 1.12, 1.08, 1.11, 1.09]


def test_a_suspicion_that_could_not_be_repeated_is_noted() -> None:
    seen = {"repeated_inputs_save_us": [0.0, 5.4], "repeated_inputs": "noisy: not judged"}
    answers = [measured(1.1, 1.0), {**measured(1.1, 1.0), **seen}]
    outcome = frozen_evaluation(CANDIDATE, answers, 1.0, {})
    assert outcome.verdict is Verdict.CORRECT
    assert outcome.facts["repeated_inputs"] == [None, "noisy: not judged"]
    assert "repeated_inputs" not in frozen_evaluation(CANDIDATE, answers[:1] * 2, 1.0, {}).facts
    quick = quick_evaluation(CANDIDATE, {**measured(1.1, 1.0), **seen}, 0.1)
    assert quick.verdict is Verdict.CORRECT
    assert quick.facts["repeated_inputs"] == "noisy: not judged"


def test_one_bad_process_decides() -> None:
    answers = [measured(1.1, 1.0), {"verdict": "crashed", "detail": "illegal address", "samples": 0}]
    outcome = frozen_evaluation(CANDIDATE, answers, 1.0, {})
    assert outcome.verdict is Verdict.CRASHED
    assert outcome.detail == "process 2 of 2: illegal address"
    assert outcome.speedup is None


def test_a_null_far_from_one_is_an_unstable_baseline() -> None:
    outcome = frozen_evaluation(CANDIDATE, [measured(1.1, 1.05)] * 3, 1.0, {})
    assert outcome.verdict is Verdict.UNSTABLE_BASELINE
    assert outcome.cost is None
    assert "1.05" in outcome.detail


def test_sample_report_prints_count_bound_and_scope_together() -> None:
    answer = {"samples": 3_000_000, "mismatches": 0, "seconds": 10.0, "fixed": ["table"], "pair_us": 4.0}
    report = sample_report(answer, "512x4096", 16)
    assert report.failure_bound == pytest.approx(1e-6)
    assert report.bound_per_second == 250_000
    assert report.per_second == 300_000
    assert "512x4096" in report.scope
    assert "table (custom fill)" in report.scope
    assert report.verdict is Verdict.CORRECT
    partly = sample_report({**answer, "kept": ["cache"]}, "c", 16)
    assert "table (custom fill) stayed the same in all samples; cache: a seventh new" in partly.scope
    bad = sample_report({**answer, "mismatches": 2, "first": 17, "where": "y, near element 4"}, "c", 16)
    assert bad.verdict is Verdict.WRONG_RESULT
    assert "sample 17" in bad.detail and bad.first == 17 and report.first is None
    assert bad.failure_bound > 2 / 3_000_000


@pytest.mark.parametrize(
    ("call", "code", "verdict", "sticky"),
    [
        ("cuStreamSynchronize", 700, Verdict.CRASHED, True),
        ("cuStreamSynchronize", 719, Verdict.CRASHED, True),
        ("cuLaunchKernelEx", 701, Verdict.OUT_OF_RESOURCES, False),
        ("cuModuleLoadData", 2, Verdict.OUT_OF_RESOURCES, False),
        ("cuModuleLoadData", 200, Verdict.COMPILE_ERROR, False),
        ("cuModuleLoadData", 1, Verdict.COMPILE_ERROR, False),
        ("cuModuleGetFunction", 500, Verdict.COMPILE_ERROR, False),
        ("cuModuleLoadData", 209, Verdict.UNSUPPORTED, False),
    ],
)
def test_verdicts_of_driver_errors(call: str, code: int, verdict: Verdict, sticky: bool) -> None:
    error = CudaError(call, code, "NAME")
    assert (error.verdict, error.sticky) == (verdict, sticky)
    assert str(error) == f"{call}: NAME ({code})"
