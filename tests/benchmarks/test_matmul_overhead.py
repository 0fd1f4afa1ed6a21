"""CPU time of a call, rehearsed without a GPU, where torch serves everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts import run_benchmark

pytest.importorskip("torch")


def test_what_torch_serves_is_no_figure_of_ours(tmp_path: Path) -> None:
    """Half of the cases are named after ours, which here serves none of them."""
    done = run_benchmark("matmul_overhead", "--dry-run", "--rounds", "2", "--calls", "2", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "matmul-overhead-dry.json").read_text())
    assert any(row["case"].endswith(" ours") for row in found["rows"])
    assert found["summary"]["worst_over_torch_us_ours"] is None
    assert isinstance(found["summary"]["worst_over_torch_us"], float)
