"""The static estimate of a configuration's time: it ranks candidates before any is measured.

Every kernel's own file says what it takes (`Configuration.estimate_us`); `configs/cost.py` has the constants.
"""

from __future__ import annotations

from ..configs.registry import Config
from ..problem.shape import Shape

#: FLOP and bytes a microsecond that an H200 sustains at its power limit
_FLOP, _BYTES = 790e6, 4.3e6


def estimate_us(config: Config, shape: Shape) -> float:
    """Microseconds, roughly; good for ranking within a kernel, never reported as a time."""
    return config.estimate_us(shape)


def least_us(shape: Shape) -> float:
    """Microseconds that the machine's peak leaves of any kernel, roughly."""
    return max(shape.flop / _FLOP, shape.nbytes / _BYTES)
