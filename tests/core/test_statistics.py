"""Medians, ratios and intervals against distributions whose truth is known."""

import math

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.core.statistics import (
    bootstrap_median,
    failure_bound,
    geometric_mean,
    hierarchical_bootstrap,
    hierarchical_median,
    paired_ratios,
    redrawn_ratio,
    student_t,
)


def test_paired_ratios_are_baseline_over_candidate() -> None:
    assert paired_ratios([2.0, 3.0], [1.0, 6.0]).tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("a", "b"),
    [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([float("nan")], [1.0]), ([1.0], [-1.0])],
)
def test_unusable_times_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(SassafrasError):
        paired_ratios(a, b)


def test_bootstrap_median_covers_the_true_median() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(300):
        values = rng.lognormal(0.0, 0.3, 40)  # skewed, median 1
        interval = bootstrap_median(values, seed=trial, draws=300)
        assert interval.low <= np.median(values) <= interval.high
        hits += interval.low <= 1.0 <= interval.high
    assert 0.89 <= hits / 300 <= 0.99


def test_bootstrap_is_reproducible_and_one_value_is_a_point() -> None:
    values = [1.0, 1.1, 0.9, 1.3]
    assert bootstrap_median(values, seed=5) == bootstrap_median(values, seed=5)
    point = bootstrap_median([1.25])
    assert (point.low, point.high) == (1.25, 1.25)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8, 11, 12, 64, 65])
@pytest.mark.parametrize("draws", [1, 2, 41, 300, 500])
def test_bootstrap_of_a_few_values_is_numpys_own_to_the_last_bit(size: int, draws: int) -> None:
    for seed in range(4):
        values = np.random.default_rng([7, seed, size]).lognormal(0.0, 0.01, size).round(3 + 3 * (seed % 2))
        rng = np.random.default_rng(seed)
        medians = np.median(values[rng.integers(0, size, (draws, size))], axis=1)
        low, high = np.quantile(medians, (0.025, 0.975))
        for _ in range(2):  # the second time from what was kept
            found = bootstrap_median(values, seed=seed, draws=draws)
            assert (found.low, found.high) == (low, high)


def test_bootstrap_of_what_is_not_finite_says_so() -> None:
    found = bootstrap_median([1.0, float("nan"), 1.1])
    assert math.isnan(found.low) and math.isnan(found.high)


def _processes(rng: np.random.Generator, between: float, within: float, count: int = 5) -> list[np.ndarray]:
    """Ratios of `count` processes around a true speed-up of 1.1."""
    centres = 1.1 * np.exp(rng.normal(0, between, count))
    return [centre * np.exp(rng.normal(0, within, 60)) for centre in centres]


@pytest.mark.parametrize(("between", "within"), [(0.01, 0.004), (0.0, 0.01), (0.003, 0.003)])
def test_hierarchical_interval_covers_despite_few_processes(between: float, within: float) -> None:
    rng = np.random.default_rng(11)
    trials = 250
    hits = 0
    for trial in range(trials):
        groups = _processes(rng, between, within)
        interval = hierarchical_bootstrap(groups, seed=trial, draws=400)
        assert interval.low <= hierarchical_median(groups) <= interval.high
        hits += interval.low <= 1.1 <= interval.high
    assert hits / trials >= 0.92


def test_pooling_the_processes_would_have_been_too_narrow() -> None:
    """The reason for the hierarchy: variation between processes is invisible to a pooled bootstrap."""
    rng = np.random.default_rng(4)
    pooled = hierarchical = 0
    for trial in range(150):
        groups = _processes(rng, 0.01, 0.002)
        flat = bootstrap_median(np.concatenate(groups), seed=trial, draws=200)
        pooled += flat.low <= 1.1 <= flat.high
        deep = hierarchical_bootstrap(groups, seed=trial, draws=400)
        hierarchical += deep.low <= 1.1 <= deep.high
    assert pooled < 120 < hierarchical


def test_hierarchical_needs_two_processes_and_positive_ratios() -> None:
    with pytest.raises(SassafrasError):
        hierarchical_bootstrap([[1.0, 1.1]])
    with pytest.raises(SassafrasError):
        hierarchical_bootstrap([[1.0], [0.0]])
    assert hierarchical_median([[1.0, 4.0, 4.0], [1.0]]) == pytest.approx(2.0)


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(SassafrasError):
        geometric_mean([1.0, -1.0])


def test_failure_bound_is_the_rule_of_three_and_grows_with_failures() -> None:
    assert failure_bound(3_000_000) == pytest.approx(1e-6)
    # exact: (1 - p)^n = 0.05
    n = 1000
    assert failure_bound(n) == pytest.approx(1 - 0.05 ** (1 / n), rel=0.01)
    # Poisson upper bounds at 95 %: 4.744 for one failure, 16.962 for ten
    assert failure_bound(1_000_000, 1) == pytest.approx(4.744e-6, rel=0.01)
    assert failure_bound(1_000_000, 10) == pytest.approx(16.962e-6, rel=0.01)
    assert failure_bound(0) == 1.0
    assert failure_bound(2) == 1.0


def test_student_t_never_understates() -> None:
    assert student_t(4) == 2.776
    assert student_t(11) == student_t(10)
    assert student_t(10_000) >= 1.96
    assert math.isclose(student_t(61), 2.0)


def test_an_interval_over_draws_holds_what_other_draws_give() -> None:
    """With the error of the other draws included: of 100 of them, whatever the first set's size."""
    for n in (32, 256):
        rng, inside, narrow = np.random.default_rng(n), 0, 0
        for trial in range(400):
            a, b, c, d = (rng.normal(mean, 0.01, k) for mean, k in ((1, n), (0.99, n), (1, 100), (0.99, 100)))
            ratio, interval = redrawn_ratio(a, b, seed=trial, draws=400)
            assert interval.low < ratio < interval.high
            inside += interval.low <= c.mean() / d.mean() <= interval.high
            # what forgets the other set's own error is too narrow
            _, alone = redrawn_ratio(a, b, seed=trial, draws=400, others=10**9)
            narrow += alone.low <= c.mean() / d.mean() <= alone.high
        assert 0.92 <= inside / 400 <= 0.98
        assert narrow < inside


def test_an_interval_over_draws_is_that_of_pairs() -> None:
    shared = np.random.default_rng(0).normal(1, 0.05, 64)
    ratio, interval = redrawn_ratio(1.02 * shared, shared)
    assert ratio == pytest.approx(1.02) and interval.high - interval.low < 1e-9
    for a, b in (([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, -1.0], [1.0, 1.0])):
        with pytest.raises(SassafrasError):
            redrawn_ratio(a, b)
