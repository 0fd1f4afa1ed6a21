"""The lean kernels and the benchmark on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sassafras.gemm.problem.shape import Shape

if TYPE_CHECKING:
    from sassafras.gemm.bench.gpu_context import GpuContext

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def tools() -> GpuContext:
    pytest.importorskip("torch")
    from sassafras.gemm.bench.gpu_context import GpuContext

    return GpuContext()


def test_boundary_shapes_are_right(tools: GpuContext) -> None:
    from sassafras.gemm.bench.verify import BOUNDARY, tries, verify

    records = verify(tools, each=4, seed=1)
    assert [fault for r in records for fault in r["faults"]] == []
    assert {r["shape"]: r["right"] for r in records} == {str(s): tries(s, 4) for s in BOUNDARY}


def test_a_wrong_launch_is_noticed(tools: GpuContext) -> None:
    from sassafras.core import DeviceError
    from sassafras.gemm.bench.operands import Operands
    from sassafras.gemm.bench.timing import TimedBlock

    operands = Operands(Shape(64, 64, 64), 0)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    assert operands.check(tools.gemm_ex("tn", operands)).why == ""
    assert "NaN" in operands.check(lambda: None).why
    assert "RMS" in operands.check(lambda: operands.c.copy_(operands.reference * 1.01)).why
    raw = operands._buffers["c"].raw
    assert (
        "wrote outside of c"
        in operands.check(lambda: (tools.gemm_ex("nn", operands)(), raw[:8].fill_(0))).why
    )
    assert operands.check(tools.gemm_ex("nn", operands)).why == ""
    assert "inputs" in operands.check(lambda: (tools.gemm_ex("nn", operands)(), operands.a[0, 0].add_(1))).why
    with pytest.raises(DeviceError, match="ran elsewhere"):
        TimedBlock(tools.gpu, lambda: None, 3)


def test_new_families_are_right_and_survive(tmp_path: Path) -> None:
    """A sample of the bring-up: every sixth instance, in a worker of its own."""
    from sassafras.gemm.bench import bringup
    from sassafras.gemm.bench.bringup_plan import hopper_instances, jobs

    wanted = jobs(instances=hopper_instances()[::6])
    found = bringup.supervise(wanted, tmp_path / "journal.jsonl", patience=120)
    assert [bringup.line(r) for r in found if not r["right"]] == []
    assert len(found) == len(wanted)


def test_launches_that_overlap_stay_right(tools: GpuContext) -> None:
    from sassafras.gemm.bench.operands import Operands
    from sassafras.gemm.configs import registry

    operands = Operands(Shape(128, 128, 512), 0)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    modes = [mode for config in registry.legal(operands.shape)[::40] for mode in config.in_modes()]
    overlapping = [mode for mode in modes if mode.launch(operands.shape).overlap]
    assert len(overlapping) > 10
    for config in overlapping:
        enqueue = tools.ours(config, operands)
        assert operands.check(lambda call=enqueue: [call() for _ in range(20)]).why == "", config.name


def test_benchmark_of_two_shapes(tmp_path: Path) -> None:
    from sassafras.gemm.bench.commands import benchmark
    from sassafras.gemm.bench.options import Options

    shapes = (Shape(64, 64, 64), Shape(128, 64, 256))
    options = Options(configs=24, seconds=0.02)
    path, summary = benchmark(shapes, tmp_path, options, processes=2, progress=0)
    found = json.loads(path.read_text())
    assert summary["measured"] == summary["with_ours"] == 2 and summary["failed"] == 0
    for row in found["rows"]:
        assert row["processes"] == 2 and 0.9 < row["null"] < 1.1 and row["speedup_low"] <= row["speedup"]
        for name in ("ours", "lt_autotune", "lt_heuristic", "cublas", "torch"):
            assert 0.5 < row[name] < 100
    again, _ = benchmark(shapes, tmp_path, options, processes=2, progress=0)  # resumes: nothing is left to do
    assert json.loads(again.read_text())["rows"] == found["rows"]
