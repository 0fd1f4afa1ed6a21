"""Kendall's tau-b, and which pairs of intervals are told apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.pages import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import timing_model
from timing_model import distinguishable, kendall_tau


def test_tau_of_known_rankings() -> None:
    x = np.array([1.0, 2, 3, 4])
    assert kendall_tau(x, x) == 1.0
    assert kendall_tau(x, -x) == -1.0
    # one of six pairs is reversed
    assert kendall_tau(x, np.array([1.0, 2, 4, 3])) == pytest.approx(4 / 6)
    # ties: five concordant pairs, one tied in x: 5 / sqrt(5 * 6)
    assert kendall_tau(np.array([1.0, 2, 2, 3]), x) == pytest.approx(5 / np.sqrt(30))
    assert kendall_tau(np.ones(4), x) is None
    assert kendall_tau(x[:1], x[:1]) is None


def test_tau_of_noise_is_small() -> None:
    rng = np.random.default_rng(0)
    found = kendall_tau(rng.random(400), rng.random(400))
    assert found is not None and abs(found) < 0.1


def test_only_the_chosen_pairs_count() -> None:
    low, high = np.array([0.0, 0.5, 2.0]), np.array([1.0, 1.5, 3.0])
    apart = distinguishable(low, high)
    assert apart.tolist() == [[False, False, True], [False, False, True], [True, True, False]]
    # the reversed pair (0, 1) overlaps, so it does not count
    x, y = np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.0, 3.0])
    assert kendall_tau(x, y, apart) == 1.0
    assert kendall_tau(x, y) == pytest.approx(1 / 3)


def test_raw_rows_of_two_gpus_are_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, gpu in (("softmax", "NVIDIA H200"), ("swiglu", "NVIDIA H100")):
        raw = {"kernel": name, "environment": {"gpu": gpu}}
        (tmp_path / name).write_text(json.dumps({"benchmark": "timing-model-raw", "rows": [raw]}))
    call = ["timing_model.py", "--remodel", str(tmp_path / "softmax"), str(tmp_path / "swiglu")]
    monkeypatch.setattr(sys, "argv", call)
    with pytest.raises(SystemExit, match="rows of NVIDIA H100 and of NVIDIA H200"):
        timing_model.main()
