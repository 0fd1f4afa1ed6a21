"""What counts as close: within the tolerance, equal, both NaN; alike for NumPy and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sassafras.core import Tolerance

#: (output, reference, close)
PAIRS = [
    (1.0, 1.0, True),
    (1.011, 1.0, True),
    (1.013, 1.0, False),
    (0.0019, 0.0, True),
    (0.0021, 0.0, False),
    (math.nan, math.nan, True),
    (math.nan, 1.0, False),
    (1.0, math.nan, False),
    (math.inf, math.inf, True),
    (-math.inf, math.inf, False),
    (5.0, math.inf, False),
    (math.nan, -math.inf, False),
    (math.inf, 5.0, False),
]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_close(kind: str) -> None:
    out, ref = (np.array([pair[n] for pair in PAIRS]) for n in (0, 1))
    if kind == "torch":
        torch = pytest.importorskip("torch")
        out, ref = torch.from_numpy(out), torch.from_numpy(ref)
    with np.errstate(invalid="ignore"):
        assert Tolerance(rtol=0.01, atol=0.002).close(out, ref).tolist() == [pair[2] for pair in PAIRS]
