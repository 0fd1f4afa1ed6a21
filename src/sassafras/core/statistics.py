"""Medians, paired ratios and bootstrap intervals. Pure NumPy; every draw comes from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .errors import SassafrasError
from .evaluation import Interval

Values = Sequence[float] | np.ndarray
#: 97.5 % quantile of Student's t by degrees of freedom (standard tables)
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000,
}  # fmt: skip
_NORMAL = 1.959964
#: up to so many values a bootstrap's draws are kept, at most 32 of them
_SMALL = 64


def paired_ratios(baseline: Values, candidate: Values) -> np.ndarray:
    """baseline / candidate of each pair, float64: speed-ups. Raises SassafrasError on unusable times."""
    a, b = np.asarray(baseline, float), np.asarray(candidate, float)
    if a.shape != b.shape or a.ndim != 1 or a.size == 0:
        raise SassafrasError(f"paired times need equal lengths above 0, got {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise SassafrasError("times must be finite and positive")
    return a / b


def bootstrap_median(values: Values, *, seed: int = 0, draws: int = 500) -> Interval:
    """95 % percentile-bootstrap interval of the median of independent values."""
    data = np.asarray(values, float)
    if data.size == 0:
        raise SassafrasError("an interval needs at least one value")
    if data.size == 1:
        return Interval(float(data[0]), float(data[0]))
    if data.size <= _SMALL and np.isfinite(data).all():
        return _small_bootstrap_median(data, seed, draws)
    rng = np.random.default_rng(seed)
    medians = np.median(data[rng.integers(0, data.size, (draws, data.size))], axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return Interval(float(low), float(high))


def _small_bootstrap_median(data: np.ndarray, seed: int, draws: int) -> Interval:
    """`bootstrap_median` of a few finite values, to the last bit, in a fifth of the time: a search asks for
    one an evaluation, and the GPU waits meanwhile."""
    drawn = np.sort(data[_draws(seed, draws, data.size)], axis=1)
    half = data.size // 2
    medians = drawn[:, half] if data.size % 2 else (drawn[:, half - 1] + drawn[:, half]) / 2
    medians = np.sort(medians)

    def quantile(q: float) -> float:
        at = q * (draws - 1)
        below = math.floor(at)
        a, b, share = float(medians[below]), float(medians[min(below + 1, draws - 1)]), at - below
        # as NumPy interpolates, from the nearer end
        return b - (b - a) * (1 - share) if share >= 0.5 else a + (b - a) * share

    return Interval(quantile(0.025), quantile(0.975))


@lru_cache(maxsize=32)
def _draws(seed: int, draws: int, size: int) -> np.ndarray:
    """(draws, size) indices of a bootstrap: the same for every candidate."""
    drawn = np.random.default_rng(seed).integers(0, size, (draws, size))
    drawn.flags.writeable = False
    return drawn


def hierarchical_median(groups: Sequence[Values]) -> float:
    """Geometric mean over the groups (processes) of each group's median ratio."""
    medians = [float(np.median(np.asarray(group, float))) for group in groups]
    if not medians or min(medians) <= 0:
        raise SassafrasError("ratios must be positive, at least one group")
    return math.exp(sum(map(math.log, medians)) / len(medians))


def hierarchical_bootstrap(groups: Sequence[Values], *, seed: int = 0, draws: int = 2000) -> Interval:
    """95 % interval of `hierarchical_median`: processes are drawn first, then ratios within each.

    With few processes the plain percentile interval is too narrow (5 clusters cover about 83 % instead of
    95 %). Deviations from the estimate, on the log scale, are therefore widened by
    ``t(0.975, n - 1) / z(0.975) * sqrt(n / (n - 1))``, the usual small-sample correction of a mean of n.

    Raises:
        SassafrasError: fewer than two groups, or ratios that are not positive.
    """
    if len(groups) < 2:
        raise SassafrasError("a hierarchical interval needs at least two processes")
    data = [np.asarray(group, float) for group in groups]
    if any(group.size == 0 or not (group > 0).all() for group in data):
        raise SassafrasError("ratios must be positive, at least one a process")
    rng = np.random.default_rng(seed)
    count = len(data)
    # each process's bootstrap distribution of its median, drawn once; processes then pick from it
    within = np.stack(
        [np.log(np.median(g[rng.integers(0, g.size, (draws, g.size))], axis=1)) for g in data]
    )  # (processes, draws)
    chosen = rng.integers(0, count, (draws, count))
    row = rng.integers(0, draws, (draws, count))
    means = within[chosen, row].mean(axis=1)
    centre = math.log(hierarchical_median(groups))
    widen = student_t(count - 1) / _NORMAL * math.sqrt(count / (count - 1))
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(math.exp(centre + widen * (low - centre)), math.exp(centre + widen * (high - centre)))


