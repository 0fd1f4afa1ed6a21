"""What a step has to move, and what samples.py makes of its records; the rates themselves need a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import samples

from sassafras.core import Buffer, Case, Custom
from sassafras.evaluate.gpu.random_tests import SPECIAL_EVERY

CASE = Case(
    "c",
    (1, 1, 1),
    {
        "y": Buffer("fp32", (1000,), "out"),
        "x": Buffer("fp32", (500,)),
        "cache": Buffer("fp32", (16_000,), "inout"),
        "slot": Buffer("i64", (10,), fill=Custom(lambda *_: None)),
    },
)


def test_outputs_are_read_twice_and_random_inputs_are_written() -> None:
    assert samples.least(CASE, {}) == {
        "least_read_bytes": 2 * (4000 + 64_000),
        "least_written_bytes": 2000 + 2 * 64_000,
    }
    untouched = samples.least(CASE, {"cache": 0.0})["least_written_bytes"] - 2000
    assert untouched == 2 * 64_000 * 4 / 16, "all in 2 samples of 16, a seventh in 14"
    assert samples.RENEWED == (2 + 14 / 7) / SPECIAL_EVERY
    assert samples.least(CASE, {"cache": 1.0}) == samples.least(CASE, {})


def test_the_lowest_share_and_ncus_bytes_are_reported() -> None:
    rates = {"samples": 10, "mismatches": 0, "ten_million_s": 5.0}
    records = {
        "softmax": {"shape": "softmax", "share": 0.6, **rates},
        "kv_append": {
            "shape": "kv_append", "share": 0.3, **rates, "least_read_bytes": 60, "least_written_bytes": 40,
        },
        "kv_append counters": {"counters": {"dram_read_bytes": 70.0, "dram_write_bytes": 40.0}},
        "rotary": {"shape": "rotary", "error": "no memory"},
    }  # fmt: skip
    rows = samples.merged(records, ["softmax", "kv_append", "rotary", "swiglu"])
    assert [row["kernel"] for row in rows] == ["softmax", "kv_append", "rotary"]
    assert "shape" not in rows[0] and rows[1]["counters"]["dram_read_bytes"] == 70.0
    summary = samples.summarise(rows)
    assert (summary["lowest"], summary["lowest_share"], summary["at_least_half"]) == ("kv_append", 0.3, 1)
    assert summary["below_half"] == ["kv_append"] and summary["failed"] == {"rotary": "no memory"}
    assert summary["dram_bytes_over_least"] == {"kv_append": pytest.approx(1.1)}


def test_a_rehearsal_writes_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    assert samples.main(["--dry-run", "--only", "softmax", "--out", str(tmp_path)]) == 0
    journal = tmp_path / "samples-dry.jsonl"
    again = ["--dry-run", "--out", str(tmp_path / "more"), "--resume", str(journal), "--limit-s", "-1"]
    assert samples.main(again) == 0
    (row,) = json.loads((tmp_path / "more" / "samples-dry.json").read_text())["rows"]
    assert row == {
        "least_read_bytes": 16_777_216,
        "least_written_bytes": 8_388_608,
        "kernel": "softmax",
    }
