"""Tables of measured latencies: made from a result, read on top of the mined one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sassafras.cli.app import app
from sassafras.core import LatencyTableError
from sassafras.sass.latency import LatencyTable, Measured, MeasuredTable, adopt, table

FFMA = ("raw", "FFMA", "0", "FFMA", "1")
GUARD = ("raw", "ISETP", "0p0", "BRA", "G")
#: a pair that the mined table has never seen
NEW = ("raw", "HADD2", "0", "IDP.4A", "3")


def row(key: tuple[str, ...], status: str, cycles: int, trials: int, below: list[int]) -> dict[str, Any]:
    names = ("kind", "producer", "producer_slot", "consumer", "consumer_slot")
    return {
        **dict(zip(names, key, strict=True)),
        "status": status,
        "cycles": cycles,
        "trials": trials,
        "below": below,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """A result as ``benchmarks/latencies.py`` writes it, cut down; these numbers were measured nowhere."""
    return {
        "benchmark": "latencies", "date": "2026-01-01", "commit": "none", "command": "invented for a test",
        "environment": {"gpu": "none: invented for a test"},
        "summary": {"sound": True, "known_too_short_missed": []},
        "rows": [
            row(FFMA, "measured", 3, 40_000, [64, 1000]),
            row(GUARD, "measured", 14, 40_000, [1, 1000]),
            row(NEW, "measured", 5, 40_000, [0, 0]),
            row(("raw", "MOV", "0", "MOV", "1"), "never failed", 1, 40_000, [0, 0]),
            row(("raw", "FADD", "0", "MOV", "1"), "blind", 0, 0, [0, 0]),
            row(("raw", "FMUL", "0", "MOV", "1"), "measured", 4, 20, [5, 10]),
        ],
    }  # fmt: skip


def test_only_pairs_that_failed_and_were_right_often_enough_are_taken(result: dict[str, Any]) -> None:
    made = adopt(result)
    assert made.rows == {
        FFMA: Measured(3, 40_000, 64, 1000),
        GUARD: Measured(14, 40_000, 1, 1000),
        NEW: Measured(5, 40_000, 0, 0),
    }
    assert made.provenance["how"] == "measured" and made.provenance["least_trials"] == 40_000
    assert made.rows[FFMA].bound == pytest.approx(3 / 40_000, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmark": "other"}, "not a result"),
        ({"environment": {"gpu": "pretended"}}, "not measured on a GPU"),
        ({"summary": {"sound": False, "known_too_short_missed": ["x"]}}, "did not see faults"),
        ({"rows": []}, "no pair was measured"),
    ],
)
def test_other_results_are_refused(result: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(LatencyTableError, match=message):
        adopt({**copy.deepcopy(result), **change})


def test_a_table_is_read_as_it_was_written(result: dict[str, Any], tmp_path: Path) -> None:
    made = adopt(result)
    made.save(tmp_path / "table.json")
    again = MeasuredTable.load("sm_90", tmp_path / "table.json")
    assert (again.arch, again.rows, again.provenance) == (made.arch, made.rows, made.provenance)
    with pytest.raises(LatencyTableError, match="sm_80"):
        MeasuredTable.load("sm_80", tmp_path / "table.json")


@pytest.mark.parametrize(
    "line",
    [
        '["raw","A","0","B","1",4,1000,0]',
        '["raw","A","0","B","1",0,1000,0,0]',
        '["raw","A","0","B","1",4,3,0,0]',
        '["raw","A","0","B","1",4,1000,5,2]',
        '["issue","A","0","B","1",4,1000,0,0]',
        '["raw","A","0","B","1",4.5,1000,0,0]',
    ],
)
def test_impossible_rows_are_refused(line: str, result: dict[str, Any], tmp_path: Path) -> None:
    adopt(result).save(tmp_path / "table.json")
    text = (tmp_path / "table.json").read_text()
    start = text.index('["raw","FFMA"')
    (tmp_path / "table.json").write_text(text[:start] + line + text[text.index("\n", start) - 1 :])
    with pytest.raises(LatencyTableError, match="row 0"):
        MeasuredTable.load("sm_90", tmp_path / "table.json")


def test_measured_rows_answer_where_they_are_wanted(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt(result).save(tmp_path / "sm_90.json")
    monkeypatch.setattr(table, "place", lambda name: tmp_path / f"{name}.json")
    monkeypatch.setattr("sassafras.sass.latency.measured.place", lambda name: tmp_path / f"{name}.json")
    mined, measured = LatencyTable.load("sm_90"), LatencyTable.load("sm_90", source="measured")
    assert not mined.measured
    assert mined.needed(*FFMA, 9) == 4 and measured.needed(*FFMA, 9) == 3
    # larger than mined: the measured one still holds
    assert mined.needed(*GUARD, 20) == 13 and measured.needed(*GUARD, 20) == 14
    assert measured.needed(*NEW, 40) == 5 and measured.bound(*NEW) == 5
    other = ("raw", "FFMA", "0", "FFMA", "2")
    assert measured.needed(*other, 9) == mined.needed(*other, 9)
    # one line turns the default over, for architectures that have measured rows
    monkeypatch.setattr(table, "DEFAULT_SOURCE", "measured")
    assert LatencyTable.load("sm_90").measured == measured.measured
    assert not LatencyTable.load("sm_90", source="mined").measured
    assert not LatencyTable.load("sm_80").measured
    with pytest.raises(LatencyTableError, match="not 'guessed'"):
        LatencyTable.load("sm_90", source="guessed")
    with pytest.raises(LatencyTableError, match="no measured latencies"):
        LatencyTable.load("sm_80", source="measured")


def test_the_default_is_mined() -> None:
    """Until a table was measured on hardware."""
    assert table.DEFAULT_SOURCE == "mined"
    assert not LatencyTable.load("sm_90").measured


def test_adopt_warns_of_pairs_that_need_more_than_was_mined(result: dict[str, Any], tmp_path: Path) -> None:
    source, out = tmp_path / "latencies.json", tmp_path / "new" / "sm_90.json"
    source.write_text(json.dumps(result))
    run = CliRunner().invoke(app, ["latency", "adopt", str(source), "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert "3 measured rows" in run.output and "1 need less" in run.output
    assert "DANGER: 1 need more" in run.output and "mined 13, measured 14" in run.output
    assert MeasuredTable.load("sm_90", out).rows[GUARD].cycles == 14
