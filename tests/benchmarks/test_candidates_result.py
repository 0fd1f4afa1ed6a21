"""The committed result of the candidates that ran cold on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "candidates-gpu.json"


def test_the_committed_result_holds_what_it_claims() -> None:
    """10,000 candidates of each space over 15 kernels, none wrong, some in processes of their own."""
    kept = json.loads(RESULT.read_text())
    rows, summary = kept["rows"], kept["summary"]
    assert "H100" in kept["environment"]["gpu"]
    for space in ("blocks", "control", "renaming"):
        own = [row for row in rows if row["space"] == space and row["run"]]
        assert sum(row["run"] for row in own) == summary[space]["candidates"] >= 10_000
        assert len(own) == summary[space]["kernels"] >= 15
        assert all(row["right"] == row["run"] for row in own)
    fresh = summary["fresh_processes"]
    assert fresh["run"] == fresh["right"] > 0
    assert summary["approved_but_wrong"] == 0 and not summary["short"] and not summary["counterexamples"]
