"""Configurations of our HGEMM kernels judged live on a GPU: beside cuBLASLt, wrong ones caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from sassafras.core import DeviceError
from sassafras.gemm.bench.rival import rival
from sassafras.gemm.build.cubins import cached_path, source
from sassafras.gemm.configs import registry
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.workload import favourite

pytestmark = pytest.mark.gpu

SHAPE = Shape(64, 64, 512)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sassafras.cuda.environment import available

    if not available()[0]:
        pytest.skip("no GPU")
    pytest.importorskip("torch")
    return tmp_path_factory.mktemp("cubins")


@pytest.mark.alone
def test_a_configuration_is_checked_and_timed_beside_cublaslt(cache: Path) -> None:
    found = rival(SHAPE, favourite(SHAPE), cache=cache)
    assert 0.3 < found["low"] <= found["ratio"] <= found["high"] < 5


def test_a_kernel_that_is_off_by_one_per_cent_is_wrong(cache: Path) -> None:
    """A cubin of changed source in the place of the right one."""
    from sassafras.cuda.compile import compile_cuda

    ranked = sorted(registry.legal(SHAPE), key=lambda c: (c.estimate_us(SHAPE), c.rank))
    used = favourite(SHAPE).instance
    config = next(c for c in ranked if c.instance != used and len(c.instances) == 1)
    text = source(config.instance)
    wrong = text.replace('"f"(first)', '"f"(first * 1.01f)')
    assert wrong != text
    cached_path(config.instance, cache).write_bytes(compile_cuda(wrong, "sm_90a", name="wrong.cu"))
    with pytest.raises(DeviceError, match="RMS"):
        rival(SHAPE, config, cache=cache)
