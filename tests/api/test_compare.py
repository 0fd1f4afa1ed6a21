"""`compare` on the CPU, where it can be tried for real: the same statistics and order as on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sassafras
from sassafras.api.compare import Comparison, compare
from sassafras.comparison.cubins import from_evaluation
from sassafras.comparison.functions import _columns, capture_order
from sassafras.comparison.results import alike
from sassafras.comparison.timers import Call, Cpu, GpuTimer, Timer
from sassafras.core import DeviceError, Evaluation, Interval, SassafrasError, Verdict
from sassafras.cuda.timing import interleaved


def _work(amount: int):  # type: ignore[no-untyped-def]
    def call(x: np.ndarray) -> np.ndarray:
        for _ in range(amount):
            y = np.sort(x)
        return y

    return call


X = np.random.default_rng(0).normal(size=4000)


def test_a_much_slower_function_is_slower_and_equal() -> None:
    """Five times the work: no noise of this machine turns that around."""
    found = compare(_work(2), _work(10), args=(X,), device="cpu", groups=3, rounds=8, block_us=200.0)
    assert found.decided in ("slower", "no difference")  # a stalled machine may widen an interval
    assert found.speedup is not None
    assert found.speedup < 0.7
    assert found.equal == "bitwise"
    assert found.groups == 3
    assert set(found.wall_us) == {"A", "B"}
    assert found.wall_us["A"][0] <= found.wall_us["A"][1]
    assert found.cold_speedup is None
    assert "wall time" in found.summary()
    assert found is not compare


def test_it_is_public_and_chooses_the_cpu_for_what_is_no_cuda_tensor() -> None:
    assert sassafras.compare is compare
    found = compare(_work(1), _work(1), args=(X,), groups=2, rounds=4, block_us=50.0)
    assert found.how == "wall time on the CPU"
    assert found.null is not None
    assert found.interval is not None


@pytest.mark.parametrize(
    ("interval", "null", "decided"),
    [
        ((1.02, 1.04), (0.99, 1.01), "faster"),
        ((1.005, 1.04), (0.99, 1.01), "no difference"),
        ((1.02, 1.04), (1.01, 1.03), "no difference"),
        ((0.96, 0.98), (0.99, 1.01), "slower"),
        ((0.96, 0.995), (0.99, 1.01), "no difference"),
        ((1.001, 1.002), (0.98, 0.99), "faster"),
        ((0.992, 0.999), (0.98, 0.99), "no difference"),
    ],
)
def test_only_a_difference_outside_the_null_counts(
    interval: tuple[float, float], null: tuple[float, float], decided: str
) -> None:
    made = Comparison(1.0, Interval(*interval), 1.0, Interval(*null), 1.0, 1.0, 5, 10, "test")
    assert made.decided == decided
    assert made.summary()


def test_the_order_is_interleaved_and_columns_follow_it() -> None:
    assert interleaved(3, 3) == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert _columns([10, 20, 30, 31, 21, 11], 3, 2) == [[10, 11], [20, 21], [30, 31]]


class Placed(Timer):
    """Made-up times: a call costs what its function says, 5 % more where it was the first of its group."""

    how = "made up"

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.open = 0

    def pad(self, rng: np.random.Generator) -> str:
        self.log.append(("pad", int(rng.integers(1 << 30))))
        return "held"

    def prepare(self, call: Call, calls: int) -> float:
        first = self.open == 0
        self.open += 1
        self.log.append(("prepare", call()))
        return float(calls * call() * (1.05 if first else 1.0))

    def time(self, blocks: Sequence[float], order: Sequence[int]) -> list[float]:
        return [blocks[which] for which in order]

    def cold(self, blocks: Sequence[float], order: Sequence[int]) -> list[float]:
        return [7.0 * blocks[which] for which in order]

    def discard(self, block: float) -> None:
        self.open -= 1


def _placed(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Comparison, Placed]:
    timer = Placed()
    monkeypatch.setattr("sassafras.comparison.functions.Cpu", lambda: timer)
    found = compare(lambda x: 10 * x, lambda x: 20 * x, args=(1,), device="cpu", rounds=4, **settings)
    return found, timer


def test_each_group_prepares_in_another_order_and_columns_find_their_contestants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, timer = _placed(monkeypatch, groups=6, cold_l2=False)
    orders = [capture_order(3, group) for group in range(6)]
    assert orders == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]]
    prepared = [cost for what, cost in timer.log if what == "prepare"][2:]  # two to count the calls
    assert prepared == [(10, 20, 10)[which] for order in orders for which in order]
    slow_a, slow_b, slow_again = 1.05, 1 / 1.05, 1.0
    effect = {0: (slow_a, slow_a), 1: (slow_b, 1.0), 2: (slow_again, 1 / 1.05)}
    expected = [effect[order[0]] for order in orders]
    assert found.facts["groups_speedup"] == pytest.approx([0.5 * speed for speed, _ in expected])
    assert found.facts["groups_null"] == pytest.approx([null for _, null in expected])
    assert timer.open == 0, "every block was given back"


def test_a_place_that_costs_time_cancels_out_and_widens_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = _placed(monkeypatch)
    assert found.groups == 12
    assert (found.null, found.speedup) == (pytest.approx(1.0), pytest.approx(0.5))
    assert found.null_interval is not None
    assert found.null_interval.low < 0.99 < 1.01 < found.null_interval.high
    assert found.decided == "slower"
    assert found.cold_speedup == pytest.approx(0.5)


def test_places_are_drawn_before_each_capture_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [_placed(monkeypatch, groups=3, seed=seed)[1].log[2:] for seed in (0, 0, 1)]
    assert logs[0] == logs[1] != logs[2]
    assert [what for what, _ in logs[0]] == ["pad", "prepare"] * 15  # warm: 3 a group, cold: 2
    draws = [drawn for what, drawn in logs[0] if what == "pad"]
    assert len(set(draws)) == len(draws)


def test_padding_on_a_gpu_is_of_drawn_sizes_and_leaves_what_is_scarce() -> None:
    """Torch's part of it is only asked: how much is free, and for memory."""

    def sizes(seed: int, free: int) -> list[int]:
        cuda = SimpleNamespace(empty_cache=lambda: None, mem_get_info=lambda: (free, free))
        timer = GpuTimer.__new__(GpuTimer)
        timer._torch = SimpleNamespace(cuda=cuda, uint8="u8", empty=lambda size, **_: size)
        return list(timer.pad(np.random.default_rng([seed, 0])))

    plenty = [sizes(seed, 80 << 30) for seed in range(40)]
    assert {len(each) for each in plenty} == {2, 3, 4, 5}
    assert all(10 << 20 <= size <= 40 << 20 and size % (2 << 20) == 0 for each in plenty for size in each)
    assert len({tuple(each) for each in plenty}) >= 38, "hardly two alike"
    assert plenty[3] == sizes(3, 80 << 30)
    few = [sizes(seed, 32 * (20 << 20)) for seed in range(40)]
    assert few == [[size for size in each if size <= 20 << 20] for each in plenty]


