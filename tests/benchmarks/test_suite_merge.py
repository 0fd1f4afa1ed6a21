"""Rows of several sittings in one result file of the schedule suite."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import schedule_suite  # noqa: E402


def test_a_result_file_keeps_the_sittings_that_it_was_made_of() -> None:
    path = ROOT / "benchmarks" / "results" / "schedule-suite.json"
    rows, sittings = schedule_suite.sitting(path)
    assert rows == json.loads(path.read_text())["rows"]
    assert len(sittings) >= 2 and all(s["commit"] and s["command"] for s in sittings)
    assert len({(row["kernel"], row["shape"]) for row in rows}) == len(rows)


def test_a_sittings_rows_say_where_and_how_without_paths_of_that_machine(tmp_path: Path) -> None:
    path = tmp_path / "a.rows.jsonl"
    said = {"commit": "abc+", "date": "2026-11-21", "command": "suite.py --ptxas /there/tools/ptxas --gpus 3"}
    path.write_text(json.dumps({"kernel": "k", "shape": "1", "environment": said}) + "\n")
    rows, (sitting,) = schedule_suite.sitting(path)
    assert rows == [{"kernel": "k", "shape": "1"}]
    assert sitting["command"] == "suite.py --ptxas ptxas --gpus 3"
    assert (sitting["commit"], sitting["rows"]) == ("abc", 1)
    path.write_text('{"kernel": "k", "shape": "1"}\n')
    with pytest.raises(ValueError, match="where it was measured"):
        schedule_suite.sitting(path)


def test_a_search_that_was_stopped_is_known() -> None:
    row = {"evaluations": 683, "search_seconds": 6.08, "seconds": 60.0}
    assert schedule_suite.stopped(row) and not schedule_suite.stopped({**row, "search_seconds": 60.0})