def redrawn_ratio(
    baseline: Values,
    candidate: Values,
    *,
    others: int = 100,
    seed: int = 0,
    draws: int = 2000,
) -> tuple[float, Interval]:
    """Ratio of two mean costs over the same random draws, and where `others` more draws would put it.

    The interval is a prediction: in 95 % of cases it holds the ratio that another `others` draws give, so it
    covers the error of these draws and of those. Pairs are drawn by bootstrap; deviations from the estimate,
    on the log scale, are widened by ``sqrt(1 + n / others)`` and by the small-sample correction of
    `hierarchical_bootstrap`.

    Args:
        baseline, candidate: float (n,), the cost of each on every draw; n is at least 2.
        others: size of the other set.

    Raises:
        SassafrasError: costs that are not positive, of unequal number, or fewer than two.
    """
    a, b = np.asarray(baseline, float), np.asarray(candidate, float)
    paired_ratios(a, b)  # refuses what is unusable
    n = a.size
    if n < 2 or others < 1:
        raise SassafrasError("an interval over draws needs at least two draws")
    chosen = np.random.default_rng(seed).integers(0, n, (draws, n))
    centre = math.log(a.mean() / b.mean())
    found = np.log(a[chosen].mean(axis=1) / b[chosen].mean(axis=1))
    widen = student_t(n - 1) / _NORMAL * math.sqrt(n / (n - 1)) * math.sqrt(1 + n / others)
    low, high = np.quantile(found, (0.025, 0.975))
    return math.exp(centre), Interval(
        math.exp(centre + widen * (low - centre)), math.exp(centre + widen * (high - centre))
    )


def quotient_interval(quotient: float, *parts: Interval) -> Interval:
    """The interval of a quotient of independent ratios, by their half-widths on the log scale."""
    factor = math.exp(math.hypot(*(math.log(each.high / each.low) / 2 for each in parts)))
    return Interval(quotient / factor, quotient * factor)


def expected_excess(error: float, count: int) -> float:
    """By how much the largest of `count` noisy figures is above its true value, in expectation, at most.

    For figures with normal errors of this standard deviation that are all equal in truth: the bound
    ``error * sqrt(2 ln count)`` on their expected maximum (Boucheron, Lugosi and Massart, Concentration
    Inequalities, theorem 2.5). The effect is the winner's or optimizer's curse (Smith and Winkler 2006).
    """
    return error * math.sqrt(2 * math.log(max(count, 1)))


def student_t(degrees: int) -> float:
    """97.5 % quantile of Student's t (the next smaller tabulated degrees of freedom, so never too small)."""
    if degrees < 1:
        raise SassafrasError("Student's t needs at least one degree of freedom")
    if degrees > 60:
        return _T[60]
    return _T[max(d for d in _T if d <= degrees)]


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive values."""
    data = np.asarray(values, float)
    if data.size == 0 or not (data > 0).all():
        raise SassafrasError("a geometric mean needs positive values")
    return float(np.exp(np.log(data).mean()))


def failure_bound(samples: int, failures: int = 0) -> float:
    """Upper 95 % bound of the failure probability a launch.

    The rule of three, ``3 / n``, when none failed (from ``(1 - p)^n = 0.05``); with failures, a Poisson bound
    in Wilson and Hilferty's approximation (chi-square quantile).
    """
    if samples <= 0:
        return 1.0
    if failures == 0:
        return min(1.0, 3.0 / samples)
    k = failures + 1
    z = 1.644854
    return min(1.0, k * (1 - 1 / (9 * k) + z / (3 * math.sqrt(k))) ** 3 / samples)
