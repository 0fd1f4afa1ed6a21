"""Rewritten kernels on a GPU: honest ones pass by results, hostile ones are caught, evolve runs whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from sassafras.core import Verdict

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "evolve"
LOOP = (
    "for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {{\n"
    "    float v = x[i] + bias[i % cols];\n"
    "    float t = tanhf(0.7978845608f * (v + 0.044715f * v * v * v));\n    {last}\n}}"
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def made():
    from sassafras.cuda.environment import available
    from sassafras.evaluate.gpu import CudaDevice

    if not available()[0]:
        pytest.skip("no GPU")
    from sassafras.evaluate.source import SourceEvaluator
    from sassafras.llm.source_space import SourceSpace
    from sassafras.targets import load

    workload = load(str(EXAMPLES / "bias_gelu.py"))
    case = workload.case()
    with CudaDevice(bitwise=False) as device:
        baseline = workload.build(case, device.arch)
        device.open(workload, case, baseline)
        judge = SourceEvaluator(device, workload, case, baseline)
        yield SourceSpace(workload, case, baseline, judge)


def verdict(made, body: str) -> Verdict | None:
    state = made.state({"body": body}, made.start(), "test", "")
    return made.evaluate(made.candidate(state)).verdict


def test_other_arithmetic_within_the_tolerance_is_correct(made) -> None:
    assert verdict(made, LOOP.format(last="y[i] = (0.5f * v + 0.5f * v * t) * gate[i];")) is Verdict.CORRECT


def test_a_wrong_result_is_wrong(made) -> None:
    assert verdict(made, LOOP.format(last="y[i] = 0.5f * v * gate[i];")) is Verdict.WRONG_RESULT
    assert verdict(made, "// nothing is written") is Verdict.WRONG_RESULT


def test_modified_inputs_and_stray_writes_are_found(made) -> None:
    right = "y[i] = 0.5f * v * (1.0f + t) * gate[i];"
    inputs = LOOP.format(last=right + " if (i == 0) ((float *)x)[1] = 0.0f;")
    stray = LOOP.format(last=right + " if (i == 0) y[count] = 0.0f;")
    for body in (inputs, stray):
        assert verdict(made, body) in (Verdict.CHEATED, Verdict.WRONG_RESULT, Verdict.CRASHED)


def test_an_endless_loop_is_stopped_and_the_next_candidate_is_judged(made) -> None:
    endless = "volatile float *p = y; while (p[0] == p[0] || p[0] != p[0]) p[1] = 0.0f;"
    assert verdict(made, endless) is Verdict.TIMED_OUT
    again = LOOP.format(last="y[i] = 0.5f * (v * (1.0f + t)) * gate[i];")
    assert verdict(made, again) is Verdict.CORRECT


@pytest.mark.slow
def test_evolve_by_chance_ends_with_a_measured_answer(tmp_path: Path) -> None:
    from sassafras import evolve
    from sassafras.cuda.environment import available

    if not available()[0]:
        pytest.skip("no GPU")
    result = evolve(
        str(EXAMPLES / "rmsnorm.py"), device="cuda", budget="8e", store=tmp_path / "s.sqlite", out=tmp_path
    )
    assert not result.modelled and result.speedup is not None and result.speedup >= 1.0
    assert result.failed_after_validation == 0


@pytest.fixture(scope="module")
def product():
    """Sources of a small product on the GPU."""
    from sassafras.cuda.environment import available
    from sassafras.evaluate.gpu import CudaDevice

    if not available()[0]:
        pytest.skip("no GPU")
    from sassafras.evaluate.source import SourceEvaluator
    from sassafras.llm.gemm_source import GemmSourceSpace
    from sassafras.targets import load

    workload = load("gemm-source:256x512x1024")
    case = workload.case()
    with CudaDevice(bitwise=False) as device:
        baseline = workload.build(case, device.arch)
        device.open(workload, case, baseline)
        judge = SourceEvaluator(device, workload, case, baseline)
        yield GemmSourceSpace(workload, case, baseline, judge, whole=True)


def product_outcome(product, *changes: tuple[str, str]):
    """What becomes of the seed with its text changed."""
    seed = product.seed()
    text = product.show(seed)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return product.evaluate(product.candidate(product.read(text, seed) if changes else seed))


def test_the_seed_of_a_product_is_correct_and_its_errors_are_noted(product) -> None:
    outcome = product_outcome(product)
    assert outcome.verdict is Verdict.CORRECT, outcome.detail
    rms, largest = outcome.facts["errors"]
    assert 0 < rms < largest < 0.01


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("tile < K_TILES; ++tile) {\n        asm", "tile < K_TILES - 1; ++tile) {\n        asm", ""),
        ("from[2 * p + 1])", "from[2 * p + 1] + 1e-3f)", "exact products"),
        ("from[2 * p], from", "rintf(from[2 * p] * 32) / 32, from", "library"),
    ],
)
def test_products_that_are_a_little_wrong_are_wrong(product, old: str, new: str, part: str) -> None:
    outcome = product_outcome(product, (old, new))
    assert outcome.verdict is Verdict.WRONG_RESULT and part in outcome.detail


def test_counters_that_are_not_left_at_zero_are_found(product) -> None:
    once = '"c"]}', '"c", "counters"]}'
    outcome = product_outcome(
        product,
        once,
        ("half *__restrict__ c)", "half *__restrict__ c, int *counters)"),
        ("const int thread =", "if (counters[0]) return;\n    const int thread ="),
        ("float *const tile = (float *)shared;", "float *const tile = (float *)shared; counters[0] = 1;"),
    )
    assert outcome.verdict in (Verdict.WRONG_RESULT, Verdict.CHEATED)


@pytest.mark.alone  # what a profiler does to other processes of its GPU is not known
def test_ncu_measures_what_it_can(product) -> None:
    from sassafras.evaluate.gpu.profile import profile

    kernels = [product.candidate(product.seed()).kernel, product.baseline]
    found = profile(product.workload, product.case, kernels)
    assert len(found) == 2
    for metrics in found:
        assert "unavailable" in metrics or (metrics["duration_ns"] > 0 and metrics["registers"] > 0)
