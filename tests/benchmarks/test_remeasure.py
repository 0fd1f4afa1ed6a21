"""Kernels of compiler-space.json again: made of their recipes, and what two days' figures say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import remeasure  # noqa: E402


def test_recipes_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options, rewrites and another release of ptxas; what was made is not made again."""
    call = ["remeasure.py", "--dry-run", "--only", "rotary,kv_append", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", call)
    remeasure.main()
    lines = (tmp_path / "compiler-space-again.rows.jsonl").read_text().splitlines()
    rows = {row["kernel"]: row for row in map(json.loads, lines)}
    assert set(rows) == {"rotary", "kv_append"}
    for row in rows.values():
        assert "error" not in row and isinstance(row["same_file"], bool), row
        assert row["then_low"] <= row["then"] <= row["then_high"]
    remeasure.main()
    assert len((tmp_path / "compiler-space-again.rows.jsonl").read_text().splitlines()) == 2
    assert not list(tmp_path.glob("*.json")), "nothing was measured"


def test_only_a_measurement_of_the_published_kernel_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of rehearsals and of an older compiler-space.json do not; failures stay in the result."""
    published = json.loads((remeasure.RESULTS / "compiler-space.json").read_text("utf-8"))["rows"]
    ptx = {row["kernel"]: next(p for p in row["stages"] if p["stage"] == "ptx")["ratio"] for row in published}
    common = {"same_file": True, "environment": {"gpu": "some"}}
    kept = [
        {"kernel": "rotary", "then": ptx["rotary"], **common},
        {"kernel": "softmax", "then": 9.0, "now": 9.0, "difference": 0.0, **common},
        {"kernel": "swiglu", "then": ptx["swiglu"], "now": 1.0, "difference": 0.0, **common},
    ]
    journal = tmp_path / "compiler-space-again.rows.jsonl"
    journal.write_text("".join(json.dumps(row) + "\n" for row in kept))
    call = ["remeasure.py", "--only", "rotary,softmax,swiglu", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", call)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # two kernels are asked for, and have no GPU
    remeasure.main()
    made = json.loads((tmp_path / "compiler-space-again.json").read_text())
    assert (made["summary"]["kernels"], made["summary"]["failed"]) == (1, 2)
    assert [row["kernel"] for row in made["rows"]] == ["rotary", "softmax", "swiglu"]
    with journal.open("a") as file:
        file.write(json.dumps(kept[2] | {"kernel": "kv_append", "then": ptx["kv_append"],
                                         "environment": {"gpu": "another"}}) + "\n")  # fmt: skip
    with pytest.raises(SystemExit, match="make no result together"):
        remeasure.main()


def test_the_published_summary_is_that_of_its_rows() -> None:
    kept = json.loads((remeasure.RESULTS / "compiler-space-again.json").read_text("utf-8"))
    assert remeasure.summarise(kept["rows"]) == kept["summary"]


def test_a_release_that_is_not_here_is_named() -> None:
    published = json.loads((remeasure.RESULTS / "compiler-space.json").read_text("utf-8"))
    row = next(row for row in published["rows"] if row["kernel"] == "softmax")
    part = next(part for part in row["stages"] if part["stage"] == "ptx")
    part = {**part, "recipe": {**part["recipe"], "ptxas": "11.0.1"}}
    options = remeasure.argparse.Namespace(dry_run=True)
    made = remeasure.measured("suite:softmax", part, options)
    assert made["error"].startswith("ptxas 11.0.1 is not here; there are ")


def test_days_agree_within_half_a_percent() -> None:
    def row(kernel: str, then: float, now: float) -> dict[str, Any]:
        both = {"then": then, "now": now, "difference": now / then - 1, "same_file": kernel == "a"}
        return {"kernel": kernel, **both}

    rows = [row("a", 1.1, 1.102), row("b", 1.0, 0.99), {"kernel": "c", "then": 1.2, "error": "crashed"}]
    made = remeasure.summarise(rows)
    assert (made["kernels"], made["agree"], made["same_file"], made["failed_rows"]) == (
        2,
        1,
        1,
        ["c: crashed"],
    )
    assert made["largest_difference"] == pytest.approx(0.01)
    assert made["geomean_then"] == pytest.approx(1.1**0.5, abs=1e-4)
