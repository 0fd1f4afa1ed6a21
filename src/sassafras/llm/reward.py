"""Reward of a proposal: the logarithm of its speed-up less deviation and length; a floor for failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sassafras.core import SassafrasError

#: for anything but `correct`: below the slowest correct kernel, whatever its length and deviation
FAILED = -1.5


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """CUDA-L2's three terms (arXiv 2512.02551): speed, deviation from a reference in FP32 or wider, length.

    By default deviation and length break ties between equally fast kernels.

    Attributes:
        speed: a unit of the logarithm of the speed-up.
        rms, largest: a unit of the RMS and of the largest deviation, both relative to the reference's RMS.
        length: 1,000 characters.
        most: deviation and length together take off at most this.
    """

    speed: float = 1.0
    rms: float = 0.01
    largest: float = 0.001
    length: float = 0.001
    most: float = 0.02

    def __post_init__(self) -> None:
        values = (self.speed, self.rms, self.largest, self.length, self.most)
        if not all(value >= 0 and math.isfinite(value) for value in values):
            raise SassafrasError(f"weights of the reward are finite and not negative, got {values}")


def reward(
    ratio: float | None,
    *,
    deviation: float = 0.0,
    largest: float = 0.0,
    characters: int = 0,
    weights: RewardWeights | None = None,
) -> float:
    """The reward of one candidate.

    Args:
        ratio: reference time / candidate time; None for anything that is not `correct`.
        deviation: relative RMS deviation from the reference, at least 0.
        largest: the largest element's, relative to the reference's RMS, at least 0.
        characters: length of the proposed code.
        weights: of the terms.

    Raises:
        SassafrasError: a ratio that is not positive and finite, or a negative deviation or length.
    """
    if ratio is None:
        return FAILED
    if not (ratio > 0 and math.isfinite(ratio)) or not min(deviation, largest) >= 0 or characters < 0:
        raise SassafrasError(
            f"no reward for a ratio of {ratio}, a deviation of {deviation} and {characters} characters"
        )
    given = weights or RewardWeights()
    off = given.rms * deviation + given.largest * largest + given.length * characters / 1000
    return given.speed * max(-1.0, min(1.0, math.log(ratio))) - min(off, given.most)
