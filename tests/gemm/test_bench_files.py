"""Journals, merging and summaries: what a benchmark keeps and what it concludes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sassafras.core import SassafrasError
from sassafras.cuda.cublas import LtAlgorithm
from sassafras.gemm.bench import report
from sassafras.gemm.bench.journal import Journal, alone, belongs, records_of
from sassafras.gemm.bench.runs import collected


def row(ours: float | None, band: str = "<1e8", low: float = 1.0, **more: Any) -> dict[str, Any]:
    base = {"band": band, "lt_autotune": 2.0, "lt_heuristic": 2.2, "cublas": 2.4, "torch": 3.0, "null": 1.0}
    if ours:
        base |= {"ours": ours, "speedup_low": low, "rms_ratio": 1.0, "rms_ratio_after": 1.01}
        base |= {"portfolio": min(ours, 2.0), "portfolio_speedup_low": 2.0 / min(ours, 2.0) - 0.01}
        base |= {
            "cold_ours": 2 * ours,
            "cold_lt_autotune": 5.0,
            "wall_p50_torch": 9.0,
            "wall_p99_torch": 20.0,
        }
    return base | more


def test_figures() -> None:
    rows = [row(1.0, low=1.9), row(4.0, low=0.4), row(None, ">1e12"), {"band": "<1e8", "error": "crashed"}]
    found = report.summarise([*rows, {"band": "<1e8", "pending": True}])
    counts = {key: found[key] for key in ("shapes", "measured", "with_ours", "failed", "pending")}
    assert counts == {"shapes": 5, "measured": 3, "with_ours": 2, "failed": 1, "pending": 1}
    assert found["portfolio_worst_vs_lt_autotune"] == 1.0
    assert found["portfolio_worst_low_vs_lt_autotune"] == pytest.approx(0.99)
    assert found["portfolio_geomean_vs_lt_autotune"] == pytest.approx(2**0.5)
    assert found["cold_geomean_vs_lt_autotune"] == pytest.approx((5 / 2 * 5 / 8) ** 0.5)
    assert found["wall_p50_torch_us"] == 9.0
    assert found["geomean_vs_lt_autotune"] == pytest.approx(1.0)
    assert found["mean_vs_lt_autotune"] == pytest.approx(1.25)
    assert found["worst_vs_lt_autotune"] == pytest.approx(0.5)
    assert found["win_rate_vs_lt_autotune"] == 0.5
    assert found["worst_rms_ratio"] == 1.01
    assert set(found["bands"]) == {"<1e8", ">1e12"}
    assert "geomean_vs_lt_autotune" not in found["bands"][">1e12"], "nothing of ours to compare"
    columns, cells = report.table(found)
    assert all(len(line) == len(columns) for line in cells) and cells[-1][0] == "all"


def test_an_unsure_win_is_none() -> None:
    assert report.figures([row(1.99, low=1.004)])["win_rate_vs_lt_autotune"] == 0.0


def test_merging_processes_widens_the_interval() -> None:
    one = row(1.0, low=1.99, ratios=[2.0, 2.01, 1.99] * 5, speedup=2.0, speedup_high=2.01)
    other = row(1.1, low=1.79, ratios=[1.8, 1.81, 1.79] * 5, speedup=1.8, speedup_high=1.81)
    alone, both = report.merge([one]), report.merge([one, other])
    assert alone["speedup_low"] == 1.99 and "ratios" not in alone
    assert both["ours"] == pytest.approx(1.05) and both["processes"] == 2
    assert both["speedup_low"] < 1.79 and both["speedup_high"] > 2.01
    assert both["speedup"] == pytest.approx((2.0 * 1.8) ** 0.5)


def test_journal_survives_a_kill_and_refuses_strangers(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {"kernels": "a"}).add({"shape": "64x64x64", "ours_us": 1.0})
    with path.open("a") as file:
        file.write('{"shape": "64x64x128", "ours')  # killed here
    again = Journal(path, {"kernels": "a"})
    assert list(again.done()) == ["64x64x64"]
    again.add({"shape": "64x64x128", "error": "died"})
    again.add({"faulty": "a_kernel", "at": "64x64x128", "why": "died"})
    assert again.done()["64x64x128"]["error"] == "died" and len(again.done()) == 2
    with pytest.raises(SassafrasError, match="other conditions"):
        Journal(path, {"kernels": "b"})
    for damage in (b"\xff\xfe\n", b"3\n", b'["shape"]\n'):
        path.write_bytes(path.read_bytes() + damage)
    assert len(Journal(path, {"kernels": "a"}).done()) == 2
    for strange in (b'{"something": 1}\n', b"7\n", b"\xff\xfe\n", b'{"header": [1]}\n', b"a file"):
        path.write_bytes(strange)
        with pytest.raises(SassafrasError, match="not a benchmark journal"):
            Journal(path, {"kernels": "a"})
        assert path.read_bytes() == strange
    for cut in (b"", b"{", b'{"header": {"kern'):  # killed in the first line
        path.write_bytes(cut)
        assert not Journal(path, {"kernels": "a"}).done()


def test_a_folder_is_free_again_whatever_was_forked_meanwhile(tmp_path: Path) -> None:
    end, kept = os.pipe()
    with alone(tmp_path):
        if (child := os.fork()) == 0:
            os.close(kept)
            os.read(end, 1)
            os._exit(0)
    try:
        with alone(tmp_path), pytest.raises(SassafrasError, match="another process"), alone(tmp_path):
            pass
    finally:
        os.close(kept)
        os.waitpid(child, 0)
        os.close(end)


@pytest.mark.parametrize("text", ("5\n", '{"header": 5}\n', '{"head', "[1]\n"))
def test_what_is_no_journal_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    with pytest.raises(SassafrasError, match="not a benchmark journal"):
        belongs(path, {"kernels": "a"})
    path.write_bytes(b'{"header": {}}\n\xff\xfe\n5\n{"shape": 5}\n{"shape": "64x64x64"}\n')
    assert list(records_of(path)) == ["64x64x64"], "of damaged lines nothing is taken"


def test_journals_of_other_conditions_are_not_put_together(tmp_path: Path) -> None:
    """Concatenated, or side by side: the times of one GPU would be another's."""
    first, second = (tmp_path / f"hgemm-select.gpu{index}.jsonl" for index in range(2))
    selected = {"rungs": [], "lt": {}, "torch": {"nn": 2.0}}
    Journal(first, {"gpu": "A"}).add({"shape": "64x64x64", **selected})
    Journal(second, {"gpu": "B"}).add({"shape": "64x64x128", **selected})
    with pytest.raises(SassafrasError, match=r"gpu1\.jsonl: .*other conditions"):
        collected(tmp_path)
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    with pytest.raises(SassafrasError, match=r"gpu0\.jsonl: .*other conditions"):
        collected(tmp_path)
    for damaged in ({"rungs": []}, {**selected, "torch": {"nn": 0.0}}, {**selected, "rungs": [[1, 2]]}):
        first.unlink()
        Journal(first, {"gpu": "A"}).add({"shape": "64x64x64", **damaged})
        with pytest.raises(SassafrasError, match=r"64x64x64: a damaged record: .*remove its line"):
            collected(tmp_path)


def test_algorithms_travel_between_processes() -> None:
    algorithm = LtAlgorithm("tn", bytes(range(64)), 1 << 20)
    assert LtAlgorithm.from_json(algorithm.to_json()) == algorithm
