"""When jumps of the GPU's clock mean that another context runs."""

from __future__ import annotations

import pytest

from sassafras.cuda.idle import JUMP_NS, busy


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([], False),
        ([1024] * 132, False),
        ([JUMP_NS] * 132, False),
        ([1024] * 66 + [10 * JUMP_NS] * 66, False),  # half of them: no slice of time belongs to half a GPU
        ([1024] * 65 + [10 * JUMP_NS] * 67, True),
        ([2_000_000] * 132, True),
    ],
)
def test_a_slice_of_time_stops_most_multiprocessors(gaps: list[int], verdict: bool) -> None:
    assert busy(gaps) is verdict
