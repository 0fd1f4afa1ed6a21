"""The benchmark of budgets: a row is a command's wall time, the summary its worst."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import budget


def test_rows_are_kept_summed_up_and_not_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["budget.py", "--seconds", "2", "--only", "softmax", "--device", "model", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    budget.main()
    (line,) = (tmp_path / "budget.rows.jsonl").read_text().splitlines()
    row = json.loads(line)["row"]
    assert row["kernel"] == "softmax" and row["modelled"]
    assert 0.95 <= row["search_s"] < 2.0, "half of the budget is searched even where all else takes long"
    assert row["search_s"] < row["wall_s"] and row["excess_s"] == pytest.approx(row["wall_s"] - 2)
    found = json.loads((tmp_path / "budget.json").read_text())
    assert found["summary"]["modelled_worst_excess_s"] == row["excess_s"] and len(found["rows"]) == 1

    def first_use(target: str, *given: str) -> tuple[float, budget.Row]:
        assert target == "suite:kv_append", "measured twice"
        return 1.0, {"modelled": True}

    monkeypatch.setattr(budget, "command", first_use)
    monkeypatch.setattr(sys, "argv", [*words, "--with", str(tmp_path / "budget.json")])
    budget.main()
    assert json.loads((tmp_path / "budget.json").read_text())["rows"] == found["rows"]


def test_the_summary_is_of_the_worst_row() -> None:
    short = {"budget_s": 10.0, "modelled": False, "search_s": 6.0, "wall_s": 17.0, "excess_s": 7.0}
    rows = [
        {**short, "kernel": "softmax", "processes": 5},
        {**short, "kernel": "rotary", "processes": 4, "search_s": 5.0, "excess_s": 9.0},
        {**short, "kernel": "theirs", "processes": 5, "excess_s": 12.0},
        {**short, "kernel": "c", "processes": 5, "budget_s": 120.0, "wall_s": 150.0, "excess_s": 30.0},
        {**short, "kernel": "d", "error": "died"},
    ]
    assert budget.summarise(rows) == {
        "rows": 5,
        "failed": ["d"],
        "worst_excess_s": 9.0,
        "worst_excess_of_files_s": 12.0,
        "least_search_share": 0.5,
        "worst_ratio_long": 1.25,
        "least_processes": 4,
    }


def test_a_kernel_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["budget.py", "--only", "softmax,nothing"])
    with pytest.raises(SystemExit, match="no kernel of the suite: nothing"):
        budget.main()
