"""The comparison of strategies: its statistics, and a small one on the timing model that goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import strategies  # noqa: E402


def row(kernel: str, strategy: str, seed: int, final: float, curve: list[list[float]]) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "strategy": strategy,
        "seed": seed,
        "modelled": False,
        "final_speedup": final,
        "believed_speedup": curve[-1][2],
        "curve": curve,
        "evaluations": 100,
        "gpu_seconds": 8.0,
        "cpu_seconds": 2.0,
        "seconds": 10.0,
        "verdicts": {"correct": 99, "wrong_result": 1},
    }


def test_the_interquartile_mean_ignores_the_tails_and_resamples_within_kernels() -> None:
    assert strategies.iqm(np.array([-100.0, 1, 2, 3, 4, 5, 6, 100.0])) == pytest.approx(3.5)
    rows = [row("a", "greedy", s, 1.0 + s / 1000, [[1, 0, 1.0, 0]]) for s in range(4)]
    rows += [row("b", "greedy", s, 2.0 + s / 1000, [[1, 0, 1.0, 0]]) for s in range(4)]
    middle, low, high = strategies.stratified(rows)
    assert low <= middle <= high and high - low < 0.01, "kernels differ, but each keeps its share"


def test_the_summary_names_the_best_and_counts_who_never_got_there() -> None:
    rows = []
    for kernel in ("softmax", "attention"):
        for seed in range(4):
            rows.append(row(kernel, "anneal", seed, 1.10, [[1, 0, 1.0, 0], [80, 8.0, 1.1, 8.0]]))
            rows.append(row(kernel, "guided", seed, 1.12, [[1, 0, 1.0, 0], [20, 9.0, 1.12, 9.0]]))
            rows.append(row(kernel, "random_walk", seed, 1.01, [[1, 0, 1.0, 0], [5, 0.5, 1.01, 0.5]]))
    rows.append({"kernel": "softmax", "strategy": "greedy", "seed": 0, "error": "DeviceError: gone"})
    found = strategies.summarise([*rows, row("softmax", "anneal", 9, 1.5, [[1, 0, 1.5, 0]])])
    assert found["units"] == 24 and found["left_out_for_balance"] == 1
    assert found["best_interquartile_mean"] == "guided" and not found["not_told_apart_from_it"]
    assert found["strategies"]["guided"]["evaluations_to_90_percent"] == 20
    lost = found["strategies"]["random_walk"]
    assert lost["evaluations_to_90_percent"] is None and lost["never_reached_90_percent"] == 8
    assert lost["geomean_believed_at_equal_seconds"] == pytest.approx(1.01)
    assert found["strategies"]["anneal"]["geomean_final"] == pytest.approx(1.10)
    assert found["above"]["guided"]["anneal"] == 8 and found["above"]["random_walk"]["anneal"] == 0
    assert found["by_kernel"]["softmax"]["guided"] == pytest.approx(1.12)
    assert found["strategies"]["guided"]["wrong_or_crashed"] == 8
    assert found["errors"][0]["error"] == "DeviceError: gone"


def test_the_committed_result_is_what_the_script_says_of_its_rows() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "strategies.json").read_text())
    assert json.loads(json.dumps(strategies.summarise(kept["rows"]))) == kept["summary"]


def test_a_small_comparison_on_the_timing_model_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two strategies; a finished search is not run again, a failed one is."""
    settings = strategies.Settings(tmp_path, "model", 12, 2, float("inf"))
    with pytest.raises(SystemExit, match="no searches"):
        strategies.publish(tmp_path, str(tmp_path))
    monkeypatch.setitem(strategies.STRATEGIES, "broken", ("anneal", {"no_such": 1}, {}))
    assert strategies.play("topk_gating", 0, ["anneal"], settings) == 1
    assert strategies.play("topk_gating", 0, ["anneal", "walk_memory_moves", "broken"], settings) == 1
    assert strategies.play("topk_gating", 0, ["anneal", "walk_memory_moves"], settings) == 0
    path = strategies.publish(tmp_path, str(tmp_path))
    assert path.name == "strategies-modelled.json"
    found = json.loads(path.read_text())
    assert found["summary"]["strategies"].keys() == {"anneal", "walk_memory_moves"}
    assert [e["strategy"] for e in found["summary"]["errors"]] == ["broken"]
    for one in found["rows"][:2]:
        assert one["evaluations"] == 12 and one["curve"] and one["final_speedup"] > 0.5
    assert found["summary"]["strategies"]["anneal"]["iqm_low"] is None, "one seed has no interval"
    for other in (("model", 3000, 2), ("cuda", 12, 2)):
        with pytest.raises(SystemExit, match="had another --device, --evaluations or --looks"):
            strategies.finished(tmp_path, strategies.Settings(tmp_path, *other, float("inf")).asked)
    assert strategies.finished(tmp_path, settings.asked)
    late = strategies.Settings(tmp_path, "model", 12, 2, 0.0)
    assert strategies.play("topk_gating", 1, ["anneal"], late) == 0, "nothing begins behind the deadline"


def test_the_leaders_are_chosen_by_other_looks_than_those_reported() -> None:
    class Outcome:
        def __init__(self, cost: float) -> None:
            self.cost = cost

    class Device:
        def __init__(self) -> None:
            self.costs = {"lucky": [0.5, 0.5, 1.0, 1.0], "good": [0.8] * 4}

        def run(self, candidate: str) -> Outcome:
            return Outcome(self.costs[candidate].pop(0))

    class Leader:
        def __init__(self, candidate: str) -> None:
            self.candidate = candidate

    class Found:
        leaders = (Leader("lucky"), Leader("good"))

    assert strategies.look_again(strategies.Timed(Device()), Found(), 4) == pytest.approx(1.0)
