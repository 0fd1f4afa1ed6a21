"""Draws of start times: sets that share none, looks that go on from one another, and ratios drawn again."""

from __future__ import annotations

import numpy as np
import pytest

from sassafras.core import Candidate, Kernel, Redrawing, Verdict, beats
from sassafras.timing_model import ModelDevice
from sassafras.timing_model.draws import (
    FIRST_MOST,
    LAST_MOST,
    REPORT_HALF_WIDTH,
    REPORT_LEAST,
    REPORT_MOST,
    DrawSet,
    half_width,
    redraw,
)
from tests.kernels import matmul_cubin
from tests.report.subjects import case, kernel, space, sunk, walked, workload_of


def opened(baseline: Kernel) -> ModelDevice:
    device = ModelDevice()
    device.open(workload_of(baseline), case(), baseline)
    return device


def some(seed: int = 1, moves: int = 12) -> Candidate:
    return Candidate(kernel().with_cubin(space().emit(walked(seed, moves))))


def test_sets_share_no_draw_and_are_the_same_in_every_process() -> None:
    one, other = opened(kernel()).draws, opened(kernel()).draws
    sets = {part: one.starts(part, 0, 64) for part in DrawSet}
    rows = [tuple(row) for drawn in sets.values() for row in drawn.tolist()]
    assert len(rows) == 64 * len(DrawSet) == len(set(rows))
    for part, drawn in sets.items():  # asked for in other portions
        parts = [other.starts(part, a, b) for a, b in ((0, 1), (1, 20), (20, 64))]
        assert np.array_equal(np.concatenate(parts), drawn)


def test_a_closer_look_goes_on_from_the_last() -> None:
    device, fresh, candidate = opened(kernel()), opened(kernel()), some()
    assert isinstance(device, Redrawing)
    first = device.run(candidate)
    looks = [first]
    while (nearer := device.closer(candidate, len(looks))) is not None:
        looks.append(nearer)
    counts = [look.draws for look in looks]
    assert counts == sorted(set(counts)) and 1 <= counts[0] <= FIRST_MOST and counts[-1] <= LAST_MOST
    assert len(looks) > 2 and all(look.interval is None for look in looks)
    # the mean of all draws, whichever way it was reached
    assert fresh.closest(candidate).cycles == looks[-1].cycles
    whole = fresh.drawn(candidate, DrawSet.SEARCH, 0, counts[-1])
    assert looks[-1].cycles == pytest.approx(whole.mean()) and len(set(whole.tolist())) > 1
    # the baseline is itself on every draw
    assert {device.run(Candidate(kernel())).modelled_ratio, device.look(Candidate(kernel()), 3).cost} == {1.0}
    assert device.look(candidate, 0).cycles != device.look(candidate, 1).cycles != first.cycles


def test_a_gain_that_is_none_is_not_confirmed_and_a_real_one_is() -> None:
    slow, fast = sunk()
    device = opened(slow)
    final = device.remeasure(Candidate(fast))
    assert final.interval is not None and final.null_interval is not None and final.null is not None
    assert beats(final) and final.modelled_ratio is not None and final.modelled_ratio > 1.01
    assert final.interval.low < final.modelled_ratio < final.interval.high
    assert REPORT_LEAST <= final.draws <= REPORT_MOST
    assert final.draws == REPORT_MOST or max(
        half_width(final.interval), half_width(final.null_interval)
    ) <= REPORT_HALF_WIDTH  # fmt: skip
    assert not beats(device.remeasure(Candidate(slow)))
    backwards = opened(fast).remeasure(Candidate(slow))
    assert not beats(backwards) and backwards.modelled_ratio is not None and backwards.modelled_ratio < 0.99


def test_the_best_of_many_lucky_looks_does_not_survive_other_draws() -> None:
    """Schedules that do not differ, judged on one draw each: the best gains 1 %, and nothing on others."""
    device = opened(kernel())
    costs = np.array([device.drawn(Candidate(kernel()), DrawSet.OTHER, n, n + 1)[0] for n in range(120)])
    lucky = int(np.argmin(costs))
    assert costs.mean() / costs[lucky] > 1.003  # selected and reported on the same draw
    found = redraw(
        lambda a, b: device.draws.baseline(DrawSet.REPORT, a, b),
        lambda a, b: device.drawn(Candidate(kernel()), DrawSet.CHOICE, a, b),
        lambda a, b: device.draws.baseline(DrawSet.NULL, a, b),
    )
    assert found.interval.low <= 1.0 <= found.interval.high
    assert found.null_interval.low <= 1.0 <= found.null_interval.high


def test_intervals_hold_the_ratio_of_a_hundred_other_draws() -> None:
    inside, total = 0, 8
    device = opened(kernel())
    before = device.draws.baseline(DrawSet.OTHER, 0, 100).mean()
    for seed in range(total):
        final = device.remeasure(some(seed, 6))
        assert final.interval is not None
        ratio = before / device.drawn(some(seed, 6), DrawSet.OTHER, 0, 100).mean()
        inside += final.interval.low <= ratio <= final.interval.high
    assert inside >= total - 2


def test_what_cannot_be_modelled_is_refused_by_every_look() -> None:
    device = opened(kernel())
    other = Candidate(Kernel(matmul_cubin(), "matmul", "sm_90a", 128))
    for outcome in (
        device.run(other),
        device.closer(other, 1),
        device.look(other, 0),
        device.remeasure(other),
    ):
        assert outcome is not None and outcome.verdict is Verdict.UNSUPPORTED
        assert outcome.cost is None and outcome.interval is None
