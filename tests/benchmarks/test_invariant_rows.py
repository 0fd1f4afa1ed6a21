"""From the journal of `batch_invariant` to its summary: what counts, and how often it was compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import invariant_rows  # noqa: E402


def timed(m: int, wrong: list[str], **us: float) -> dict[str, Any]:
    every = dict.fromkeys(("torch", "sassafras", "sassafras_null", "triton_published", "triton_tuned"), 2.0)
    times = {name: [value] * 3 for name, value in (every | {"sassafras_invariant": 2.0} | us).items()}
    record = {"shape": f"times {m}", "part": "times", "of": [m, 6144, 4096, "fp16"], "process": 0}
    return record | {"us": times, "wrong": wrong, "served": ["a", "a"], "tiling": ""}


def compared(n: int, process: int, digest: str) -> dict[str, Any]:
    counts = {"rows": 5, "unequal": 0, "control_rows": 4, "control_unequal": 1}
    record = {"shape": f"bits {n} {process}", "part": "bits", "of": [n, 4096, "fp16"], "process": process}
    return record | counts | {"digest": digest}


def test_what_is_wrong_counts_nowhere() -> None:
    records = [timed(16, ["triton_tuned"], triton_tuned=0.1), timed(64, [], torch=3.0)]
    records.append(timed(256, ["sassafras_invariant"], sassafras_invariant=0.1))
    summary = invariant_rows.summary_of(invariant_rows.rows_of(records), records)
    assert summary["over_triton_tuned_worst"] == 1.0 and summary["tax_m16_up"] == 1.0
    assert summary["over_torch"] == pytest.approx(1.5**0.5, abs=1e-4)
    assert len(summary["wrong"]) == 2


def test_only_layers_of_two_processes_say_that_processes_agree() -> None:
    records = [compared(6144, 0, "a"), compared(6144, 1, "a"), compared(4096, 0, "b")]
    summary = invariant_rows.summary_of(invariant_rows.rows_of(records), records)
    assert (summary["compared_between_processes"], summary["unequal_between_processes"]) == (1, 0)
    records.append(compared(4096, 1, "c"))
    summary = invariant_rows.summary_of(invariant_rows.rows_of(records), records)
    assert (summary["compared_between_processes"], summary["unequal_between_processes"]) == (2, 1)


def test_the_committed_summary_is_that_of_its_rows() -> None:
    kept = json.loads((BENCHMARKS / "results" / "batch-invariant.json").read_text())
    assert invariant_rows.summary_of(kept["rows"], []) == kept["summary"]
