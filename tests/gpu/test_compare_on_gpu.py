"""`sassafras.compare` on a GPU: functions in graphs, work that hides, cubins in fresh processes."""

from __future__ import annotations

import importlib.util

import pytest

from sassafras.api.compare import compare
from sassafras.core import DeviceError
from sassafras.targets import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.mark.alone
def test_twice_the_work_is_slower_and_the_null_is_flat() -> None:
    import torch

    x = torch.randn(4 << 20, device="cuda")

    def once(t: torch.Tensor) -> torch.Tensor:
        return torch.sin(t)

    def twice(t: torch.Tensor) -> torch.Tensor:
        torch.sin(t)
        return torch.sin(t)

    found = compare(once, twice, args=(x,), rounds=20)
    assert found.decided == "slower", found.summary()
    assert found.speedup == pytest.approx(0.5, abs=0.1)
    # single groups may differ by 5 % (where their results lie); the interval has to know
    null, interval = found.null, found.null_interval
    assert null is not None and interval is not None
    assert abs(null - 1) < 0.02 or interval.low <= 1 <= interval.high, found.facts["groups_null"]
    assert null == pytest.approx(1.0, abs=0.04), found.facts["groups_null"]
    assert found.equal == "bitwise"
    assert found.cold_speedup is not None
    assert found.cold_speedup < 1.0


def test_work_on_another_stream_is_refused() -> None:
    import torch

    x = torch.randn(1 << 20, device="cuda")
    side = torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)

    def hides(t: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(side):
            return torch.sin(t)

    with pytest.raises(DeviceError, match=r"elsewhere|captured"):
        compare(torch.sin, hides, args=(x,), groups=2, rounds=4)
    assert torch.rand(8, device="cuda").unique().numel() > 1, "torch draws as before"


def test_torch_is_as_before_after_a_function_that_cannot_be_captured() -> None:
    """A capture that never ended let `empty_cache` fail, and ended the process when a pool was freed."""
    import torch

    x = torch.randn(1 << 20, device="cuda")

    def waits(t: torch.Tensor) -> torch.Tensor:
        return torch.sin(t) if float(t[0]) > -9 else t

    with pytest.raises(DeviceError, match="cannot be captured"):
        compare(torch.sin, waits, args=(x,), groups=2, rounds=4)
    assert torch.rand(8, device="cuda").unique().numel() > 1
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = torch.ones(8, device="cuda")
    del held, pool

    def raises(t: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not in a capture")
        return torch.sin(t)

    with pytest.raises(DeviceError, match="not in a capture"):  # whose capture ends well
        compare(torch.sin, raises, args=(x,), groups=2, rounds=4)
    torch.cuda.empty_cache()
    assert compare(torch.sin, torch.sin, args=(x,), groups=2, rounds=4).equal == "bitwise"


@pytest.mark.alone
def test_a_cubin_against_itself_makes_no_difference() -> None:
    from sassafras.cuda.environment import probe

    workload = load("suite:softmax")
    kernel = workload.build(workload.cases[0], str(probe()["arch"]))
    found = compare(kernel, kernel.cubin, workload="suite:softmax", groups=2, rounds=40)
    assert found.verdict == "correct"
    assert found.speedup == pytest.approx(1.0, abs=0.02)
    assert found.equal == "bitwise"
