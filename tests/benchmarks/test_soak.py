"""A small soak with real processes and real SIGKILLs; benchmarks/soak.py runs the large one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak
import soak_worker

from tests.shared import without_torch


@pytest.mark.slow
def test_killing_workers_and_the_search_loses_nothing(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hangs here: on a busy machine a short limit would also hit innocent candidates."""
    monkeypatch.setenv("SOAK_FAULTS", "crash,exit,leak,wrong")
    monkeypatch.setenv("PYTHONPATH", without_torch(shared))
    words = ["--candidates", "20", "--kills", "3", "--hang-s", "100", "--limit-s", "280", "--seed", "1"]
    assert soak.main([*words, "--out", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("soak*.json")
    summary = json.loads(written.read_text())["summary"]
    assert summary["kills_of_worker"] == summary["kills_of_owner"] == summary["kills_of_all"] == 1


def test_every_fault_has_its_share() -> None:
    faults = [soak_worker.fault_of(str(n).encode()) for n in range(50_000)]
    for fault, share in soak_worker.SHARES.items():
        assert faults.count(fault) / 50_000 == pytest.approx(share / 1000, rel=0.4)


def test_what_differs_from_the_search_without_kills_is_told() -> None:
    wanted = [("base", None, 9.0), ("a", None, 5.0), ("b", "crashed", None), ("c", None, 5.0)]
    table, same = soak.compared(wanted, list(wanted), Counter("abc"))
    assert table == [
        {"verdict": "correct", "without kills": 3, "with kills": 3},
        {"verdict": "crashed", "without kills": 1, "with kills": 1},
    ]
    assert same == {
        "candidates": 4, "lost": 0, "duplicated": 0, "judged_again": 0,
        "same_evaluations_in_the_same_order": True, "same_best": True,
    }  # fmt: skip
    _, other = soak.compared(wanted, [wanted[0], wanted[3], wanted[3]], Counter("acc"))
    assert (other["lost"], other["duplicated"], other["judged_again"]) == (2, 1, 1)
    assert not other["same_best"] and not other["same_evaluations_in_the_same_order"]
    assert not soak.compared([], [], Counter())[1]["same_best"]


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"candidates": 7}, False),
        ({"kills": 39}, False),
        ({"lost": 1}, False),
        ({"duplicated": 1}, False),
        ({"judged_again": 3}, False),
        ({"same_best": False}, False),
        ({"store_whole": False}, False),
        ({"processes_left_behind": 1}, False),
        ({"same_evaluations_in_the_same_order": False}, False),
    ],
)
def test_what_counts_as_passed(change: dict[str, Any], good: bool) -> None:
    summary = {
        "asked": 30, "candidates": 30, "kills": 40, "kills_asked": 40, "lost": 0, "duplicated": 0,
        "processes_left_behind": 0, "judged_again": 2, "kills_of_owner": 1, "kills_of_all": 1,
        "same_evaluations_in_the_same_order": True, "same_best": True, "store_whole": True,
    }  # fmt: skip
    assert soak.passed(summary | change) is good
