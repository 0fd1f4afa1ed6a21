"""Reward of a proposal in training: the logarithm of its speed-up, and a floor for failures."""

from __future__ import annotations

import math

from sassafras.core import SassafrasError

#: for anything but `correct`: below the slowest correct kernel, whatever its length and deviation
FAILED = -1.5
#: taken off per unit of relative RMS deviation and per 1,000 characters, together at most `MOST_OFF`: they
#: break ties between equally fast kernels
DEVIATION_WEIGHT, LENGTH_WEIGHT, MOST_OFF = 0.01, 0.001, 0.02


def reward(ratio: float | None, *, deviation: float = 0.0, characters: int = 0) -> float:
    """The reward of one candidate.

    Args:
        ratio: reference time / candidate time; None for anything that is not `correct`.
        deviation: relative RMS deviation from the reference, at least 0.
        characters: length of the proposed code.

    Raises:
        SassafrasError: a ratio that is not positive and finite, or a negative deviation or length.
    """
    if ratio is None:
        return FAILED
    if not (ratio > 0 and math.isfinite(ratio)) or not deviation >= 0 or characters < 0:
        raise SassafrasError(
            f"no reward for a ratio of {ratio}, a deviation of {deviation} and {characters} characters"
        )
    off = DEVIATION_WEIGHT * deviation + LENGTH_WEIGHT * characters / 1000
    return max(-1.0, min(1.0, math.log(ratio))) - min(off, MOST_OFF)
