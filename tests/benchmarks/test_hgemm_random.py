"""`benchmarks/hgemm_random.py` without a GPU: the bound on elements, and a dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts import BENCHMARKS, run_benchmark


def test_one_wrong_element_of_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from hgemm_random import elements_outside

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator).half() for _ in range(2))
    reference = a.double() @ b.double()
    right = reference.half()
    assert elements_outside(right, reference, 256) == 0
    for wrong in (float("nan"), float("inf"), float(right[3, 5]) * 1.01 + 0.1):
        spoilt = right.clone()
        spoilt[3, 5] = wrong
        assert elements_outside(spoilt, reference, 256) == 1
    halves = (a[:, :128].double() @ b[:128].double()).half() + (a[:, 128:].double() @ b[128:].double()).half()
    assert elements_outside(halves, reference, 256) > 0, "partial sums in FP16 are not within it"


def test_a_dry_run_writes_its_file(tmp_path: Path) -> None:
    done = run_benchmark("hgemm_random", "--dry-run", "--count", "30", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "hgemm-random-dry.json").read_text())["summary"]
    assert summary["checks"] == 30 and summary["wrong"] == summary["yardstick_off"] == 0
