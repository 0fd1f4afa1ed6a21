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


def test_a_protocol_counts_samples_of_winners_alone_and_every_mismatch() -> None:
    won = {"kernel": "k", "shape": "1", "strategy": "sip", "improved": True, "speedup": 1.02}
    rows = [
        {**won, "samples": 10_000_035, "mismatches": 0},
        {**won, "samples": 20_000, "mismatches": 2, "failed_after_validation": 1},
        {**won, "improved": False, "speedup": 1.0, "samples": 35},
    ]
    found = schedule_suite.by_search(rows)
    assert (found["samples_least"], found["mismatches"]) == (20_000, 2)
    assert found["wrong_or_crashed_after_validation"] == 1
    assert found["by_search"]["sip"]["rows"] == 2, "a winner whose samples differ has no speed-up"
    assert schedule_suite.by_search(rows[2:])["samples_least"] == 0


def test_a_journal_keeps_the_last_row_of_a_search(tmp_path: Path) -> None:
    first = {"kernel": "k", "shape": "1", "strategy": "sip", "seed": 0, "samples": 35}
    rows = [first, {**first, "samples": 10_000_035}, {**first, "error": "lost"}, {**first, "seed": 1}]
    rows = [{**row, "budget": "15000e"} for row in rows]
    rows += [{**first, "seed": 2, "budget": "100e"}, {**first, "seed": 3, "seconds": 60.0}]
    (tmp_path / "schedule-suite.rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert schedule_suite.journal(tmp_path, "15000e") == [rows[1], rows[3]]
    assert schedule_suite.journal(tmp_path, "60s") == [rows[5]]


def test_a_search_that_was_stopped_is_known() -> None:
    row = {"kernel": "k", "shape": "1", "odd": False, "evaluations": 683, "reason": "interrupted"}
    found = schedule_suite.summarise([row, {**row, "shape": "2", "reason": "budget"}])
    assert found["stopped_rows"] == ["k/1"]


def test_a_row_that_failed_after_its_search_has_no_speed_up() -> None:
    row = {"kernel": "softmax", "shape": "1", "odd": False, "speedup": 1.2}
    wrong = {"verdict": "crashed", "samples": 3}
    rows = [row, {**row, "shape": "2", "error": "lost"}, {**row, "shape": "3", "sampled": [wrong]}]
    found = schedule_suite.summarise([*rows, {**row, "odd": True, "error": "lost"}])
    assert (found["kernels"], found["geomean_speedup_odd"]) == (1, None)


def test_sittings_of_two_gpus_or_of_several_searches_make_no_table(tmp_path: Path) -> None:
    def written(name: str, gpu: str, **more: object) -> Path:
        said = {"commit": "abc", "date": "2026-11-21", "command": "suite.py", "gpu": gpu}
        row = {"kernel": "softmax", "shape": "512x4096", "odd": False, "strategy": "anneal", **more}
        path = tmp_path / f"{name}.rows.jsonl"
        with path.open("a") as file:
            file.write(json.dumps({**row, "environment": said}) + "\n")
        return path

    one, other = written("one", "NVIDIA H200"), written("other", "NVIDIA H100", shape="512x2048")
    with pytest.raises(SystemExit, match="rows of NVIDIA H100 and of NVIDIA H200"):
        schedule_suite.merge([one, other], "schedule-suite", 0, tmp_path)
    other = written("another", "NVIDIA H200", shape="512x2048", strategy="sip")
    with pytest.raises(SystemExit, match="rows of several searches"):
        schedule_suite.merge([one, other], "sip-protocol", 0, tmp_path)
    with pytest.raises(SystemExit, match="rows of NVIDIA H100 and of NVIDIA H200"):
        schedule_suite.sitting(written("one", "NVIDIA H100"))
    first, last = written("first", "NVIDIA H200"), written("last", "NVIDIA H200", shape="512x2047")
    schedule_suite.merge([last, first], "schedule-suite", 0, tmp_path)
    table = json.loads((tmp_path / "schedule-suite.json").read_text())
    assert [row["shape"] for row in table["rows"]] == ["512x4096", "512x2047"], "in the suite's order"
    assert table["environment"]["gpu"] == "NVIDIA H200" and len(table["environment"]["sittings"]) == 2


def test_the_newest_ptxas_is_the_second_baseline() -> None:
    from sassafras.sass.tools import find_all

    versions = {tuple(map(int, tool.version.split("."))): str(tool.path) for tool in find_all("ptxas")}
    newest = versions[max(versions)] if len(versions) > 1 else None
    assert schedule_suite.newest_ptxas() == newest
