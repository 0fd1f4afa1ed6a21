"""The comparison of strategies: its statistics, and a small one on the timing model, stopped and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from tests.shared import without_torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

strategies = pytest.importorskip("strategies")
summary = pytest.importorskip("strategies_summary")
units = pytest.importorskip("strategies_units")


def unit(kernel: str, strategy: str, seed: int, final: float, curve: list[list[float]], **more: Any) -> Any:
    return {
        "kernel": kernel, "strategy": strategy, "seed": seed, "final_speedup": final,
        "believed_speedup": curve[-1][2], "curve": curve, "evaluations": 100, "seconds": 10.0,
        "gpu_seconds": 8.0, "cpu_seconds": 2.0, "steps": 120, "reason": "budget",
        "area_under_curve": units.area(curve, 100), "verdicts": {"correct": 100},
        "evaluations_per_second": 10.0, "modelled": False,
    } | more  # fmt: skip


def test_areas_and_curves() -> None:
    curve = [[1, 0.1, 1.0, 0.1], [51, 5.0, 1.1, 5.0]]
    assert units.area(curve, 100) == pytest.approx(100 * np.log(1.1) / 2)
    assert summary.best_at(curve, 4.9, 1) == 1.0 and summary.best_at(curve, 60, 0) == 1.1
    assert summary.reach({"curve": curve}, 1.05) == 51 and summary.reach({"curve": curve}, 1.2) is None


def test_the_interquartile_mean_ignores_the_tails_and_resamples_within_kernels() -> None:
    assert summary.iqm(np.array([-100.0, 1, 2, 3, 4, 5, 6, 100.0])) == pytest.approx(3.5)
    rows = [unit("a", "x", s, 1.0 + s / 1000, [[1, 0, 1.0, 0]]) for s in range(4)]
    rows += [unit("b", "x", s, 2.0 + s / 1000, [[1, 0, 1.0, 0]]) for s in range(4)]
    middle, low, high = summary.stratified(rows)
    assert low <= middle <= high and high - low < 0.01  # kernels differ, but each keeps its share


def test_the_summary_names_the_best_and_counts_who_never_got_there() -> None:
    rows = []
    for kernel in ("softmax", "attention", "quantise_fp8", "gemv_int4"):
        for seed in range(4):
            rows.append(unit(kernel, "anneal", seed, 1.10, [[1, 0, 1.0, 0], [80, 8.0, 1.1, 8.0]]))
            rows.append(unit(kernel, "ppo_pretrained", seed, 1.12, [[1, 0, 1.0, 0], [20, 9.0, 1.12, 9.0]]))
            rows.append(unit(kernel, "random_walk", seed, 1.01, [[1, 0, 1.0, 0], [5, 0.5, 1.01, 0.5]]))
    rows.append({"kernel": "softmax", "strategy": "greedy", "seed": 0, "error": "DeviceError: gone"})
    found = summary.summarise(rows)
    assert found["best_interquartile_mean"] == "ppo_pretrained"
    assert found["strategies"]["ppo_pretrained"]["evaluations_to_90_percent"] == 20
    lost = found["strategies"]["random_walk"]
    assert lost["evaluations_to_90_percent"] is None and lost["never_reached_90_percent"] == 16
    assert found["strategies"]["anneal"]["geomean_final"] == pytest.approx(1.10)
    assert found["strategies"]["random_walk"]["geomean_believed_at_equal_gpu_seconds"] == pytest.approx(1.01)
    assert len(found["transfer"]["kernels"]) == 4
    assert found["transfer"]["median_ratio"]["ppo_pretrained"] == pytest.approx(20 / 80)
    assert found["transfer"]["conclusion"]["ppo_pretrained"] == "not reached"  # a quarter is no fifth
    assert found["transfer"]["median_ratio"]["guided_experience"] is None
    assert found["not_told_apart_from_it"] == []
    assert found["errors"][0]["error"] == "DeviceError: gone"
    assert summary.middle_or_none([1.0, float("inf")]) is None  # half of them never got there
    few = summary.summarise([r for r in rows if r["kernel"] != "softmax"])
    assert "fewer than four" in few["transfer"]["conclusion"]["ppo_pretrained"]
    for kernel in ("softmax", "attention", "quantise_fp8", "gemv_int4"):
        for seed in range(4):
            guided = unit(kernel, "guided_experience", seed, 1.13, [[1, 0, 1.0, 0], [16, 2.0, 1.13, 2.0]])
            rows.append(guided)
    found = summary.summarise(rows)
    assert found["transfer"]["median_ratio"]["guided_experience"] == pytest.approx(16 / 80)
    assert found["experience_over_anneal"] == {"pairs": 16, "better": 16, "worse": 0}


def test_strategies_are_judged_by_what_all_of_them_did() -> None:
    rows = [unit("a", name, s, 1.1, [[1, 0, 1.1, 0]]) for name in ("anneal", "greedy") for s in range(2)]
    rows += [unit("b", "anneal", 0, 2.0, [[1, 0, 2.0, 0]])]
    found = summary.summarise(rows)
    assert found["units"] == 4 and found["left_out_for_balance"] == 1 and found["kernels"] == ["a"]
    assert found["strategies"]["anneal"]["geomean_final"] == pytest.approx(1.1)
    assert found["not_told_apart_from_it"] == ["anneal"]


def test_a_strategy_that_is_far_behind_is_judged_apart_by_equal_evaluations(tmp_path: Path) -> None:
    quick = [[1, 0.1, 1.0, 0.1], [40, 4.0, 1.04, 4.0], [90, 9.0, 1.2, 9.0]]
    rows = [unit(k, n, s, 1.1, quick) for k in "ab" for n in ("anneal", "greedy") for s in range(2)]
    rows.append(unit("a", "ppo_fresh", 0, 1.01, [[1, 0.1, 1.0, 0.1], [30, 3.0, 1.01, 30.0]]))
    # one more was cut after fifty evaluations, its third the best
    found = [["d1", 0, "correct", 9.0, 10.0, 1.01], ["d2", 0, "wrong_result", None, None, None]]
    found += [["d3", 0, "correct", 9.0, 10.0, 1.03]] + [["d", 0, "correct", 9.0, 10.0, 1.0]] * 47
    packed = json.dumps([[*row, *[None] * 11, 0.25] for row in found]).encode()
    (tmp_path / "b--ppo_fresh--1.part").write_bytes(zlib.compress(packed))
    (tmp_path / "b--anneal--0.json").write_text(json.dumps(rows[4]))
    cut = units.cut(tmp_path)
    assert [r["curve"] for r in cut] == [[(1, 0.25, 1.01), (3, 0.75, 1.03)]]
    (tmp_path / "b--greedy--1.part").write_bytes(zlib.compress(packed)[:60])
    with pytest.raises(SystemExit, match=r"b--greedy--1\.part cannot be read"):
        units.cut(tmp_path)
    assert cut[0]["evaluations"] == 50 and cut[0]["gpu_seconds"] == pytest.approx(12.5)
    made = summary.summarise(rows, cut)
    assert set(made["strategies"]) == {"anneal", "greedy"} and made["units"] == 8
    assert made["left_out_for_balance"] == 1 and made["searched_evaluations"] == 950
    fresh = made["unfinished"]["ppo_fresh"]
    assert fresh["over"] == 1 and fresh["judged"] == 2
    assert fresh["geomean_believed"] == pytest.approx((1.01 * 1.03) ** 0.5)
    # within 100 evaluations (the search that is over) and within 50
    assert fresh["others"]["anneal"] == pytest.approx((1.2 * 1.04) ** 0.5)


def test_rows_of_a_record_are_those_that_the_store_keeps() -> None:
    from sassafras.core import Evaluation, Verdict
    from sassafras.store.records import outcome_row

    row = outcome_row(Evaluation("d", Verdict("correct"), 9.0, 10.0, 1.25, None, None, None, 6, "", 0.1, {}))
    assert row[units.VERDICT_OF_ROW] == "correct" and row[units.SPEEDUP_OF_ROW] == 1.25


def test_ablations_and_training_have_figures_of_their_own() -> None:
    rows = [unit("a", "anneal", s, 1.1, [[1, 0, 1.0, 0], [60, 6, 1.1, 6]]) for s in range(2)]
    rows += [unit("a", name, 0, 1.05, [[1, 0, 1.05, 0]]) for name in units.ABLATIONS]
    rows.append(unit("a", "fresh_alone", 0, 1.0, [[1, 0, 1.0, 0]], wall_seconds=3.0))
    found = summary.summarise(rows)
    assert set(found["ablations"]["changes"]) == set(units.ABLATIONS)
    assert set(found["strategies"]) == {"anneal"}
    assert found["training"]["alone"]["steps_per_second"] == pytest.approx(40)
    assert found["training"]["shared_gpu"] is None and found["training"]["alone_gpu"] is None
    assert found["training"]["whole"] is None and found["training"]["turns_apart"] is None
    rows.append(unit("a", "fresh_alone_gpu", 0, 1.0, [[1, 0, 1.0, 0]], wall_seconds=1.0))
    assert summary.summarise(rows)["training"]["alone_gpu"]["steps_per_second"] == pytest.approx(120)


def test_ablations_are_judged_by_the_same_pairs_and_beside_equal_evaluations() -> None:
    curve = [[1, 0, 1.0, 0], [40, 4, 1.03, 4], [150, 9, 1.2, 9]]
    rows = [unit("a/1", "greedy", s, 1.2, curve, evaluations=300) for s in range(2)]
    rows += [unit("a/1", "fresh_as_it_is", s, 1.02, [[1, 0, 1.02, 0]]) for s in range(2)]
    rows.append(unit("a/1", "fresh_all_moves", 1, 1.04, [[1, 0, 1.05, 0]], reason="returned"))
    of = summary.summarise(rows)["ablations"]
    assert of["evaluations"] == 100 and of["beside"]["greedy"]["a/1"] == pytest.approx(1.03)
    moves = of["changes"]["fresh_all_moves"]
    assert moves["above_as_it_is"] == {"pairs": 1, "better": 1, "worse": 0}
    assert moves["ended_by"] == {"returned": 1} and moves["believed"]["a/1"] == pytest.approx(1.05)
    assert summary.summarise(rows[:2])["ablations"] == {}


def test_rates_are_told_apart_by_where_the_network_was() -> None:
    begin = [[1, 0, 1.0, 0]]
    rows = [unit("a", "ppo_fresh", s, 1.01 + s / 1000, begin, wall_seconds=30.0) for s in range(2)]
    for s in (2, 3, 4):
        rows.append(unit("a", "ppo_fresh", s, 1.01, begin, turns=True, seconds=2.0, wall_seconds=20.0))
    rows[-1] |= {"evaluations": 7, "reason": "returned"}
    of = summary.summarise(rows)["training"]
    assert of["shared_gpu"]["units"] == 2 and of["shared_gpu"]["steps_per_second"] == 12
    assert of["shared_turns"]["units"] == 3 and of["shared_turns"]["steps_per_second"] == 60
    assert of["whole"]["units"] == 2 and of["whole_wall_seconds"] == 20
    assert of["ended_by"] == {"budget": 4, "returned": 1} and of["least_evaluations"] == 7
    assert of["turns_apart"]["kernels"] == 1 and of["turns_apart"]["percent"] < 0


def test_groups_are_told_apart_within_kernels() -> None:
    far = {k: [(n + (1.0 if of else 0.0) + 1e-3 * s, of) for of in (True, False) for s in range(5)]
           for n, k in enumerate("abc")}  # fmt: skip
    found = summary.apart(far)
    assert found["percent"] == pytest.approx(100) and found["p"] < 0.01 and found["kernels"] == 3
    same = {k: [(n + 1e-3 * s, of) for of in (True, False) for s in range(5)] for n, k in enumerate("abc")}
    assert summary.apart(same)["p"] == 1.0
    assert summary.apart({"a": [(1.0, True)]}) is None


def test_where_a_network_was_is_known_of_searches_that_did_not_say_it(tmp_path: Path) -> None:
    for seed, command in enumerate(("strategies.py --folder /tmp/x/runs --turns", "strategies.py")):
        row = unit("a", "ppo_fresh", seed, 1.0, [[1, 0, 1.0, 0]], environment={"command": command})
        (tmp_path / f"a--ppo_fresh--{seed}.json").write_text(json.dumps(row | {"wall_seconds": 1.0}))
    assert [r["turns"] for r in units.read(tmp_path)] == [True, False]
    made = json.loads(strategies.publish(tmp_path, str(tmp_path), "one; two").read_text())
    assert made["commit"] == "one; two" and "/tmp" not in json.dumps(made)
    assert made["environment"]["command"] == "strategies.py --folder runs --turns"
    assert made["command"] == (
        "python strategies.py --folder runs --turns; python strategies.py; python strategies.py --summary"
    )
    assert [r["turns"] for r in made["rows"]] == [True, False]


def test_the_presets_moves_are_few_and_chance_finds_its_way_among_them() -> None:
    room = pytest.importorskip("strategies_room")
    row = room.room("layernorm/2048x1024", moves=300)
    assert 0 < row["memory_actions"] < row["all_actions"] / 20
    assert 100 < row["distinct"] <= 301 and row["longest_without_new"] < 100
    assert room.room("layernorm/2048x1024", moves=300) == row


def test_controls_play_the_presets_moves_without_an_agent(tmp_path: Path) -> None:
    """All but memory instructions stay in the order in which they were."""
    from sassafras.sass import Program
    from sassafras.schedule import ScheduleSpace

    device = Leaving(1000)
    name, run = device.baseline.name, device.run

    def texts(cubin: bytes) -> list[str]:
        return [i.text.replace(".reuse", "") for i in Program.parse(cubin).function(name).instructions]

    before = texts(device.baseline.cubin)
    memory = {before[n] for n in ScheduleSpace(device.baseline, moves="memory").movable}
    asked: list[list[str]] = []

    def noted(candidate: Any) -> Any:
        asked.append(texts(candidate.kernel.cubin))
        return run(candidate)

    device.run = noted  # type: ignore[method-assign]
    for strategy in ("walk_memory_moves", "greedy_memory_moves"):
        assert units.play(units.Unit("kv_append", strategy, 0, 12), device, tmp_path, True, 2, 1e18)
    settings = {r["strategy"]: r["settings"] for r in units.read(tmp_path)}
    assert settings["walk_memory_moves"]["length"] == 32
    assert any(one != before for one in asked)
    rest = [text for text in before if text not in memory]
    assert all([text for text in one if text not in memory] == rest for one in asked)


def test_seeds_are_outermost_and_every_unit_has_one_gpu() -> None:
    planned = list(strategies.plan(strategies.KERNELS, strategies.DEFAULT, 5, 3000))
    main = [u for u in planned if u.strategy in strategies.DEFAULT]
    assert len(main) == 210 and [u.seed for u in main] == sorted(u.seed for u in main)
    assert len(set(planned)) == len(planned) and len({u.path(Path()) for u in planned}) == len(planned)
    extra = [u for u in planned if u.strategy not in strategies.DEFAULT]
    assert {u.strategy for u in extra} == set(units.ABLATIONS)
    for gpus in (1, 2, 8):
        shared = strategies.shares(planned, strategies.KERNELS, gpus)
        assert len(shared) == gpus and sorted(u for part in shared for u in part) == sorted(planned)
        assert all(shared)
    two = strategies.shares(planned, strategies.KERNELS, 2)
    assert all(len({u.kernel for u in part}) == 3 for part in two)


def test_ablations_come_after_all_seeds() -> None:
    planned = [u.strategy for u in strategies.plan(strategies.KERNELS, strategies.DEFAULT, 5, 3000)]
    first = min(n for n, name in enumerate(planned) if name in units.ABLATIONS)
    assert set(planned[:first]) == set(units.DEFAULT) and set(planned[first:]) == set(units.ABLATIONS)


def test_what_is_published_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary of what was restored is the one that was published."""
    once, again = tmp_path / "once", tmp_path / "again"
    once.mkdir()
    again.mkdir()
    fine = [[n, 0.01 * n, 1.0 + 3.3e-5 * n, 0.02 * n] for n in range(1, 101)]  # finer than what is published
    for kernel in "ab":
        for name, more in (("anneal", 0.0123456789), ("ppo_fresh", 0.0), ("fresh_as_it_is", 0.0123459999)):
            row = unit(kernel, name, 0, 1.01 + more, fine, winner="cubin", environment={"gpu": "one"})
            (once / f"{kernel}--{name}--0.json").write_text(json.dumps(row))
    failed = {"kernel": "b", "strategy": "greedy", "seed": 0, "error": "DeviceError: gone"}
    (once / "b--greedy--0.error").write_text(json.dumps(failed))
    published = json.loads(strategies.publish(once, str(tmp_path)).read_text())
    published["rows"].append({"kernel": "b", "strategy": "anneal", "seed": 1, "cut": True})
    gone = {"kernel": "b", "strategy": "anneal_prerank8", "seed": 0}
    published["rows"].append(gone)
    assert units.restore(published, again) == 6 and units.restore(published, again) == 0
    restored = {path.name: json.loads(path.read_text()) for path in again.iterdir()}
    assert restored.keys() == {p.name for p in once.glob("*.json")}
    assert all("winner" not in r and r["environment"] == {"gpu": "one"} for r in restored.values())
    whole, made = published["summary"], json.loads(strategies.publish(again, str(tmp_path)).read_text())
    assert made["environment"] == published["environment"]
    for name, was in whole["strategies"].items():
        for key, value in was.items():
            # steps below 1e-4 are not published: such a search gets anywhere up to three evaluations later
            some = 3 if key == "evaluations_to_90_percent" else None
            found = made["summary"]["strategies"][name][key]
            assert found == pytest.approx(value, rel=1e-4, abs=some), (name, key)
    with pytest.raises(SystemExit, match="no search"):
        units.restore({"rows": [{"kernel": "a"}], "environment": {}}, again)
    monkeypatch.setattr(
        sys, "argv", ["strategies.py", "--folder", str(again), "--published", str(tmp_path / "x")]
    )
    with pytest.raises(SystemExit, match="cannot be read"):
        strategies.main()


