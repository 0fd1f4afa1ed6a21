"""Sampling on a Ray cluster of this machine's GPU: an original passes, a wrong kernel is found."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sassafras.api.verify import verify
from sassafras.core import Candidate, Kernel
from sassafras.targets import load

#: each starts a cluster of its own, which a test beside it would find and join
pytestmark = [pytest.mark.gpu, pytest.mark.alone]
AFFINE = Path(__file__).with_name("affine.py")


@pytest.fixture
def pool() -> Iterator[Any]:
    """One worker, in a cluster that is this machine alone."""
    pytest.importorskip("ray")
    from sassafras.cluster import Pool

    with Pool("auto", workers=1) as made:
        yield made


def test_an_original_passes_on_a_worker(pool: Any) -> None:
    from sassafras.cluster.random_tests import sample

    workload = load("suite:softmax")
    case = workload.cases[0]
    original = workload.build(case, pool.facts["arch"])
    found = sample(pool, workload, [case.name], original, Candidate(original), samples=20_000)
    assert found.fault is None and found.inexact is None
    assert found.samples >= 20_000 and found.mismatches == 0
    assert found.gpus == 1 and found.failure_bound <= 3 / 20_000


def _wrong(arch: str) -> Kernel:
    """`affine` that leaves the last element out."""
    spec = importlib.util.spec_from_file_location("affine_for_cluster_tests", AFFINE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: Kernel = module.faulty("last_element", arch)
    return kernel


def test_a_wrong_kernel_is_found_and_its_place_named(pool: Any) -> None:
    from sassafras.cluster.random_tests import sample

    workload = load(f"{AFFINE}:workload")
    cases = [case.name for case in workload.cases]
    original = workload.build(workload.cases[0], pool.facts["arch"])
    good = sample(pool, workload, cases, original, Candidate(original), samples=3_000)
    assert good.fault is None and [part.shard.case for part in good.parts] == cases
    bad = sample(pool, workload, cases, original, Candidate(_wrong(original.arch)), samples=3_000)
    assert bad.mismatches > 0 and bad.fault is not None
    assert bad.fault.shard.case == cases[0] and bad.fault.host


@pytest.mark.parametrize("here", [True, False])
def test_verify_samples_on_the_cluster(here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a machine with a GPU, and from one without, whose cases a worker checks."""
    pytest.importorskip("ray")
    if not here:
        monkeypatch.setattr("sassafras.api.verify.available", lambda: (False, "none on this machine"))
    found = verify(
        "suite:softmax", store=tmp_path / "none.sqlite", samples=20_000, sanitizer=False, cluster="auto",
        workers=1,
    )  # fmt: skip
    steps = {step.name: step for step in found.steps}
    assert not found.failed, found.summary()
    assert steps["every case in fresh processes"].status == "passed", found.summary()
    assert "512x4000" in found.cases
    assert steps["sampling"].status == "passed", found.summary()
    assert steps["sampling"].facts["samples"] >= 20_000
    assert "on 1 GPU in" in steps["sampling"].detail
