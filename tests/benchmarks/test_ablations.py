"""CuAsmRL's ablations: what is compared, and a small comparison on the timing model that goes on."""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import ablations  # noqa: E402
import strategies  # noqa: E402

from sassafras.core.files import locked  # noqa: E402


def row(strategy: str, kernel: str, seed: int, final: float) -> dict[str, Any]:
    return {"strategy": strategy, "kernel": kernel, "seed": seed, "final_speedup": final}


def test_a_variant_is_compared_on_what_both_have_done() -> None:
    rows = [row("cuasmrl", "a", s, 1.0 + s) for s in range(3)]
    rows += [row("gate", "a", s, 1.1 * (1.0 + s)) for s in range(2)] + [row("gate", "b", 0, 9.0)]
    found = ablations.change(rows, "gate")
    assert (found["pairs"], found["above"]) == (2, 2)
    assert found["change"] == pytest.approx(0.1) == found["low"] == found["high"]
    alone = ablations.change([*rows, row("no mask", "a", 0, 1.2)], "no mask")
    assert (alone["pairs"], alone["low"], alone["high"]) == (1, None, None), "one pair has no interval"
    assert ablations.change(rows, "pool") == {
        "pairs": 0, "above": 0, "change": None, "low": None, "high": None,
    }  # fmt: skip


def test_a_small_comparison_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    settings = strategies.Settings(tmp_path, "model", 8, 2, float("inf"), shared=True)
    names = ["cuasmrl", "walk_memory_moves"]
    monkeypatch.setattr(strategies, "STRATEGIES", dict(strategies.STRATEGIES))
    # a network of two rows: the preset's own has 27 million weights to factorise (tests/search/ppo makes one)
    monkeypatch.setitem(ablations.CHANGES, "cuasmrl", {"pool": True})
    monkeypatch.setattr("sassafras.search.ppo.network.PaperNetwork.ROWS", 2)
    assert ablations.play("topk_gating", 0, names, settings) == 2
    assert ablations.play("topk_gating", 0, names, settings) == 0
    found = json.loads(ablations.publish(tmp_path, str(tmp_path)).read_text())
    assert found["benchmark"] == "cuasmrl-ablations-modelled" and found["summary"]["modelled"]
    assert found["summary"]["variants"]["walk_memory_moves"]["pairs"] == 1
    agent = next(r for r in found["rows"] if r["strategy"] == "cuasmrl")
    assert (agent["settings"]["total"], agent["settings"]["gate"]) == (8, False)
    assert "turns" not in agent["settings"] and (tmp_path / "gpu-0.lock").exists()


def test_a_locked_file_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("a") as other:
        with locked(path), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with locked(""):
        pass
