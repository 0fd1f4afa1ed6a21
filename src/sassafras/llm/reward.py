"""What a proposal is worth in training: the logarithm of its speed-up, and a floor for failures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sassafras.core import SassafrasError

#: what anything but `correct` earns: below the slowest correct kernel, whatever its length and deviation
FAILED = -1.5


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """How a reward is made.

    Attributes:
        form: ``log`` (ours) or ``linear`` (as CUDA-L2, arXiv 2512.02551, weighs speed, deviation and length).
        failed: for anything that is not `correct`.
        deviation_weight: taken off per unit of relative RMS deviation.
        length_weight: taken off per 1,000 characters of code.
        most_off: the most that deviation and length together may take off in the ``log`` form: they break
            ties between equally fast kernels and never put a correct kernel below a wrong one.
    """

    form: Literal["log", "linear"] = "log"
    failed: float = FAILED
    deviation_weight: float = 0.01
    length_weight: float = 0.001
    most_off: float = 0.02

    def __post_init__(self) -> None:
        if self.form not in ("log", "linear"):
            raise SassafrasError(f"there is no reward {self.form!r}", hint="log or linear")


#: the paper's linear form: a ratio minus a weighted deviation and length, neither clipped. A long correct
#: kernel can score below a wrong one; kept to compare with
LINEAR = RewardSettings("linear", deviation_weight=1.0, length_weight=0.1)


def reward(
    ratio: float | None,
    *,
    deviation: float = 0.0,
    characters: int = 0,
    settings: RewardSettings | None = None,
) -> float:
    """The reward of one candidate.

    Args:
        ratio: reference time / candidate time; None for anything that is not `correct`.
        deviation: relative RMS deviation from the reference, at least 0.
        characters: length of the proposed code.
        settings: weights and bounds; None for the default ones.

    Raises:
        SassafrasError: a ratio that is not positive and finite, or a negative deviation or length.
    """
    chosen = settings or RewardSettings()
    if ratio is None:
        return chosen.failed
    if not (ratio > 0 and math.isfinite(ratio)) or not deviation >= 0 or characters < 0:
        raise SassafrasError(
            f"no reward for a ratio of {ratio}, a deviation of {deviation} and {characters} characters"
        )
    off = chosen.deviation_weight * deviation + chosen.length_weight * characters / 1000
    if chosen.form == "linear":
        return ratio - off
    return max(-1.0, min(1.0, math.log(ratio))) - min(off, chosen.most_off)
