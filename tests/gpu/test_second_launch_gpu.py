"""k split by two launches, on a GPU: right in every mode, back to back, with equal bits."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_pairs_are_right_in_every_mode(layout: str) -> None:
    torch = pytest.importorskip("torch")
    from sassafras.gemm.operands import Operands
    from sassafras.gemm.second_launch import candidates
    from sassafras.gemm.shapes import Shape
    from sassafras.gemm.tools import Tools

    tools, shape = Tools(), Shape(264, 136, 4104)  # tiles that reach beyond C, a k tile that ends early
    operands = Operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    pairs = [mode for pair in candidates(shape, layout)[::3] for mode in pair.in_modes()]
    assert pairs
    for pair in pairs:
        first, second = tools.ours(pair.first, operands), tools.ours(pair.second, operands)
        assert operands.check(lambda f=first, s=second: (f(), s())).why == "", pair.name
        once = operands.c.view(torch.int16).clone()
        operands.poison()
        for _ in range(8):
            first()
            second()
        assert torch.equal(once, operands.c.view(torch.int16)), pair.name
