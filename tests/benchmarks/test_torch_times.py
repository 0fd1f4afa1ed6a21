"""Torch's times without a graph's launch: what is taken out, what is left, and never twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import hgemm_torch_times as times  # noqa: E402

from sassafras.gemm.dataset import DATA, Dataset, Entry  # noqa: E402
from sassafras.gemm.shapes import Shape  # noqa: E402


@pytest.mark.parametrize("calls", times.CALLS)
@pytest.mark.parametrize("true", [2.1, 5.0, 20.6])
def test_what_a_block_added_is_taken_out(true: float, calls: int) -> None:
    timed = true + times.LAUNCH_US / calls
    assert times.torch_us(timed, true / times.USUAL) == pytest.approx(true)


def test_torch_is_never_faster_than_autotuning_nor_slower_than_it_was_timed() -> None:
    assert times.torch_us(5.0, 4.9) == 4.9  # less than a launch over four calls would leave
    assert times.torch_us(4.0, 4.5) == 4.0  # faster than AutoTuning was: left alone
    assert times.torch_us(10.0, 5.0) == pytest.approx(6.25)  # really slower: one call's launch at most


def test_a_file_is_corrected_once_and_keeps_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = Entry(
        Shape(64, 64, 64), {"lean_tn_m1n2s4/w1x2x4/c1": (1.0, 2)},
        {"torch": {"nn": 3.9, "tn": 4.0}, "lt_autotune": {"nn": 2.0}}, {},
    )  # fmt: skip
    path = tmp_path / "d.jsonl.gz"
    Dataset({"gpu": "NVIDIA H200"}, [entry]).save(path)
    for said in ("corrected", "left alone"):
        monkeypatch.setattr(sys, "argv", ["hgemm_torch_times.py", str(path)])
        assert times.main() == 0 and said in capsys.readouterr().out
        (held,) = Dataset.load(path)
        assert held.ours == entry.ours and held.baselines["lt_autotune"] == {"nn": 2.0}
        # without AutoTuning's time in that layout nothing is known
        assert held.baselines["torch"] == {"nn": pytest.approx(2.025), "tn": 4.0}


def test_files_that_are_none_are_named_and_left_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, cut = tmp_path / "empty.jsonl.gz", tmp_path / "cut.jsonl.gz"
    empty.write_bytes(b"")
    whole = next(DATA.glob("*few.jsonl.gz")).read_bytes()
    cut.write_bytes(whole[:500])
    names = [str(empty), str(cut), str(tmp_path / "missing.jsonl.gz")]
    monkeypatch.setattr(sys, "argv", ["hgemm_torch_times.py", *names])
    assert times.main() == 1
    assert capsys.readouterr().out.count("as it was: ") == 3
    assert empty.read_bytes() == b"" and cut.read_bytes() == whole[:500]


def test_all_shipped_datasets_say_that_they_were() -> None:
    files = sorted(DATA.glob("*.jsonl.gz"))
    assert len(files) >= 8
    for path in files:
        header = Dataset.load(path).header
        assert "torch_times" in header or header["date"] > "2026-11-22", path.name
