"""Which instances could go: by hand on a few times, and on a part of the dataset that ships."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.gemm import dataset
from sassafras.gemm.dataset import Dataset, Entry
from sassafras.gemm.shapes import Shape

ROOT = Path(__file__).resolve().parents[2]
A, B, C = "cs_tn_64x64_s6", "cs_tn_64x64_s12", "cs_nn_64x64_s6"
SMALL, LARGE = Shape(256, 256, 1024), Shape(512, 512, 4096)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import hgemm_instances

    return hgemm_instances


def entries() -> list[Entry]:
    torch = {"torch": {"nn": 8.0, "tn": 3.5}}
    return [
        # the second was timed briefly and looked faster: it counts as the winner does, and no less
        Entry(SMALL, {f"{A}/c1": (4.0, 2), f"{A}/c2+o": (3.0, 2), f"{B}/c1": (2.9, 0)}, torch),
        Entry(LARGE, {f"{A}/c1": (6.0, 2), f"{B}/c1": (5.0, 2), f"{C}/c1": (5.5, 2)}, torch),
        Entry(Shape(64, 64, 64), {f"{A}/c1": (1.0, -8), "quantum_tn_1/c1": (0.1, 2)}, torch),
    ]


def test_times_and_losses_by_hand(tool: Any) -> None:
    timed = tool.times(entries(), [A, B, C], "layout")
    assert timed.problems == [(str(SMALL), "tn"), (str(LARGE), "nn"), (str(LARGE), "tn")]
    assert timed.us.tolist() == [[3.0, 3.0, math.inf], [math.inf, math.inf, 5.5], [6.0, 5.0, math.inf]]
    left = np.ones(3, bool)
    assert timed.best(left).tolist() == [3.0, 5.5, 5.0]
    assert tool.losses(timed, left) == pytest.approx([0.0, math.log(6 / 5) / 3, math.inf])
    either = tool.times(entries(), [A, B, C], "shape")
    assert either.problems == [(str(SMALL), ""), (str(LARGE), "")]
    assert tool.losses(either, left) == pytest.approx([0.0, math.log(5.5 / 5) / 2, 0.0])
    with_torch = tool.times(entries(), [A, B, C], "layout", torch=True)
    assert with_torch.best(left).tolist() == [3.0, 5.5, 3.5]
    assert tool.losses(with_torch, left) == pytest.approx([0.0, 0.0, math.log(8 / 5.5) / 3])


def test_the_cheapest_goes_first_and_some_stay(tool: Any) -> None:
    timed = tool.times(entries(), [A, B, C], "layout")
    nothing = tool.times([], [A, B, C], "layout", torch=True)
    rows = tool.greedy(timed, nothing, np.zeros(3, bool), 9)
    # what is left has problems of its own: nobody else runs them
    assert (
        [row["instance"] for row in rows] == [A] and rows[0]["cost_percent"] == 0.0 and rows[0]["left"] == 2
    )
    kept = tool.greedy(timed, nothing, np.array([True, False, False]), 9)
    assert [row["instance"] for row in kept] == [B] and kept[0]["worst_so_far"] == f"{LARGE} tn"
    assert (kept[0]["won"], kept[0]["worst_percent"]) == (1, 20.0)
    assert kept[0]["cost_percent"] == kept[0]["so_far_percent"] == round(100 * (1.2 ** (1 / 3) - 1), 4)
    # off the grid the first one counts: the other goes, unless that weighs nothing
    apart = tool.times(
        [Entry(SMALL, {f"{A}/c1": (1.0, 2)}, {"torch": {"tn": 9.0}})], [A, B, C], "layout", True
    )
    for weight, gone in ((1.0, B), (0.0, A)):
        first, *_ = tool.greedy(timed, apart, np.zeros(3, bool), 1, weight)
        assert first["instance"] == gone


def test_on_a_part_of_what_ships(tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = dataset.shipped()
    Dataset(whole.header, list(whole)[::40]).save(tmp_path / "part.jsonl.gz")
    words = ["hgemm_instances.py", str(tmp_path / "part.jsonl.gz"), "--steps", "12", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert tool.main() == 0
    found = json.loads((tmp_path / "hgemm-instances.json").read_text())
    rows, summary = found["rows"], found["summary"]
    assert len(rows) == 12 and summary["problems"] == 50 and summary["off_grid"] > 1000
    assert len({row["instance"] for row in rows}) == 12 and rows[-1]["left"] == summary["instances"] - 12
    totals = [row["so_far_percent"] for row in rows]
    assert totals == sorted(totals) and not any(row["instance"].startswith("any_") for row in rows)
    assert {"cs_tn_64x64_s12", "cs_nn_64x64_s12"} <= tool.with_twins()
