"""Rank correlation between two figures of the same schedules, over all pairs or some of them."""

from __future__ import annotations

import math

import numpy as np


def kendall_tau(x: np.ndarray, y: np.ndarray, pairs: np.ndarray | None = None) -> float | None:
    """Kendall's tau-b (M. G. Kendall, Biometrika 33, 1945): +1 same order, -1 reversed, ties corrected for.

    Args:
        x, y: float (n,).
        pairs: bool (n, n): which pairs count (the upper triangle is read); None: all.

    Returns:
        tau-b, or None where it is undefined (no pair, or every pair tied in x or in y).
    """
    upper = np.triu(np.ones((len(x), len(x)), dtype=bool), 1)
    chosen = upper if pairs is None else upper & pairs
    dx = np.sign(x[:, None] - x[None, :])[chosen]
    dy = np.sign(y[:, None] - y[None, :])[chosen]
    untied = math.sqrt(float(np.count_nonzero(dx)) * float(np.count_nonzero(dy)))
    return float((dx * dy).sum()) / untied if untied > 0 else None


def distinguishable(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """bool (n, n): pairs of intervals [low, high] that do not overlap."""
    return (low[:, None] > high[None, :]) | (high[:, None] < low[None, :])
