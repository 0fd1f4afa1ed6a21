"""Tiles that end with the matrix, on a GPU: the same bits as tiles that lie apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "name",
    [
        "split_k_nn_64x64_s10q1/c1g3+o",
        "split_k_tn_64x128_s7q1/c2",
        "split_k_tn_64x64_s10q1/c3",
        "split_k_nn_swapped_64x160_s7q1/c1+ol",
        "split_k_tn_64x96_s8q1/c2",
        "persistent_tn_128x192_pp2s4b3c2x1/g4+o",
        "persistent_tn_128x160_pp2s5b2c2x1/g4",
        "persistent_tn_128x168_pp2s5b2c1x1/g4",
        "persistent_nn_swapped_128x168_pp2s5b2c1x1/g4",
        "persistent_tn_swapped_128x176_pp2s5b2c2x1/g2+o",
        "persistent_nn_swapped_128x168_pp2s5b2c1x1/g1",
    ],
)
def test_a_moved_tile_computes_the_same_bits(name: str) -> None:
    """Two CTAs store some rows, in whatever order: they must agree, or results depend on who is last."""
    torch = pytest.importorskip("torch")
    from sassafras.gemm.bench.contestants import Contestants
    from sassafras.gemm.bench.operands import Operands
    from sassafras.gemm.configs import names, tma_wgmma
    from sassafras.gemm.problem.shape import Shape

    tools, shape, config = Contestants(), Shape(331, 456, 1024), names.parse(name)
    operands = Operands(shape, 5)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    assert config.why_illegal(shape) is None
    launch = config.launch(shape)
    seen, (rows, columns) = config.seen(shape), config.tile
    assert launch.scalars["last_row"] % rows or launch.scalars["last_column"] % columns, "a tile is moved"
    assert min(seen.m - rows, seen.n - columns) >= 0, "boxes are whole"
    moved = tools.ours(config, operands)
    assert operands.check(moved).why == ""
    found = operands.c.view(torch.int16).clone()
    a, b, c = operands.addresses(config.layout)
    first, second = (b, a) if config.swap_ab else (a, b)
    places = {"last_row": tma_wgmma.APART, "last_column": tma_wgmma.APART}
    addresses = {"a": first, "b": second, "c": c, **tools._scratch(launch)}
    apart = tools._bound(config.instance, replace(launch, scalars=launch.scalars | places), addresses)
    assert operands.check(apart).why == ""
    assert torch.equal(found, operands.c.view(torch.int16))
    operands.poison()
    for _ in range(8):
        moved()
    assert torch.equal(found, operands.c.view(torch.int16))
