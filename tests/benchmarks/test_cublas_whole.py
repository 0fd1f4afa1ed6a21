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
    assert (summary["valid"], summary["tried"], summary["wrong"]) == (180, 140, ["8x8x16"])
    assert (summary["ours"], summary["ours_shapes"]) == (None, 0)


def test_our_kernels_beside_the_lists_and_the_fastest_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By band, with weights n x k alone; a shape that was not published counts for neither."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cublas_whole

    counts = {"valid": 90, "tried": 70, "right": True, "null": 1.0}
    wholes = {"1024x1024x1024": 1.1, "8x8x16": 1.25, "8x8x8": 1.0}
    rows = [{"shape": shape, "whole": v, "whole_low": v, **counts} for shape, v in wholes.items()]
    published = [
        {"shape": "8x8x16", "ours": 1.0, "ours_tn": 2.0, "lt_autotune": 9.0, "lt_autotune_tn": 5.0},
        {"shape": "1024x1024x1024", "ours_tn": 4.0, "lt_autotune_tn": 4.4},
        {"shape": "8x16x16", "ours_tn": 1.0, "lt_autotune_tn": 7.0},
    ]
    summary = cublas_whole.summary_of(rows, published)
    assert list(summary["bands"]) == ["<1e8", "1e9-1e10"]
    small, large = summary["bands"].values()
    assert (small["shapes"], small["ours_shapes"]) == (2, 1) and (small["ours"], large["ours"]) == (2.5, 1.1)
    assert (small["ours_over_whole"], large["ours_over_whole"]) == (2.0, 1.0)
    assert summary["ours"] == pytest.approx(2.75**0.5, abs=1e-4)
    assert summary["ours_over_whole"] == pytest.approx(2**0.5, abs=1e-4)


def test_no_rehearsal() -> None:
    done = run_benchmark("cublas_whole", "--dry-run")
    assert done.returncode == 2 and "there is no rehearsal" in done.stderr
