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


def row(
    key: tuple[str, ...], status: str, cycles: int, trials: int, fault: int, wrong: int
) -> dict[str, Any]:
    names = ("kind", "producer", "producer_slot", "consumer", "consumer_slot")
    return {
        **dict(zip(names, key, strict=True)),
        "status": status,
        "cycles": cycles,
        "trials": trials,
        "fault": fault,
        "wrong": wrong,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """A result as ``benchmarks/latencies.py`` writes it, cut down; these numbers were measured nowhere."""
    return {
        "benchmark": "latencies", "date": "2026-01-01", "commit": "none", "command": "invented for a test",
        "environment": {"gpu": "none: invented for a test"},
        "summary": {"sound": True, "known_too_short_missed": []},
        "rows": [
            row(FFMA, "measured", 2, 40_000, 1, 64),
            row(GUARD, "measured", 14, 40_000, 13, 1),
            row(NEW, "measured", 5, 40_000, 3, 7),
            row(("raw", "MOV", "0", "MOV", "1"), "never failed", 1, 40_000, 0, 0),
            row(("raw", "FADD", "0", "MOV", "1"), "blind", 0, 0, 0, 0),
            row(("raw", "FMUL", "0", "MOV", "1"), "measured", 4, 20, 3, 5),
        ],
    }  # fmt: skip


def test_only_pairs_that_failed_and_were_right_often_enough_are_taken(result: dict[str, Any]) -> None:
    made = adopt(result)
    assert made.rows == {
        FFMA: Measured(2, 40_000, 1, 64),
        GUARD: Measured(14, 40_000, 13, 1),
        NEW: Measured(5, 40_000, 3, 7),
    }
    assert made.provenance["how"] == "measured" and made.provenance["least_trials"] == 40_000


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
        '["raw","A","0","B","1",4,1000,3]',
        '["raw","A","0","B","1",0,1000,0,0]',
        '["raw","A","0","B","1",4,3,3,1]',
        '["raw","A","0","B","1",4,1000,4,2]',
        '["raw","A","0","B","1",4,1000,0,2]',
        '["issue","A","0","B","1",4,1000,3,1]',
        '["raw","A","0","B","1",4.5,1000,3,1]',
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
    # less than ptxas ever leaves: with a margin, and only where the compiler's own distance is no smaller
    assert mined.needed(*FFMA, 9) == 4 and measured.needed(*FFMA, 9) == 2 + table.MARGIN == 3
    assert measured.distance(*FFMA) is None and measured.needed(*FFMA, 2) == 2
    # wrong at what was mined: that is not enough any more
    assert mined.needed(*GUARD, 20) == 13 and measured.needed(*GUARD, 20) == 15
    assert measured.needed(*NEW, 40) == measured.bound(*NEW) == 6
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
    """A measurement on one GPU shows what fails; that something never fails, it cannot show."""
    assert table.DEFAULT_SOURCE == "mined"
    assert not LatencyTable.load("sm_90").measured


def test_no_fault_was_ever_seen_at_a_distance_that_the_mined_table_allows() -> None:
    """On an H200; a table that was mined anew has to stand this too."""
    mined, faults = LatencyTable.load("sm_90", source="mined"), MeasuredTable.load("sm_90").rows
    answered = [k for k in faults if mined.needed(*k, 64) < 64]
    assert len(answered) > 4_500
    assert not [k for k in answered if mined.needed(*k, 64) <= faults[k].fault]
    assert not [k for k in faults if k in mined.rows and mined.rows[k].cycles <= faults[k].fault]


def test_what_was_measured_needs_no_more_than_what_ptxas_emits_and_allows_no_fault() -> None:
    """With the measured rows on top, no pair of the corpus is closer than is required."""
    mined, both = LatencyTable.load("sm_90", source="mined"), LatencyTable.load("sm_90", source="measured")
    assert len(both.measured) > 10_000
    for key, found in both.measured.items():
        enough = both.bound(*key)
        assert enough is not None and found.fault < enough <= found.cycles + table.MARGIN
        if key in mined.rows:
            assert both.needed(*key, mined.rows[key].cycles) <= mined.rows[key].cycles
    # IMAD.WIDE is held apart by the hardware between 4 and 7 cycles: what ptxas leaves is kept
    held = ("raw", "IMAD", "0", "IMAD.WIDE", "1")
    assert both.measured[held].cycles == 7 and both.needed(*held, 9) == mined.needed(*held, 9) == 4


def test_adopt_warns_of_pairs_that_need_more_than_was_mined(result: dict[str, Any], tmp_path: Path) -> None:
    source, out = tmp_path / "latencies.json", tmp_path / "new" / "sm_90.json"
    source.write_text(json.dumps(result))
    run = CliRunner().invoke(app, ["latency", "adopt", str(source), "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert "3 measured rows" in run.output and "1 need less" in run.output
    assert "DANGER: 1 need more" in run.output and "mined 13, wrong at 13" in run.output
    assert MeasuredTable.load("sm_90", out).rows[GUARD].cycles == 14
