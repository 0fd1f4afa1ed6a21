"""Which shapes every kernel is checked on; the check itself needs a GPU (`test_hgemm_gpu.py`)."""

from __future__ import annotations

from sassafras.gemm.bench.verify import BOUNDARY, tries


def test_every_boundary_shape_is_tried_by_many_kernels() -> None:
    """Few families read rows of any length."""
    for shape in BOUNDARY:
        odd = shape.n % 8 or shape.k % 8
        assert tries(shape, 4) > (15 if odd else 500), shape
    assert {bool(s.n % 8 or s.k % 8) for s in BOUNDARY} == {False, True}
