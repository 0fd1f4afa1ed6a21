"""cuBLASLt beside a configuration, on the modelled clock."""

from __future__ import annotations

import pytest

from sassafras.core import DeviceError
from sassafras.gemm.bench.rival import rival
from sassafras.gemm.configs import registry
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.workload import favourite

SHAPE = Shape(64, 64, 512)


def test_a_ratio_with_its_interval() -> None:
    found = rival(SHAPE, favourite(SHAPE), dry=True)
    assert 0 < found["low"] <= found["ratio"] <= found["high"]


def test_a_slow_guess_is_held_against_our_best() -> None:
    slow = next(c for c in registry.configurations() if c.FAMILY == "fallback" and not c.why_illegal(SHAPE))
    found = rival(SHAPE, slow, dry=True)
    assert found["name"].startswith("our configuration ") and "+" not in found["name"] and found["high"] < 0.9


def test_what_cannot_be_timed_is_said() -> None:
    illegal = next(c for c in registry.configurations() if c.why_illegal(SHAPE))
    with pytest.raises(DeviceError, match="could not be timed beside"):
        rival(SHAPE, illegal, dry=True)
