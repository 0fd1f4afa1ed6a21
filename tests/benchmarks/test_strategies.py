"""The comparison of strategies: its statistics, and a small one on the timing model, stopped and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shared import without_torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

strategies = pytest.importorskip("strategies")


def unit(kernel: str, strategy: str, seed: int, final: float, curve: list[list[float]], **more: Any) -> Any:
    return {
        "kernel": kernel, "strategy": strategy, "seed": seed, "final_speedup": final,
        "believed_speedup": curve[-1][2], "curve": curve, "evaluations": 100, "seconds": 10.0,
        "area_under_curve": strategies.area(curve, 100), "verdicts": {"correct": 100},
        "evaluations_per_second": 10.0, "modelled": False,
    } | more  # fmt: skip


def test_areas_and_curves() -> None:
    curve = [[1, 0.1, 1.0], [51, 5.0, 1.1]]
    assert strategies.area(curve, 100) == pytest.approx(100 * np.log(1.1) / 2)
    assert strategies.best_at(curve, 4.9, 1) == 1.0 and strategies.best_at(curve, 60, 0) == 1.1
    assert strategies.reach({"curve": curve}, 1.05) == 51 and strategies.reach({"curve": curve}, 1.2) is None


def test_the_interquartile_mean_ignores_the_tails_and_resamples_within_kernels() -> None:
    assert strategies.iqm(np.array([-100.0, 1, 2, 3, 4, 5, 6, 100.0])) == pytest.approx(3.5)
    rows = [unit("a", "x", s, 1.0 + s / 1000, [[1, 0, 1.0]]) for s in range(4)]
    rows += [unit("b", "x", s, 2.0 + s / 1000, [[1, 0, 1.0]]) for s in range(4)]
    middle, low, high = strategies.stratified(rows)
    assert low <= middle <= high and high - low < 0.01  # kernels differ, but each keeps its share


def test_the_summary_names_the_best_and_counts_who_never_got_there() -> None:
    rows = []
    for kernel in ("softmax", "attention", "quantise_fp8", "gemv_int4"):
        for seed in range(4):
            rows.append(unit(kernel, "anneal", seed, 1.10, [[1, 0, 1.0], [80, 8.0, 1.1]]))
            rows.append(unit(kernel, "ppo_pretrained", seed, 1.12, [[1, 0, 1.0], [20, 9.0, 1.12]]))
            rows.append(unit(kernel, "random_walk", seed, 1.01, [[1, 0, 1.0], [5, 0.5, 1.01]]))
    rows.append({"kernel": "softmax", "strategy": "greedy", "seed": 0, "error": "DeviceError: gone"})
    found = strategies.summarise(rows)
    assert found["best_interquartile_mean"] == "ppo_pretrained"
    assert found["strategies"]["ppo_pretrained"]["evaluations_to_90_percent"] == 20
    lost = found["strategies"]["random_walk"]
    assert lost["evaluations_to_90_percent"] is None and lost["never_reached_90_percent"] == 16
    assert found["strategies"]["anneal"]["geomean_final"] == pytest.approx(1.10)
    assert found["strategies"]["random_walk"]["geomean_believed_at_equal_seconds"] == pytest.approx(1.01)
    assert len(found["transfer"]["kernels"]) == 4 and found["transfer"]["conclusion"] is None
    assert found["errors"][0]["error"] == "DeviceError: gone"
    assert strategies.middle_or_none([1.0, float("inf")]) is None  # half of them never got there
    few = strategies.summarise([r for r in rows if r["kernel"] != "softmax"])
    assert "inconclusive" in few["transfer"]["conclusion"]


def test_a_small_comparison_on_the_timing_model_is_taken_up_where_it_stopped(
    tmp_path: Path, shared: Path
) -> None:
    def run(*more: str) -> str:
        command = [
            sys.executable, str(ROOT / "benchmarks" / "strategies.py"), "--folder", str(tmp_path / "units"),
            "--device", "model", "--lonely", "--kernels", "kv_append", "--strategies", "anneal,greedy",
            "--seeds", "1", "--evaluations", "12", "--out", str(tmp_path), *more,
        ]  # fmt: skip
        path = f"{ROOT / 'src'}{os.pathsep}{without_torch(shared)}"
        environment = os.environ | {"PYTHONPATH": path, "SASSAFRAS_COMMIT": "test"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert "0 units left" in run()
    (tmp_path / "units" / "kv_append--greedy--0.json").unlink()
    again = run()
    assert "kv_append greedy 0" in again and "kv_append anneal 0:" not in again
    held = json.loads((tmp_path / "strategies-modelled.json").read_text())
    assert held["summary"]["modelled"] and {r["strategy"] for r in held["rows"]} == {"anneal", "greedy"}
    for row in held["rows"]:
        assert row["evaluations"] == 12 and row["curve"][0][0] == 1
        assert {"final_speedup", "area_under_curve", "seed"} <= row.keys()
    assert not (tmp_path / "strategies.json").exists()  # modelled figures are no results
