"""The ladder's bookkeeping: what a row says of a measurement, what is summed up, what the profiler said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sassafras.core import Evaluation, Interval, Verdict

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import beyond  # noqa: E402
import beyond_ladder  # noqa: E402
import beyond_limits  # noqa: E402


def outcome(speedup: float, low: float, high: float, null_high: float = 1.002) -> Evaluation:
    facts = {"processes": [], "clocks_before": {}, "clocks_after": {}}
    return Evaluation(
        "0" * 64, Verdict.CORRECT, time_us=10 / speedup, baseline_us=10.0, speedup=speedup,
        interval=Interval(low, high), null=1.0, null_interval=Interval(0.998, null_high), facts=facts,
    )  # fmt: skip


def row(kernel: str, stage: str, speedup: float, **more: Any) -> dict[str, Any]:
    return {
        "kernel": kernel, "stage": stage, "modelled": False, "speedup": speedup, "improved": speedup > 1,
        "speedup_low": speedup - 0.01, "speedup_high": speedup + 0.01, **more,
    }  # fmt: skip


def test_a_gain_counts_only_above_the_null_and_what_was_measured_is_kept() -> None:
    won = beyond_ladder.reported("swaps", outcome(1.05, 1.04, 1.06), True)
    assert won["improved"] and won["speedup"] == won["measured"] == 1.05
    lost = beyond_ladder.reported("swaps", outcome(1.003, 1.001, 1.005, null_high=1.004), True)
    assert not lost["improved"] and lost["speedup"] == 1.0 and lost["measured"] == 1.003
    assert beyond_ladder.reported("control", None, True)["speedup"] == 1.0


def test_the_identity_is_reported_as_it_came_out_and_knobs_the_other_way_round() -> None:
    slower = beyond_ladder.reported("identity", outcome(0.98, 0.97, 0.99), True)
    assert slower["speedup"] == 0.98 and not slower["improved"]
    own = beyond_ladder.reported("knobs", outcome(0.8, 0.75, 0.85), False)
    assert own["speedup"] == pytest.approx(1.25)
    assert own["speedup_low"] == pytest.approx(1 / 0.85) and own["speedup_high"] == pytest.approx(1 / 0.75)
    assert beyond_ladder.reported("knobs", None, True)["speedup"] == 1.0
    assert "error" in beyond_ladder.reported("knobs", None, False)


def test_a_candidate_that_failed_is_an_error_and_no_figure() -> None:
    wrong = Evaluation("0" * 64, Verdict.WRONG_RESULT, detail="seed 3")
    found = beyond_ladder.reported("swaps", wrong, True)
    assert "seed 3" in found["error"] and "speedup" not in found


def test_each_step_of_the_ladder_has_the_best_of_all_spaces_up_to_it() -> None:
    rows = [
        row("softmax", "swaps", 1.04), row("softmax", "control", 1.02), row("softmax", "renaming", 1.09),
        row("rotary", "swaps", 1.0), row("rotary", "control", 1.0, failed_after_validation=1),
        row("gemm:64x64x64/x", "swaps", 1.5, evaluations=7), row("rotary", "identity", 1.02),
        {"kernel": "rmsnorm", "stage": "all", "modelled": False, "error": "broken"},
    ]  # fmt: skip
    found = beyond.summarise(rows)
    ladder = found["ladder"]
    assert ladder["kernels"] == 2
    assert ladder["swaps"] == ladder["control"] == pytest.approx(1.04**0.5)
    assert ladder["renaming"] == ladder["blocks"] == pytest.approx(1.09**0.5)
    assert found["swaps"]["kernels"] == 2 and found["swaps"]["kernels_paper_six"] == 1
    assert found["hgemm_swaps"]["geomean_speedup"] == 1.5 and found["evaluations"] == 7
    assert found["identity"]["within_one_percent"] == 0
    assert found["wrong_or_crashed_after_validation"] == 1 and found["failed_rows"] == ["rmsnorm/all"]


def test_cuasmrls_six_come_first_and_nothing_comes_twice() -> None:
    from sassafras import suite

    order = beyond.subjects()
    assert order[:6] == [f"suite:{name}" for name in suite.paper_six()]
    assert len(set(order)) == len(order) == len(suite.names()) + len(beyond.WINNERS)


def test_the_winners_are_configurations_that_can_run_their_shapes() -> None:
    from sassafras.gemm.configs import registry
    from sassafras.gemm.problem.shape import BANDS, Shape

    shapes = []
    for target in beyond.WINNERS:
        shape, config = target.removeprefix("gemm:").split("/", 1)
        shapes.append(Shape.parse(shape))
        assert registry.parse(config).why_illegal(shapes[-1]) is None
    assert {shape.band for shape in shapes} >= set(list(BANDS)[:5])


def test_an_earlier_sittings_rows_are_taken_over_and_failed_ones_are_not(tmp_path: Path) -> None:
    import json

    lines = [row("softmax", "swaps", 1.1), {**row("rotary", "swaps", 1.0), "error": "broken"}]
    (tmp_path / "beyond.rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert set(beyond.done(tmp_path)) == set(beyond.done(tmp_path / "beyond.rows.jsonl"))
    assert set(beyond.done(tmp_path)) == {("softmax", "swaps")}
    assert beyond.done(tmp_path / "missing") == {}
    assert [r["stage"] for r in beyond.everything(tmp_path)] == ["swaps", "swaps"]
    with (tmp_path / "beyond.rows.jsonl").open("a") as file:
        file.write(json.dumps(row("rotary", "swaps", 1.0)) + "\n")
    assert not any("error" in r for r in beyond.everything(tmp_path))


def test_a_sitting_goes_on_from_the_published_result(tmp_path: Path) -> None:
    environment = {"gpu": "H200", "command": "beyond.py run"}
    rows = [row("softmax", "swaps", 1.1, commit="abc", environment=environment)]
    path = beyond.finish(rows, "beyond-reordering", 0, str(tmp_path), {"softmax": {"limit": "dram"}})
    again = beyond.done(path)
    assert again[("softmax", "swaps")]["speedup"] == 1.1
    assert again[("softmax", "swaps")]["environment"]["gpu"] == "H200"
    assert '"commit": "abc"' in path.read_text() and '"command": "beyond.py run"' in path.read_text()


def test_rows_of_other_code_count_no_more_but_for_what_they_tried() -> None:
    old = {"baseline_code": "a", "identity_code": "b", "evaluations": 5, "failed_after_validation": 0}
    new = {**old, "baseline_code": "c", "evaluations": 7}
    rows = [
        row("softmax", "swaps", 1.3, **old), row("softmax", "control", 1.2, **old),
        row("rotary", "swaps", 1.1, **old), row("softmax", "swaps", 1.0, **new),
        {"kernel": "softmax", "stage": "identity", "modelled": False, "error": "refused", **new},
    ]  # fmt: skip
    assert {key: r["speedup"] for key, r in beyond.done(rows).items()} == {
        ("softmax", "swaps"): 1.0,
        ("rotary", "swaps"): 1.1,
    }
    assert len(beyond.everything(rows)) == 3


def test_swaps_stand_while_the_baseline_does() -> None:
    old = {"baseline_code": "a", "identity_code": "b"}
    rows = [
        row("softmax", "swaps", 1.3, **old), row("softmax", "control", 1.2, **old),
        row("softmax", "identity", 1.0, **{**old, "identity_code": "c"}),
    ]  # fmt: skip
    assert {stage for _, stage in beyond.done(rows)} == {"swaps", "identity"}


def test_a_step_begins_with_the_schedules_of_the_one_before_it() -> None:
    import numpy as np

    from sassafras.schedule.spaces import space_of
    from sassafras.targets import load
    from sassafras.validate import Validator

    workload = load("suite:softmax")
    kernel = workload.build(workload.case(), "sm_90a")
    swaps, control = space_of("swaps", Validator)(kernel), space_of("control", Validator)(kernel)
    state, rng = swaps.start(), np.random.default_rng(0)
    for _ in range(20):
        move = swaps.sample(state, rng)
        assert move is not None
        state = swaps.apply(state, move)
    (seed,) = beyond_ladder.taken_over(control, [state, state])
    assert (seed.order == state.order).all()
    assert Validator(kernel.cubin, kernel.name).check(control.emit(seed)).ok
    backwards = type(state)(state.order[::-1].copy(), state.stall.copy())
    assert beyond_ladder.taken_over(control, [backwards]) == []


def test_evaluations_of_replaced_rows_are_not_forgotten(tmp_path: Path) -> None:
    import json

    old = {"baseline_code": "a", "identity_code": "b", "evaluations": 5, "failed_after_validation": 1}
    new = {**old, "identity_code": "c", "evaluations": 7, "failed_after_validation": 0}
    rows = [row("softmax", "swaps", 1.3, **old), row("softmax", "swaps", 1.0, **new)]
    summary = json.loads(beyond.finish(rows, "ladder", 0, str(tmp_path)).read_text())["summary"]
    assert summary["evaluations"] == 7
    assert summary["replaced"] == {"evaluations": 5, "wrong_or_crashed_after_validation": 1}


def test_a_row_stands_while_its_kernel_and_its_codes_from_scratch_are_the_same(tmp_path: Path) -> None:
    from sassafras.targets import load

    workload = load("suite:softmax")
    known = beyond_ladder.codes(workload.build(workload.case(), "sm_90a"))
    assert known["identity_code"] not in ("none", known["baseline_code"])
    assert beyond_ladder.stands("suite:softmax", known, str(tmp_path))
    assert not beyond_ladder.stands("suite:softmax", {**known, "identity_code": "0"}, str(tmp_path))
    assert not beyond_ladder.stands("suite:softmax", {**known, "baseline_code": "0"}, str(tmp_path))


def test_the_profilers_table_says_what_limits_each_launch(tmp_path: Path) -> None:
    stall = beyond_limits.STALL + "long_scoreboard" + beyond_limits.STALL_END
    shares = beyond_limits.SHARES
    header = ["ID", "Kernel Name", beyond_limits.DURATION, shares["compute"], shares["dram"], stall]
    rows = [
        ["", "", "ns", "%", "%", "warp"], ["0", "softmax_kernel", "4,500", "20.5", "81.0", "7.5"],
        ["1", "attention", "9,000", "30.0", "10.0", "3.25"],
    ]  # fmt: skip
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in [header, *rows])
    (tmp_path / "ncu.csv").write_text("==PROF== Connected\n" + text + "\n")
    (tmp_path / "subjects.txt").write_text("suite:softmax\nsuite:attention\n")
    found = beyond_limits.read(tmp_path)
    assert found["softmax"]["limit"] == "dram" and found["softmax"]["us"] == 4.5
    assert found["attention"]["limit"] == "latency (long_scoreboard)"
    (tmp_path / "subjects.txt").write_text("suite:softmax\n")
    with pytest.raises(ValueError, match="2 launches"):
        beyond_limits.read(tmp_path)
