"""`compare` on the CPU, where it can be tried for real: the same statistics and order as on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sassafras
from sassafras.core import DeviceError, Evaluation, Interval, SassafrasError, Verdict
from sassafras.device.cuda.timing import interleaved
from sassafras.measure import Comparison, compare
from sassafras.measure.cubins import from_evaluation
from sassafras.measure.functions import _columns
from sassafras.measure.results import alike
from sassafras.measure.timers import Cpu


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


def test_the_garbage_collector_is_paused_while_timing_and_restored() -> None:
    import gc

    seen = []
    timer = Cpu()
    block = timer.prepare(lambda: seen.append(gc.isenabled()), (), {}, 2)
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


def test_without_a_gpu_cubins_and_graphs_are_refused_clearly() -> None:
    from sassafras.device import available

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
    refused = from_evaluation(Evaluation("d", Verdict.WRONG_RESULT, detail="differs at y"), 5, 100)
    assert refused.decided == "not comparable"
    assert "differs at y" in refused.summary()
