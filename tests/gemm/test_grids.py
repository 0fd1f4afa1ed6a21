"""Sets of shapes by name: the drawn ones are as they were drawn, and earlier names find them."""

from __future__ import annotations

import hashlib

import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.bench.grids import EARLIER, choose_shapes, drawn, file_name, judges
from sassafras.gemm.problem.shape import Shape, cuda_l2_grid

#: shapes of each set, and the first digits of their texts' digest: what was swept and judged with them
DRAWN = {
    "judge-1": (60, "6075ca08ce3553c0"),
    "judge-2": (60, "41ca3c67bbbc5377"),
    "judge-3": (60, "9b780afabf2f534a"),
    "judge-4": (60, "034b537d8a22cc65"),
    "judge-5": (60, "2efb34257cafd89b"),
    "judge-6": (40, "94c0f3c9dc55ce33"),
    "judge-7": (40, "bf1429cb9336c457"),
    "judge-8": (40, "d15c13815422c53f"),
    "learn-1": (300, "d3296cd247cc3946"),
    "learn-2": (150, "5eafc863435b992c"),
    "learn-3": (80, "bdedc951ee26d6b5"),
    "learn-4": (160, "ad5e51c5c9971bc0"),
    "learn-5": (120, "763054f18c4c65bc"),
    "learn-6": (960, "898edccf3ba421b6"),
}


def test_the_drawn_sets_are_those_that_were_measured() -> None:
    assert drawn().keys() == DRAWN.keys()
    for name, shapes in drawn().items():
        digest = hashlib.sha256(" ".join(map(str, shapes)).encode()).hexdigest()[:16]
        assert (len(shapes), digest) == DRAWN[name], name
        assert list(shapes) == sorted(shapes, key=lambda s: (s.flop, s))


def test_no_shape_is_in_two_sets() -> None:
    sets = [set(cuda_l2_grid()), *map(set, drawn().values())]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 1000 + sum(count for count, _ in DRAWN.values())


def test_names_and_lists() -> None:
    assert set(EARLIER.values()) == set(DRAWN) - {"judge-8", "learn-5", "learn-6"}
    assert choose_shapes("off-grid-fifth") == choose_shapes("judge-5") == drawn()["judge-5"]
    assert judges("off-grid") and judges("judge-6") and not judges("cuda-l2") and not judges("learning-odd")
    assert all(s.n % 8 or s.k % 8 for name in ("judge-7", "learn-2") for s in choose_shapes(name))
    assert choose_shapes("judge-1", "<1e8") and len(choose_shapes("cuda-l2", count=12, seed=3)) == 12
    assert choose_shapes("8x8x8,16x16x16,8x8x8") == (Shape(8, 8, 8), Shape(16, 16, 16))
    with pytest.raises(SassafrasError, match="there is no grid 'judge-99'") as caught:
        choose_shapes("judge-99")
    assert "cuda-l2, backward, judge-1" in str(caught.value)


def test_names_of_results() -> None:
    assert file_name("cuda-l2", "server") == "hgemm-server"
    assert file_name("off-grid", "offline") == "hgemm-judge-1"
    assert file_name("judge-2", "server") == "hgemm-judge-2-server"
    assert file_name("cuda-l2", "server", 100.0) == "hgemm-server-100"
