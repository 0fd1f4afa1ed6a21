"""The re-drawing benchmark: which kernels it takes, what a row holds, how rows are summed up."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sassafras.core import Candidate, Case, DeviceError, Evaluation, Interval, Kernel, Verdict, Workload
from sassafras.targets import load
from tests.docs.pages import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def redraws() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("redraws", BENCHMARKS / "redraws.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["redraws"] = module  # its worker processes find functions by the module's name
    spec.loader.exec_module(module)
    return module


def test_kernels_that_the_model_ranks_badly_are_left_out(redraws: ModuleType) -> None:
    assert redraws.names("swiglu,softmax,rotary,kv_append") == ["softmax"]
    assert len(redraws.names("")) == 14
    with pytest.raises(SystemExit, match="no kernel of the suite"):
        redraws.names("softmax,nothing")


@pytest.mark.timeout(600)
def test_a_row_compares_what_was_reported_with_other_draws(redraws: ModuleType) -> None:
    row, cubin = redraws.search("topk_gating", "25e", 0, 2)
    json.dumps(row)
    assert row["evaluations"] == 25 and cubin and row["draws"] >= 32
    assert row["modelled_low"] <= row["modelled"] <= row["modelled_high"] and row["half_width"] <= 0.005
    assert row["inside"] == (row["modelled_low"] <= row["fresh"] <= row["modelled_high"])
    assert row["gain"] == (row["modelled_low"] > max(1.0, row["null_high"])) and row["coverage"] in (
        0,
        0.5,
        1,
    )
    low = row | {"inside": False, "gain": True, "confirmed": False, "half_width": 0.004, "coverage": 0.0}
    found = redraws.summarise([row | {"coverage": 1.0}, low])
    assert found["kernels"] == 2 and found["inside"] == row["inside"] and found["coverage"] == 0.5
    assert found["gains"] == 1 + row["gain"] and found["widest_half_width"] == max(0.004, row["half_width"])
    measured = {"measured_speedup": 1.02, "measured_speedup_low": 1.01, "measured_null_high": 1.0, "gpu": "H"}
    assert redraws.summarise([row | measured])["measured_faster"] == 1
    refuted = row | {"measured_verdict": "wrong_result", "measured_speedup_low": None}
    found = redraws.summarise([row | measured, refuted])
    assert found["measured"] == 1 and found["not_correct"] == ["topk_gating"]


def test_worker_processes_can_load_what_is_measured(
    redraws: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class Device:
        name = "H"

        def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
            opened.append(load(workload.source or "").case(None).name == case.name)

        def remeasure(self, candidate: Candidate, **options: object) -> Evaluation:
            assert candidate.kernel.cubin == b"chosen"
            return Evaluation(candidate.digest, Verdict.CORRECT, speedup=1.02, interval=Interval(1.01, 1.03))

        def close(self) -> None:
            opened.append(True)

    monkeypatch.setattr("sassafras.jobs.opening.open_device", lambda name: Device())
    found = redraws.measured("topk_gating", b"chosen")
    assert opened == [True, True]
    assert (found["gpu"], found["measured_speedup"], found["measured_speedup_low"]) == ("H", 1.02, 1.01)


@pytest.mark.timeout(600)
def test_a_failed_measurement_keeps_the_searches(
    redraws: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(name: str, cubin: bytes) -> None:
        raise DeviceError("no usable GPU")

    monkeypatch.setattr(redraws, "measured", fail)
    words = ["--only", "topk_gating", "--budget", "25e", "--sets", "1", "--workers", "1", "--measure"]
    assert redraws.main([*words, "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "redraws.json").read_text())
    assert found["summary"]["failed"] == {"topk_gating": "not measured: no usable GPU"}
    (row,) = found["rows"]
    assert row["kernel"] == "topk_gating" and row["evaluations"] == 25 and "measured_speedup" not in row


def test_the_committed_result_holds_what_it_claims(redraws: ModuleType) -> None:
    """No interval wider than 0.5 % either way; at most 2 of 15 do not hold; five gains are confirmed."""
    kept = json.loads((BENCHMARKS / "results" / "redraws.json").read_text())
    rows, summary = kept["rows"], kept["summary"]
    assert [row["kernel"] for row in rows] == redraws.names("")
    assert summary["inside"] == sum(r["modelled_low"] <= r["fresh"] <= r["modelled_high"] for r in rows)
    assert 15 * summary["inside"] >= 13 * len(rows)
    assert all(r["modelled_high"] - r["modelled_low"] <= 0.01 for r in rows)
    real = [r for r in rows if r["modelled_low"] > max(1, r["null_high"]) and r["fresh"] > r["null_high"]]
    assert summary["confirmed"] == len(real) >= 5
