"""Configurations of our HGEMM kernels judged live on a GPU: beside cuBLASLt, wrong ones caught, on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sassafras.core import Evaluation, Verdict
from sassafras.gemm import GemmSpace, Shape
from sassafras.gemm.build.cubins import cached_path, cubin, source

pytestmark = pytest.mark.gpu

SHAPE = Shape(64, 64, 512)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from sassafras.cuda.environment import available

    if not available()[0]:
        pytest.skip("no GPU")
    pytest.importorskip("torch")
    from sassafras.gemm.bench.device import GemmDevice

    cache = tmp_path_factory.mktemp("cubins")
    made = GemmDevice(cache=cache, processes=2)
    made.folder = cache  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.mark.alone
def test_a_configuration_is_checked_and_timed_beside_cublaslt(device) -> None:  # type: ignore[no-untyped-def]
    from sassafras.gemm.select.workload import workload as gemm_workload

    space = GemmSpace(SHAPE, lambda config: cubin(config.instance, device.folder))
    workload = gemm_workload(SHAPE, space.start(), device.folder)
    start = space.candidate(space.start())
    device.open(workload, workload.case(None), start.kernel)
    outcome = device.run(start)
    assert isinstance(outcome, Evaluation) and outcome.verdict is Verdict.CORRECT, outcome.detail
    assert outcome.time_us is not None and outcome.baseline_us is not None
    assert 0.5 < outcome.time_us < 50 and 0.5 < outcome.baseline_us < 50
    assert outcome.facts["rms_ratio"] <= 1.1 and device.baseline["layout"] in ("nn", "tn")
    final = device.remeasure(start)
    assert final.verdict.ok and final.null == pytest.approx(1.0, abs=0.05)
    assert final.speedup == pytest.approx(outcome.speedup, rel=0.15)


def test_a_kernel_that_is_off_by_one_per_cent_is_wrong(device) -> None:  # type: ignore[no-untyped-def]
    """A cubin of changed source in the place of the right one."""
    from sassafras.cuda.compile import compile_cuda
    from sassafras.gemm.select.workload import workload as gemm_workload

    space = GemmSpace(SHAPE, lambda config: b"")
    used = space.start().instance
    config = next(c for c in space.configs if c.instance != used)
    text = source(config.instance)
    wrong = text.replace('"f"(first)', '"f"(first * 1.01f)')
    assert wrong != text
    path: Path = cached_path(config.instance, device.folder)
    path.write_bytes(compile_cuda(wrong, "sm_90a", name="wrong.cu"))
    workload = gemm_workload(SHAPE, space.start(), device.folder)
    device.open(workload, workload.case(None), None)
    outcome = device.run(space.candidate(config))
    assert outcome.verdict is Verdict.WRONG_RESULT and "RMS" in outcome.detail


@pytest.mark.alone  # "auto" would join the cluster of a test beside it, and lose it when that one ends
def test_a_sweep_on_a_cluster_of_this_machine(tmp_path: Path, device) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("ray")
    from sassafras.cluster import Pool
    from sassafras.cluster.gemm import ClusterCrew
    from sassafras.gemm.bench import runs
    from sassafras.gemm.bench.options import Options

    shapes = (SHAPE, Shape(64, 128, 512))
    with Pool("auto", device="cuda", workers=1) as pool:
        settings = runs.RunSettings(tmp_path, Options(configs=12), crew=ClusterCrew(pool))
        dataset = runs.sweep(shapes, settings)
    assert not dataset.modelled and set(dataset.entries) == set(shapes)
    assert all(entry.ours for entry in dataset)
