"""`verify` with a GPU: everything is done, and a faulty kernel is found."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from sassafras.api.verify import verify
from sassafras.evaluate.gpu.sanitizer import program, sanitize
from sassafras.store import Store
from sassafras.targets import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.mark.alone
def test_an_original_passes_every_step_that_this_machine_has(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.sqlite") as store:
        found = verify("suite:softmax", store=store, samples=20_000, sanitizer=False)
    status = {step.name: step.status for step in found.steps}
    assert not found.failed, found.summary()
    assert status["every case in fresh processes"] == status["sampling"] == "passed"
    sampling = next(step for step in found.steps if step.name == "sampling")
    assert sampling.facts["samples"] >= 20_000
    assert sampling.facts["failure_bound"] <= 3 / 20_000
    assert "random inputs as the workload fills them" in sampling.detail
    for got, bound in zip(sampling.facts["per_second"], sampling.facts["bound_per_second"], strict=True):
        assert got > 0.2 * bound


@pytest.mark.skipif(program() is None, reason="compute-sanitizer is not installed")
def test_the_sanitizer_is_silent_on_an_original() -> None:
    workload = load("suite:rotary")
    kernel = workload.build(workload.cases[0], "sm_90a")
    findings = sanitize(workload, workload.cases[0], kernel, tools=("memcheck",), seconds=200)
    assert findings[0].clean, findings
