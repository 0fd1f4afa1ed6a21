"""`CudaDevice` on a real GPU: identity, faults, hangs, rates, sampling, fresh processes."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sassafras.core import Candidate, DeviceError, Evaluation, Verdict
from sassafras.evaluate.gpu import CudaDevice, Limits
from sassafras.targets import load

pytestmark = pytest.mark.gpu
AFFINE = Path(__file__).with_name("affine.py")


def _affine() -> ModuleType:
    spec = importlib.util.spec_from_file_location("affine_for_tests", AFFINE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def open_device(target: str, **settings: Any) -> tuple[CudaDevice, Candidate]:
    device = CudaDevice(**settings)
    workload = load(target)
    baseline = workload.build(workload.cases[0], device.arch)
    device.open(workload, workload.cases[0], baseline)
    return device, Candidate(baseline, {"identity": True})


@pytest.fixture(scope="module")
def affine() -> Iterator[CudaDevice]:
    device, _ = open_device(f"{AFFINE}:workload", limits=Limits(candidate_s=3.0))
    yield device
    device.close()


@pytest.fixture(scope="module")
def softmax() -> Iterator[tuple[CudaDevice, Candidate]]:
    device, identity = open_device("suite:softmax")
    yield device, identity
    device.close()


def test_the_parent_never_holds_a_context() -> None:
    """In a process of its own: other tests of this run may use torch on the GPU.

    Frontends may start the driver (to compile); what a crash could take down is a context.
    """
    program = (
        "from sassafras.core import Candidate\n"
        "from sassafras.evaluate.gpu import CudaDevice\n"
        "from sassafras import load\n"
        f"workload = load({str(AFFINE)!r} + ':workload')\n"
        "device = CudaDevice()\n"
        "kernel = workload.build(workload.cases[0], device.arch)\n"
        "device.open(workload, workload.cases[0], kernel)\n"
        "verdict = device.run(Candidate(kernel)).verdict\n"
        "from cuda.bindings import driver\n"
        "driver.cuInit(0)\n"
        "print(verdict, driver.cuDevicePrimaryCtxGetState(0)[2])\n"
        "device.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["correct", "0"], done.stderr


@pytest.mark.alone
def test_identity_is_correct_and_as_fast_as_itself(softmax: tuple[CudaDevice, Candidate]) -> None:
    device, identity = softmax
    outcomes = [device.run(identity) for _ in range(30)]
    assert {o.verdict for o in outcomes} == {Verdict.CORRECT}
    assert statistics.median(o.speedup or 0 for o in outcomes) == pytest.approx(1.0, abs=0.01)
    assert "512x4000" in device.facts["cases"]


@pytest.mark.alone
def test_at_least_150_evaluations_a_second(softmax: tuple[CudaDevice, Candidate]) -> None:
    device, identity = softmax
    device.run(identity)
    begin = time.perf_counter()
    for _ in range(300):
        assert device.run(identity).verdict is Verdict.CORRECT
    assert 300 / (time.perf_counter() - begin) >= 150


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("wrong", "output", "output differs at y"),
        ("last_element", "output", "output differs at y"),
        ("writes_nothing", "output", "output differs at y"),
        ("past_the_end", "guard", "past the end of y"),
        ("before_the_beginning", "guard", "before y"),
        ("modifies_input", "input", "input modified at x"),
        ("wrong_later", "output", "timing"),
    ],
)
def test_wrong_kernels_are_caught(affine: CudaDevice, fault: str, kind: str, words: str) -> None:
    outcome = affine.run(_affine().candidate(fault, affine.arch))
    assert outcome.verdict is Verdict.WRONG_RESULT, outcome.detail
    assert words in outcome.detail
    assert kind in outcome.facts["kinds"]
    assert affine.run(_affine().candidate("none", affine.arch)).verdict is Verdict.CORRECT


@pytest.mark.alone
def test_a_slow_kernel_is_correct_and_stopped_early(affine: CudaDevice) -> None:
    outcome = affine.run(_affine().candidate("slower", affine.arch))
    assert outcome.verdict is Verdict.CORRECT, outcome.detail
    assert outcome.speedup is not None
    assert outcome.speedup < 0.9
    assert outcome.facts["stopped"]


def test_a_crash_costs_one_candidate(affine: CudaDevice) -> None:
    restarts = affine.restarts
    outcome = affine.run(_affine().candidate("illegal_address", affine.arch))
    assert outcome.verdict is Verdict.CRASHED
    assert "ILLEGAL_ADDRESS" in outcome.detail
    assert affine.run(_affine().candidate("none", affine.arch)).verdict is Verdict.CORRECT
    assert affine.restarts == restarts + 1


@pytest.mark.alone
def test_a_hang_is_killed_within_its_limit_plus_one_second(affine: CudaDevice) -> None:
    affine.run(_affine().candidate("none", affine.arch))
    begin = time.perf_counter()
    outcome = affine.run(_affine().candidate("hangs", affine.arch))
    assert outcome.verdict is Verdict.TIMED_OUT
    assert time.perf_counter() - begin < affine.limits.candidate_s + 1.0
    assert affine.run(_affine().candidate("none", affine.arch)).verdict is Verdict.CORRECT


def test_what_is_no_cubin_is_refused_without_a_restart(affine: CudaDevice) -> None:
    good = _affine().candidate("none", affine.arch)
    restarts = affine.restarts
    outcome = affine.run(Candidate(good.kernel.with_cubin(b"\x7fELF" + bytes(500))))
    assert outcome.verdict is Verdict.COMPILE_ERROR
    outcome = affine.run(Candidate(replace(good.kernel, name="missing")))
    assert outcome.verdict is Verdict.COMPILE_ERROR
    outcome = affine.run(Candidate(replace(good.kernel, shared_bytes=1 << 20)))
    assert outcome.verdict in (Verdict.OUT_OF_RESOURCES, Verdict.CRASHED)
    assert affine.run(good).verdict is Verdict.CORRECT
    assert affine.restarts == restarts


def test_other_parameters_are_unsupported(affine: CudaDevice) -> None:
    good = _affine().candidate("none", affine.arch)
    outcome = affine.run(Candidate(replace(good.kernel, hidden_args=2)))
    assert outcome.verdict is Verdict.UNSUPPORTED
    assert "declares 3 parameters, the workload gives 5" in outcome.detail


def test_a_baseline_that_varies_is_judged_by_the_tolerance() -> None:
    device, identity = open_device(f"{AFFINE}:varying")
    try:
        assert not device.facts["exact"]
        assert device.run(identity).verdict is Verdict.CORRECT
        assert device.run(_affine().candidate("none", device.arch)).verdict is Verdict.CORRECT
        outcome = device.run(_affine().candidate("wrong", device.arch))
        assert outcome.verdict is Verdict.WRONG_RESULT
        assert "elements of y differ" in outcome.detail
        with pytest.raises(DeviceError, match="differs from itself"):
            device.sample(identity, seconds=0.1)
    finally:
        device.close()


@pytest.mark.parametrize(
    ("attribute", "words"), [("mistaken", "differs from the reference"), ("stray", "past the end of y")]
)
def test_a_baseline_at_fault_is_refused_at_open(attribute: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        open_device(f"{AFFINE}:{attribute}")


def test_sampling_looks_after_inputs_that_it_does_not_draw() -> None:
    device, _ = open_device(f"{AFFINE}:rising")
    try:
        assert device.sample(_affine().candidate("none", device.arch), count=1000).verdict is Verdict.CORRECT
        spoils = device.sample(_affine().candidate("modifies_input", device.arch), count=1000)
        assert spoils.verdict is Verdict.WRONG_RESULT and "input modified at x" in spoils.detail
    finally:
        device.close()


def test_sampling_counts_fresh_inputs_and_finds_a_rare_fault(affine: CudaDevice) -> None:
    good = affine.sample(_affine().candidate("none", affine.arch), count=2000)
    assert good.verdict is Verdict.CORRECT
    assert good.samples >= 2000
    assert good.mismatches == 0
    assert good.failure_bound <= 3 / 2000
    bad = affine.sample(_affine().candidate("last_element", affine.arch), count=1000)
    assert bad.verdict is Verdict.WRONG_RESULT
    assert bad.mismatches == bad.samples
    spoils = affine.sample(_affine().candidate("modifies_input", affine.arch), count=1000)
    assert spoils.verdict is Verdict.WRONG_RESULT and "modified" in spoils.detail
    assert affine.run(_affine().candidate("none", affine.arch)).verdict is Verdict.CORRECT


@pytest.mark.alone
def test_processes_that_do_not_fit_together_open_one_after_another(
    softmax: tuple[CudaDevice, Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, identity = softmax
    taken = device.facts["bytes_taken"]
    assert 0 < taken < device.facts["bytes_free"] and device._together() >= 5
    monkeypatch.setitem(device.facts, "bytes_free", 3 * taken)
    assert device._together() == 2
    outcome = device.remeasure(identity, processes=3)
    assert outcome.verdict is Verdict.CORRECT and len(outcome.facts["processes"]) == 3, outcome.detail


@pytest.mark.alone
def test_fresh_processes_measure_the_null_beside_the_candidate(
    softmax: tuple[CudaDevice, Candidate],
) -> None:
    device, identity = softmax
    outcome = device.remeasure(identity, processes=2)
    assert isinstance(outcome, Evaluation)
    assert outcome.verdict is Verdict.CORRECT, outcome.detail
    assert outcome.speedup == pytest.approx(1.0, abs=0.01)
    assert outcome.null == pytest.approx(1.0, abs=0.01)
    assert outcome.interval is not None
    assert outcome.null_interval is not None
    assert not outcome.interval.outside(outcome.null_interval)
    assert len(outcome.facts["processes"]) == 2
    assert outcome.facts["cold_l2_speedup"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.alone
def test_processes_that_were_forked_ahead_measure_too(softmax: tuple[CudaDevice, Candidate]) -> None:
    device, identity = softmax
    device.prefork()
    assert device.run(identity).verdict is Verdict.CORRECT
    begin = time.perf_counter()
    outcome = device.remeasure(identity)
    assert outcome.verdict is Verdict.CORRECT, outcome.detail
    assert len(outcome.facts["processes"]) == 5
    assert time.perf_counter() - begin < 2 * device.confirmation_s() < 60


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [("illegal_address", Verdict.CRASHED), ("hangs", Verdict.TIMED_OUT), ("wrong", Verdict.WRONG_RESULT)],
)
def test_a_faulty_winner_is_caught_on_its_cold_first_launch(
    affine: CudaDevice, fault: str, verdict: Verdict
) -> None:
    outcome = affine.remeasure(_affine().candidate(fault, affine.arch), processes=2)
    assert outcome.verdict is verdict, outcome.detail
    assert "cold first launch" in outcome.detail


def test_the_environment_names_the_gpu() -> None:
    device = CudaDevice()
    found = device.environment()
    assert found["gpu"] == device.name
    assert found["driver"]
    assert found["torch"]
    assert device.arch.startswith("sm_")
