"""`GemmDevice` judges configurations in a process of its own; here on the modelled clock."""

from __future__ import annotations

import shutil

import pytest

from sassafras.core import Candidate, DeviceError, Evaluation, Verdict
from sassafras.gemm import GemmSpace, Shape
from sassafras.gemm.bench.device import GemmDevice
from sassafras.gemm.configs import registry
from sassafras.gemm.select.workload import workload as gemm_workload

SHAPE = Shape(64, 64, 512)


def test_one_cubin_serves_several_configurations() -> None:
    space = GemmSpace(SHAPE, lambda config: config.instance.name.encode())
    first = next(c for c in space.configs if c.cluster == 1)
    second = next(c for c in space.configs if c.instance == first.instance and c != first)
    one, other = space.candidate(first), space.candidate(second)
    assert one.kernel.cubin == other.kernel.cubin and one.digest != other.digest
    assert one.digest == space.candidate(first).digest


def test_verdicts_of_a_device() -> None:
    """What cannot run, what is no configuration, and a process that dies."""
    device = GemmDevice(dry=True, processes=2)
    device.modelled = False
    space = GemmSpace(SHAPE, lambda config: config.instance.name.encode())
    workload = gemm_workload(SHAPE, space.start())
    start = space.candidate(space.start())
    try:
        device.open(workload, workload.case(None), start.kernel)
        with pytest.raises(DeviceError, match="no baseline"):
            device.remeasure(start)
        outcome = device.run(start)
        assert isinstance(outcome, Evaluation) and outcome.verdict is Verdict.CORRECT
        assert (
            outcome.interval is not None and outcome.interval.low <= outcome.speedup <= outcome.interval.high
        )  # type: ignore[operator]
        assert device.baseline is not None and device.baseline["layout"] in ("nn", "tn")
        illegal = next(c for c in registry.configurations() if c.why_illegal(SHAPE))
        refused = device.run(Candidate(start.kernel, {"config": illegal.name}))
        assert refused.verdict is Verdict.UNSUPPORTED and refused.detail == illegal.why_illegal(SHAPE)
        with pytest.raises(DeviceError, match="not a fallback configuration"):
            device.run(Candidate(start.kernel, {"config": "staged_of_none"}))
        process = device._child._process
        assert process is not None
        process.kill()
        assert device.run(start).verdict is Verdict.CORRECT, "another process judges on"
        again = device.remeasure(start)
        assert again.verdict.ok and again.facts["processes"] == 2 and again.null_interval is not None
    finally:
        device.close()
    if shutil.which("nvcc"):
        kernel = workload.build(workload.case(None), "sm_90a")
        assert kernel.cubin[:4] == b"\x7fELF" and kernel.name == space.start().instance.name