class Leaving:
    """The timing model behind a queue whose owner leaves after some candidates."""

    def __init__(self, most: int) -> None:
        from sassafras.targets import load
        from sassafras.timing_model import ModelDevice

        workload = load("suite:kv_append")
        case = strategies.lonely_or_not(workload, None, True)
        self.baseline = workload.build(case, "sm_90a")
        self.device, self.left = ModelDevice("sm_90a"), most
        self.device.open(workload, case, self.baseline)
        self.modelled, self.last, self.inside = True, 0.0, 0.0

    def environment(self) -> dict[str, Any]:
        return {}

    def run(self, candidate: Any) -> Any:
        if not self.left:
            raise EOFError
        self.left -= 1
        self.last = 0.25
        return self.device.run(candidate)


def test_a_unit_that_was_cut_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    unit = units.Unit("kv_append", "greedy", 3, 30)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    assert units.play(unit, Leaving(1000), whole, True, 2, 1e18)
    with pytest.raises(EOFError):
        units.play(unit, Leaving(11), cut, True, 2, 1e18)
    assert units.read(cut) == [] and len(list(cut.glob("*.part"))) == 1
    assert not units.play(unit, Leaving(0), cut, True, 2, 0.0)  # the deadline is over: nothing is lost
    again = Leaving(19)
    assert units.play(unit, again, cut, True, 2, 1e18) and again.left == 0
    (one,), (other,) = units.read(whole), units.read(cut)
    assert other["replayed"] == 11 and other["evaluations"] == one["evaluations"] == 30
    assert other["winner"] == one["winner"] and other["gpu_seconds"] == one["gpu_seconds"] == 7.5
    assert [p[:3] for p in other["curve"]] == [p[:3] for p in one["curve"]]
    assert not list(cut.glob("*.part"))


