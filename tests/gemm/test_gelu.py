"""GELU's exact form in the kernels' words, against FP64, for every FP16 there is."""

from __future__ import annotations

import math
import re

import numpy as np

from sassafras.gemm.build.cubins import KERNELS

TEXT = (KERNELS / "epilogue.cuh").read_text()


def kernels_gelu(x: np.ndarray) -> np.ndarray:
    """`gelu` of epilogue.cuh in FP32, its numbers read from there."""
    body = TEXT[TEXT.index("float gelu(float x) {") :]
    body = body[: body.index("\n}")]
    most = np.float32(re.findall(r"fminf\(x \* x, ([\d.]+)f\)", body)[0])
    first = re.findall(r"float q = (-?[\d.e-]+)f;", body)
    rest = re.findall(r"q = q \* u ([+-]) ([\d.e-]+)f;", body)
    assert len(first) == 1 and len(rest) == 7
    u = np.minimum(x * x, most)
    q = np.full_like(u, np.float32(first[0]))
    for sign, number in rest:
        q = q * u + np.float32(sign + number)
    with np.errstate(over="ignore"):
        return x * (np.float32(1) / (np.float32(1) + np.exp2(-x * q)))


def test_every_half_is_right() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    exact = np.array([x * 0.5 * math.erfc(-x / math.sqrt(2)) for x in halves.astype(float)])
    got = kernels_gelu(halves.astype(np.float32)).astype(np.float64)
    place = np.maximum(2.0**-24, 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-30))) - 10))
    error = np.abs(got - exact) / place
    assert error[np.abs(halves) <= 5.6].max() < 0.03
    assert error.max() < 0.3
    # rounded, not one in thirty differs from the exact value's rounding, and none by more than a place
    apart = np.abs(got.astype(np.float16).astype(float) - exact.astype(np.float16).astype(float))
    assert (apart <= place).all() and np.mean(apart > 0) < 0.03


def test_what_is_not_finite() -> None:
    x = np.array([np.inf, np.nan, -6e4, 6e4], np.float32)
    with np.errstate(over="ignore"):
        got = kernels_gelu(x)
    assert got[0] == np.inf and np.isnan(got[1]) and got[2] == 0 and got[3] == np.float32(6e4)
