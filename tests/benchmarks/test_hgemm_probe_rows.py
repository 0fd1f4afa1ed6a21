"""`benchmarks/hgemm_probe_rows.py` without a GPU: what should arrive, children that fail, a dry run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hgemm_probe_rows

    return hgemm_probe_rows


def test_what_should_arrive(probe: Any) -> None:
    plain = probe.should(probe.Question("", 8, swizzle=0))
    assert plain.shape == (8, 64) and plain[0, 0] == 8 and plain[2, 5] == 2 * 1024 + 13
    swizzled = probe.should(probe.Question("", 8))
    assert (swizzled[0] == plain[0]).all() and swizzled[3, 3 * 8] == plain[3, 0], "chunk c of row r is c ^ r"
    ends = probe.should(probe.Question("", 56, 30, dims=(100, 32), swizzle=0))
    assert ends[1, 43] == 31 * 1024 + 99 and not ends[1, 44:].any() and not ends[2:].any()
    assert not probe.should(probe.Question("", 2048)).any()
    before = probe.should(probe.Question("", -8, swizzle=0))
    assert not before[:, :8].any() and before[1, 8] == 1024
    found = plain.copy()
    found[2, 7] ^= 1
    told = probe.compared(found, plain)
    assert told["answer"] == "wrong" and told["row"] == 2 and told["rows"] == 1
    assert probe.compared(plain, plain) == {"answer": "right"}


def test_every_question_has_a_map_that_the_driver_takes(probe: Any) -> None:
    from sassafras.gemm.launch import TensorMap

    for q in probe.QUESTIONS:
        assert TensorMap("a", "fp16", q.dims, (q.stride,), q.box, q.swizzle).reject() is None
        assert (q.expected == "refused") == bool(q.x % 8)
        assert q.stride // 2 * (q.dims[1] - 1) + q.dims[0] <= probe.ELEMENTS, "copies stay within the buffer"
    assert len({q.name for q in probe.QUESTIONS}) == len(probe.QUESTIONS)


def test_a_child_that_fails_or_hangs_is_told_of(
    probe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe.ask(99, ["--dry-run"])["answer"] == "failed", "no such question"
    monkeypatch.setattr(probe, "__file__", str(tmp_path / "sleeps.py"))
    (tmp_path / "sleeps.py").write_text("import time; time.sleep(60)")
    assert "killed after 1 s" in probe.ask(0, [], limit_s=1.0)["why"]


def test_a_dry_run_asks_everything(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "hgemm_probe_rows.py"), "--dry-run", "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    told = json.loads((tmp_path / "hgemm-probe-rows-dry.json").read_text())
    assert told["summary"]["asked"] == told["summary"]["of"] == len(told["rows"]) == 15
    assert not told["summary"]["surprises"] and told["summary"]["modelled"]
    assert {row["answer"] for row in told["rows"]} == {"right", "refused"} and all(
        r["dry"] for r in told["rows"]
    )