def test_a_failing_unit_leaves_its_words_and_is_tried_again(tmp_path: Path) -> None:
    unit = units.Unit("kv_append", "greedy", 0, 5)
    broken = Leaving(9)
    broken.run = lambda candidate: 1 / 0  # type: ignore[assignment]
    assert not units.play(unit, broken, tmp_path, True, 2, 1e18)
    (row,) = units.read(tmp_path)
    assert "ZeroDivisionError" in row["error"]
    assert units.play(unit, Leaving(9), tmp_path, True, 2, 1e18)
    (row,) = units.read(tmp_path)
    assert "error" not in row and row["evaluations"] == 5


def test_who_waits_together_is_served_kernel_by_kernel_and_the_time_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Real pipes; the device only notes who came."""
    owner = pytest.importorskip("shared_device")
    came: list[tuple[str, str]] = []

    class Table:
        def __init__(self, kernel: str) -> None:
            self.kernel = kernel
            self.last_answer: dict[str, Any] = {}

        def run(self, candidate: str) -> str:
            came.append((self.kernel, candidate))
            if candidate == "bad":
                raise ValueError("planted")
            self.last_answer = {"phases_ms": {"load": 1.5, "time": 2.5}, "seconds_in_worker": 0.0}
            return f"{candidate}!"

    pipes = [Pipe() for _ in range(6)]
    asked = [("a", "1"), ("b", "2"), ("a", "3"), ("c", "bad"), ("b", "5")]
    for (_, mine), question in zip(pipes, asked, strict=False):
        mine.send(question)
        mine.send(("b", f"again {question[1]}"))
    for _, mine in pipes[5:]:
        mine.close()  # a search that is gone
    answers: list[Any] = []

    def searches() -> None:
        for _, mine in pipes[:5]:
            answers.append((mine.recv(), mine.recv()))
            mine.close()

    thread = Thread(target=searches, daemon=True)
    thread.start()
    owner._answer({k: (None, Table(k)) for k in "abc"}, [end for end, _ in pipes], 3)
    thread.join(timeout=60)
    # nobody twice before all were served once; one kernel's together
    assert came[:5] == [("a", "1"), ("a", "3"), ("b", "2"), ("b", "5"), ("c", "bad")]
    assert sorted(came[5:]) == sorted(("b", f"again {question}") for _, question in asked)
    assert answers[0][0][0] == "1!" and answers[0][1][0] == "again 1!"
    assert answers[3][0] == "ValueError: planted" and answers[3][1][0] == "again bad!"
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("GPU 3: ")]
    told = json.loads(line.removeprefix("GPU 3: "))
    assert told["candidates"] == 9 and told["changes_of_kernel"] == 3
    assert told["mean_ms"]["load"] == 1.5 and told["mean_ms"]["time"] == 2.5
    assert {"run", "same", "other", "worker", "around", "receive", "send"} <= told["mean_ms"].keys()
    # the kernel before comes first
    assert [k for _, k, _ in owner.in_turns([(0, "a", ""), (1, "b", ""), (2, "a", "")], "b")] == [
        "b",
        "a",
        "a",
    ]


def test_a_small_comparison_on_the_timing_model_is_taken_up_where_it_stopped(
    tmp_path: Path, shared: Path
) -> None:
    def run(*more: str) -> str:
        command = [
            sys.executable, str(ROOT / "benchmarks" / "strategies.py"), "--folder", str(tmp_path / "units"),
            "--device", "model", "--lonely", "--kernels", "kv_append,rotary", "--strategies", "anneal,greedy",
            "--gpus", "2", "--seeds", "1", "--evaluations", "12", "--players", "1,2", "--out", str(tmp_path),
            *more,
        ]  # fmt: skip
        path = f"{ROOT / 'src'}{os.pathsep}{without_torch(shared)}"
        environment = os.environ | {"PYTHONPATH": path, "SASSAFRAS_COMMIT": "test"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    first = run()
    assert "0 units left" in first
    spent = [json.loads(x.split(": ", 1)[1]) for x in first.splitlines() if x.startswith("GPU ")]
    assert len(spent) == 2 and all(s["candidates"] > 0 and s["mean_ms"]["run"] > 0 for s in spent)
    (tmp_path / "units" / "kv_append--greedy--0.json").unlink()
    again = run()
    assert "kv_append greedy 0" in again and "kv_append anneal 0:" not in again and "rotary" not in again
    held = json.loads((tmp_path / "strategies-modelled.json").read_text())
    assert held["summary"]["modelled"] and {r["strategy"] for r in held["rows"]} == {"anneal", "greedy"}
    for row in held["rows"]:
        assert row["evaluations"] == 12 and row["curve"][0][0] == 1
        assert {"final_speedup", "area_under_curve", "seed"} <= row.keys()
    assert not (tmp_path / "strategies.json").exists()  # modelled figures are no results