def test_what_was_prepared_is_given_back_when_a_capture_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Placed()
    plain = timer.prepare

    def prepare(call: Call, calls: int) -> float:
        if timer.open == 2:
            raise DeviceError("cannot be captured")
        return plain(call, calls)

    monkeypatch.setattr(timer, "prepare", prepare)
    monkeypatch.setattr("sassafras.comparison.functions.Cpu", lambda: timer)
    with pytest.raises(DeviceError, match="captured"):
        compare(lambda x: x, lambda x: x, args=(1,), device="cpu", rounds=4)
    assert timer.open == 0


def test_the_garbage_collector_is_paused_while_timing_and_restored() -> None:
    import gc

    seen = []
    timer = Cpu()
    block = timer.prepare(Call(lambda: seen.append(gc.isenabled()), (), {}), 2)
    times = timer.time([block], [0, 0])
    assert len(times) == 2
    assert gc.isenabled()
    assert seen[-4:] == [False] * 4


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (np.ones(3), np.ones(3), "bitwise"),
        (np.ones(3), np.ones(3) + 1e-6, "close"),
        (np.ones(3), np.ones(3) * 2, "different"),
        (np.ones(3), np.ones(4), "different"),
        ({"b": np.zeros(1), "a": np.ones(1)}, {"a": np.ones(1), "b": np.zeros(1)}, "bitwise"),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), "bitwise"),
        (1, 2, "not compared"),
        (None, np.ones(3), "different"),
    ],
)
def test_results_are_compared(first: object, second: object, expected: str) -> None:
    assert alike(first, second) == expected


def test_bad_calls_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(SassafrasError, match="workload"):
        compare(b"1", b"2")
    with pytest.raises(SassafrasError, match="function cannot be compared with a cubin"):
        compare(_work(1), b"2")
    with pytest.raises(SassafrasError, match="at least 2 groups"):
        compare(_work(1), _work(1), groups=1)
    with pytest.raises(SassafrasError, match="at least 4 rounds"):
        compare(_work(1), _work(1), rounds=1)
    for device in ("gpu", "cuda:0"):
        with pytest.raises(DeviceError, match=f"there is no device '{device}' .auto, cuda or cpu"):
            compare(len, len, args=("a",), device=device)  # type: ignore[arg-type]
    for bad in (0.0, math.nan, math.inf):
        with pytest.raises(SassafrasError, match=f"a block of {bad} us"):
            compare(len, len, args=("a",), block_us=bad)


def test_without_a_gpu_cubins_and_graphs_are_refused_clearly() -> None:
    from sassafras.cuda.environment import available

    if available()[0]:
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="no usable GPU"):
        compare(b"1", b"2", workload="suite:softmax")
    pytest.importorskip("torch")
    with pytest.raises(DeviceError, match="torch cannot use a GPU"):
        compare(_work(1), _work(1), args=(X,), device="cuda")


def test_a_remeasurement_becomes_a_comparison() -> None:
    outcome = Evaluation(
        "d", Verdict.CORRECT, 9.0, 10.0, 1.11, Interval(1.1, 1.12), 1.0, Interval(0.99, 1.01), 60, "", 1.0,
        {"cold_l2_speedup": 1.05},
    )  # fmt: skip
    made = from_evaluation(outcome, 5, 100)
    assert made.decided == "faster"
    assert made.cold_speedup == 1.05
    assert "cold L2: 1.0500x" in made.summary()
    assert "results: bitwise" in made.summary()
    assert "results: within the tolerance" in from_evaluation(outcome, 5, 100, bitwise=False).summary()
    refused = from_evaluation(Evaluation("d", Verdict.WRONG_RESULT, detail="differs at y"), 5, 100)
    assert refused.decided == "not comparable"
    assert "differs at y" in refused.summary()
