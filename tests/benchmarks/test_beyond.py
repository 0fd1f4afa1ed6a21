"""The spaces beyond reordering: what is a row, what counts, and a small run on the timing model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import beyond  # noqa: E402

from sassafras.frontend.ptx import axes  # noqa: E402


def row(kernel: str, stage: str, speedup: float, **more: Any) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "stage": stage,
        "speedup": speedup,
        "improved": speedup > 1,
        "modelled": False,
        "evaluations": 10,
        "failed_after_validation": 0,
    } | more


def test_cuasmrls_six_come_first_and_nothing_comes_twice() -> None:
    from sassafras import suite

    found = beyond.subjects(())
    assert [s.removeprefix("suite:") for s in found[:6]] == list(suite.paper_six())
    assert len(found) == len(set(found)) == len(suite.names()) + len(beyond.GEMM_SHAPES)
    assert beyond.subjects(["softmax", "gemm:512x512x64"]) == ["suite:softmax", "gemm:512x512x64"]


def test_stages_are_summarised_apart_and_errors_are_no_figures() -> None:
    rows = [
        row("softmax", "swaps", 1.1),
        row("rotary", "swaps", 1.0, failed_after_validation=2),
        row("gemm:64x64x64", "swaps", 1.2),
        {"kernel": "rotary", "stage": "control", "modelled": False, "error": "refused"},
    ]
    found = beyond.summarise(rows)
    assert found["swaps"]["kernels"] == 2 and found["swaps"]["improved"] == 1
    assert found["swaps"]["geomean_speedup"] == pytest.approx(1.1**0.5)
    assert found["hgemm_swaps"]["best_speedup"] == 1.2 and "control" not in found
    assert found["evaluations"] == 30 and found["wrong_or_crashed_after_validation"] == 2
    assert found["failed_rows"] == ["rotary/control"]


def test_of_a_kernel_and_stage_the_last_row_without_an_error_counts(tmp_path: Path) -> None:
    rows = [
        row("softmax", "swaps", 1.1),
        row("softmax", "swaps", 1.3, environment={"gpu": "some"}),
        {"kernel": "softmax", "stage": "swaps", "modelled": False, "error": "lost"},
    ]
    path = beyond.finish(rows, str(tmp_path))
    kept = json.loads(path.read_text())
    assert [r["speedup"] for r in kept["rows"]] == [1.3] and kept["environment"]["gpu"] == "some"
    again = beyond.read_rows(path)
    assert again[0]["environment"]["gpu"] == "some" and beyond.summarise(again) == kept["summary"]
    assert beyond.read_rows(tmp_path / "missing.rows.jsonl") == []


def test_the_committed_result_is_what_the_script_says_of_its_rows() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "beyond-reordering.json").read_text())
    assert beyond.summarise(kept["rows"]) == kept["summary"]


def test_a_kernel_on_the_timing_model_has_a_row_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    # each setting is a run of ptxas; which there are is tests/api/test_ptxas_options.py's
    monkeypatch.setattr(axes, "CHOICES", {"opt_level": (1,), "load_cache": ("cg",), "max_registers": ()})
    options = argparse.Namespace(device="model", evaluations=4, seconds=1.0, seed=0)
    rows = beyond.rows_of("suite:topk_gating", options)
    assert [r["stage"] for r in rows] == list(beyond.STAGES)
    assert all(r["modelled"] and "error" not in r and r["speedup"] > 0.9 for r in rows), rows
    assert all(r["evaluations"] == 4 for r in rows if r["stage"] in beyond.SPACES)
