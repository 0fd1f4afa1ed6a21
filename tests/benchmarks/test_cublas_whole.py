"""`benchmarks/cublas_whole.py` without a GPU: its rows and summary. Its calls: `cuda/test_cublas_calls`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts import BENCHMARKS, run_benchmark


def test_rows_and_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists miss 4 % of one shape; another is not benchmarked by itself, and what was found is wrong."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cublas_whole

    def record(shape: str, right: bool, **us: float) -> dict[str, Any]:
        blocks = {name: [value] * 12 for name, value in us.items()}
        counts = {"listed": 8, "valid": 90, "tried": 70, "right": right, "missing": True, "failed": ""}
        return {"shape": shape, "us": blocks, **counts}

    first = cublas_whole.row(record("8x8x8", True, lists=10.4, whole=10.0, null=10.4, gemm_ex=13.0))
    other = cublas_whole.row(record("8x8x16", False, lists=10.0, whole=10.0, null=10.0))
    assert (first["whole"], first["whole_low"], first["gemm_ex"], first["null"]) == (1.04, 1.04, 0.8, 1.0)
    assert "gemm_ex" not in other
    summary = cublas_whole.summary_of([first, other])
    assert (summary["shapes"], summary["gemm_ex_shapes"], summary["above_2_percent"]) == (2, 1, 1)
    assert summary["whole"] == pytest.approx(1.04**0.5, abs=1e-4) and summary["whole_best"] == 1.04
    assert summary["tried"] == 140 and summary["wrong"] == ["8x8x16"]


def test_no_rehearsal() -> None:
    done = run_benchmark("cublas_whole", "--dry-run")
    assert done.returncode == 2 and "there is no rehearsal" in done.stderr
