"""A small soak with real processes and real SIGKILLs; benchmarks/soak.py runs the large one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak
import soak_worker

from sassafras import search as searching
from sassafras.core import Budget, Candidate, Evaluation, Verdict
from sassafras.frontend import load
from tests.shared import without_torch


@pytest.mark.timeout(900)
def test_killing_workers_and_the_search_loses_nothing(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hangs here: on a busy machine a short limit would also hit innocent candidates."""
    monkeypatch.setenv("SASSAFRAS_SOAK_FAULTS", "crash,exit,leak,wrong")
    monkeypatch.setenv("PYTHONPATH", without_torch(shared))
    words = ["run", "--candidates", "30", "--worker-kills", "2", "--parent-kills", "1"]
    words += ["--hang-s", "100", "--limit-s", "400", "--seed", "1"]
    assert soak.main([*words, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "soak-model.json").is_file()


def test_every_fault_has_its_share() -> None:
    faults = [soak_worker.fault_of(str(n).encode()) for n in range(20_000)]
    for fault, share in soak_worker.SHARES:
        assert faults.count(fault) / 20_000 == pytest.approx(share / 1000, rel=0.3)


def test_salting_changes_a_constant_and_nothing_else() -> None:
    code = b"abcd" + soak.SALT.to_bytes(4, "little") + b"efgh"
    assert soak.salted(code, 0) != soak.salted(code, 1)
    assert len(soak.salted(code, 5)) == len(code)
    assert soak.salted(code, 5)[:4] == b"abcd"
    with pytest.raises(ValueError, match="salt"):
        soak.salted(b"abcd", 1)


def test_a_walk_over_the_copies_meets_as_many_as_asked_for() -> None:
    workload = load("suite:softmax")
    kernel = workload.build(workload.cases[0], "sm_90a")
    codes = {
        fault: kernel.cubin + fault.encode() + soak.SALT.to_bytes(4, "little") for fault in soak.GPU_FAULTS
    }
    space = soak.Copies(kernel, codes, [*soak.GPU_FAULTS])

    class Judge:
        def evaluate(self, candidate: Candidate) -> Evaluation:
            verdict = Verdict(space.expected.get(candidate.digest, "correct"))
            return Evaluation(candidate.digest, verdict, speedup=1.0)

    found = searching.run(
        searching.get("random_walk"), space, Judge(), Budget(evaluations=200), seed=3
    )  # fmt: skip
    assert found.evaluations == 200
    assert {str(verdict) for verdict in found.verdicts} >= {"wrong_result", "crashed", "timed_out"}
    assert len(space.expected) == 199  # the baseline is the first


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"candidates": 7}, False),
        ({"lost": 1}, False),
        ({"duplicated": 1}, False),
        ({"judged_again": 3}, False),
        ({"same_best": False}, False),
        ({"store_whole": False}, False),
        ({"processes_left_behind": 1}, False),
        ({"wrong_verdicts": 1}, False),
        ({"same_evaluations_in_the_same_order": False}, False),
    ],
)
def test_what_counts_as_passed(change: dict, good: bool) -> None:
    summary = {
        "asked": 30, "candidates": 30, "lost": 0, "duplicated": 0, "processes_left_behind": 0,
        "judged_again": 2, "kills_of_the_search": 2,
        "same_evaluations_in_the_same_order": True, "same_best": True, "store_whole": True,
    }  # fmt: skip
    assert soak.passed(summary | change) is good
