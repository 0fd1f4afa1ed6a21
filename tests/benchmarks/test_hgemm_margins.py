"""The replay of dispatch's margins: dispatch chooses, measurements judge."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sassafras.gemm.choose import OURS_BETTER
from sassafras.gemm.table import Table, shipped_path

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def margins() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("hgemm_margins", ROOT / "benchmarks/hgemm_margins.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_what_is_chosen_counts_by_what_was_measured(margins: Any) -> None:
    table = Table.load(shipped_path("NVIDIA H200"))
    row = next(r for r in table.rows.values() if r.ours and r.lt_us and r.lt_us > 1.1 * r.ours[0][1])
    measured = {
        "shape": str(row.shape), "band": "one", "lt_autotune": 3.0, f"ours_{row.layout}": 2.0,
        f"lt_autotune_{row.layout}": 3.0, f"torch_{row.layout}": 4.0,
    }  # fmt: skip
    assert margins.replayed(table, [measured], OURS_BETTER) == {"one": [1.5]}
    never = ((math.inf, 1e9),)
    assert margins.replayed(table, [measured], never)["one"][0] in (1.0, 0.75)


def test_results_that_are_not_there_are_named() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/hgemm_margins.py", "--results", "nosuch"], cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "there is no nosuch.json" in done.stderr
