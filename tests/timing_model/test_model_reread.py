"""Bytes that a kernel asks for again come from the L2, not once more from DRAM."""

from __future__ import annotations

import pytest

from sassafras.core import Buffer, Case, Kernel, Workload
from sassafras.timing_model import ModelDevice
from tests.kernels import softmax_cubin

KERNEL = Kernel(softmax_cubin("sm_90a", 512, True, 4), "softmax", "sm_90a", 128, 128)


def opened(rows: int, mebibytes: int) -> ModelDevice:
    """`rows` blocks that read and write 2 KiB each, of buffers of so many MiB in all."""
    half = Buffer("u8", (mebibytes * 2**19,))
    out = Buffer("u8", (mebibytes * 2**19,), "out")
    case = Case("c", (rows, 1, 1), {"x": half, "y": out})
    device = ModelDevice()
    device.open(Workload("softmax", (case,), build=lambda *_: KERNEL), case, KERNEL)
    return device


def test_the_share_of_dram_is_what_the_buffers_hold() -> None:
    # 4 KiB a row: 16384 rows ask for 64 MiB
    assert opened(16384, 64).model.dram_share == pytest.approx(1.0)
    assert opened(32768, 64).model.dram_share == pytest.approx(0.5)
    assert opened(16384, 256).model.dram_share == 1.0
    small = opened(16384, 16)
    assert small.model.dram_share == 0.0 and small.model.in_l2
    assert small.model.facts()["dram_share"] == 0.0


def test_reading_again_is_faster_than_reading_more() -> None:
    def cycles(mebibytes: int) -> float:
        device = opened(32768, mebibytes)
        return device.cycles(device.model.words)

    small, again, more = cycles(16), cycles(64), cycles(256)
    assert small <= again < more
