"""The benchmark of scheduler and validator, on one small kernel."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_a_small_run_writes_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    agreement = importlib.import_module("agreement")
    assert agreement.main(["--moves", "5", "--only", "kv_append", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "agreement.json").read_text())
    assert (
        written["summary"]["judged_keep"]
        == written["summary"]["judged_regenerate"]
        == 5 * len(written["rows"])
    )
    assert written["summary"]["refused_keep"] == 0
    assert 0.5 < written["rows"][0]["modelled_from_scratch"] < 2.0
    written["rows"][0]["refused_keep"] = ["something"]
    assert agreement.summarise(written["rows"])["refused_keep"] == 1
