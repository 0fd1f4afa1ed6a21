"""Products for other sources than ours: names, checks that are exact, the library's errors."""

from __future__ import annotations

import pytest

from sassafras.core import WorkloadError, workload_digest
from sassafras.evaluate.gpu.case_on_gpu import LARGEST_FACTOR, RMS_FACTOR, relative_errors
from sassafras.evaluate.gpu.guarded_buffers import BufferLayout, make_image, view
from sassafras.evaluate.roofline import impossible
from sassafras.gemm.configs import registry
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.source_workload import source_workload
from sassafras.targets import load

torch = pytest.importorskip("torch")


def filled(workload, fills=None, seed: int = 3) -> dict:  # type: ignore[no-untyped-def]
    """A case's buffers as the evaluator fills them."""
    layout = BufferLayout.of(workload.case(None))
    image = make_image(layout.filled(fills) if fills else layout, seed=seed, device="cpu")
    return {segment.name: view(image, segment) for segment in layout.segments}


def swapped() -> object:
    """A configuration whose kernel exchanges the operands."""
    return next(c for c in registry.legal(Shape(64, 512, 512)) if c.swap_ab and len(c.instances) == 1)


def test_operands_have_the_problems_names_whatever_the_kernel_calls_them() -> None:
    workload = source_workload(Shape(64, 512, 512), swapped())  # type: ignore[arg-type]
    case = workload.case(None)
    assert list(case.args) == ["a", "b", "c", "workspace", "counters"]
    assert case.args["a"].shape == (64, 512) and case.args["c"].shape == (64, 512)  # type: ignore[union-attr]
    assert case.constants == {"GEMM_M": 64, "GEMM_N": 512, "GEMM_K": 512}
    tensors = filled(workload)
    b = tensors["b"].float()
    wanted = tensors["a"].float() @ (b.t() if workload.meta["layout"][0] == "t" else b)
    assert torch.equal(workload.reference(tensors)["c"], wanted)  # type: ignore[misc]


@pytest.mark.parametrize("k", [64, 16384])
def test_exact_products_are_whole_and_in_range(k: int) -> None:
    workload = load(f"gemm-source:64,64,{k}")
    assert len(workload.exact) == 2
    for fills, values in zip(workload.exact, ({0.0, 1.0}, {-1.0, 0.0, 1.0}), strict=True):
        tensors = filled(workload, fills)
        assert set(tensors["a"].float().unique().tolist()) == values
        product = workload.reference(tensors)["c"]  # type: ignore[misc]
        assert torch.equal(product.half().float(), product) and product.abs().max() < 1024
        assert product.abs().max() > 4, "a product of zeros would check nothing"
        assert tensors["counters"].abs().max() == 0


def test_errors_beyond_the_library_s_are_told_from_its_own() -> None:
    workload = load("gemm-source:64,64,16384")
    tensors = filled(workload)
    wanted = workload.reference(tensors)["c"]  # type: ignore[misc]
    rms, largest = relative_errors(workload.peer(tensors)["c"], wanted)  # type: ignore[misc]
    assert 0 < rms < largest < 0.02
    one = wanted.half()
    one[3, 5] += 4 * largest * wanted.square().mean().sqrt()
    mine = relative_errors(wanted.half(), wanted)
    assert mine[0] <= RMS_FACTOR * rms and mine[1] <= LARGEST_FACTOR * largest
    assert relative_errors(one, wanted)[1] > LARGEST_FACTOR * largest
    coarse = (wanted / 8).half() * 8 + (torch.rand(64, 64) - 0.5) * 0.5
    assert relative_errors(coarse, wanted)[0] > RMS_FACTOR * rms


def test_scratch_is_no_traffic_and_checks_are_part_of_the_identity() -> None:
    workload = load("gemm-source:64,64,512")
    case = workload.case(None)
    assert not impossible(1.0, case, workload.meta) and impossible(1e-3, case, workload.meta)
    assert workload_digest(workload) != workload_digest(load("gemm-source:64,64,1024"))
    assert workload_digest(workload) == workload_digest(load("gemm-source:64x64x512"))
    kernel = workload.build(case, "sm_90a")
    assert not kernel.meta["overlap"]
    for target in ("gemm-source:64x64", "gemm-source:64,64,64/none_such"):
        with pytest.raises(WorkloadError):
            load(target)
