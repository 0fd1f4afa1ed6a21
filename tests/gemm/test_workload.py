"""HGEMM kernels as workloads: what is launched, and that its parameters are the cubin's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sassafras.api.multi_shape import EveryCase
from sassafras.core import (
    Buffer,
    Candidate,
    Case,
    Evaluation,
    Kernel,
    ToolMissing,
    Verdict,
    Workload,
    WorkloadError,
)
from sassafras.core.tensor_map import TensorMap
from sassafras.cuda.params import ParameterBlock, typed_parameters, values
from sassafras.evaluate.gpu.judge import KernelJudge
from sassafras.evaluate.gpu.protocol import kernel_facts, kernel_from_facts
from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.build.cubins import cached_path
from sassafras.gemm.configs import names
from sassafras.gemm.configs.fields import from_fields
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.workload import of_shapes, winner
from sassafras.sass import Cubin
from sassafras.targets import load

TARGETS = (
    "gemm:64x64x512/small_tn_m1n2s2/w2x1x4/c1",
    "gemm:256x512x512/fallback_nn_32x64_w2x2s4/c2",
    "gemm:64x128x16384/split_k_nn_64x64_s6q1/c8+ol",
    "gemm:64x1024x128/small_tn_swapped_m1n1s4/w2x2x1/c1+os",
    "gemm:1024x1024x512/persistent_tn_128x128_pp2s6b2c1x1/g4+o",
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_parameter_of_the_cubin_has_a_value_of_its_size(target: str) -> None:
    made = load(target)
    assert made.source == target
    case = made.case()
    try:
        kernel = made.build(case, "sm_90a")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    sent = kernel_from_facts(kernel_facts(kernel), kernel.cubin)  # as a worker gets it
    addresses = {name: 1 << 20 for name, a in case.args.items() if isinstance(a, Buffer)}
    maps = {name: bytes(range(128)) for name in sent.meta["tensor_maps"]}
    for name, facts in sent.meta["tensor_maps"].items():
        described = TensorMap.from_json(facts)
        assert described.why_illegal() is None and described.operand in addresses, name
    whole = replace(case, args={**case.args, **sent.meta["scalars"]})
    assert dict(typed_parameters(sent, whole)) == dict(kernel.parameters or ())
    sizes = tuple(parameter_sizes(Cubin.parse(kernel.cubin).entries[kernel.name]))
    block = ParameterBlock(values(sent, whole, addresses, 0, maps), sizes)
    assert block.parameters == len(sizes)
    assert bool(sent.meta["overlap"]) is ("+" in target)


def test_a_tensor_map_lies_at_a_multiple_of_64_bytes_and_arrives_whole() -> None:
    import ctypes

    encoded = bytes(range(128))
    block = ParameterBlock([("n", 7, "i32"), ("map", encoded, "tensormap"), ("p", 5, "*")], (4, 128, 8))
    pointers = (ctypes.c_void_p * 3).from_address(block.address)
    assert pointers[1] % 64 == 0
    assert ctypes.string_at(pointers[1], 128) == encoded
    assert block.raw(0)[:4] == b"\x07\0\0\0" and block.raw(2)[:1] == b"\x05"


def test_the_reference_is_the_product_of_what_the_layout_says() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 128)), rng.standard_normal((128, 256))
    for name, first, second in (
        ("fallback_nn_32x64_w2x2s4/c1", a, b),
        ("fallback_tn_64x64_w2x2s4a1/c1", a, b.T),
        ("small_tn_swapped_m1n1s4/w2x2x1/c1", b.T, a),
    ):
        made = load(f"gemm:64x256x128/{name}")
        tensors = {"a": torch.tensor(first.copy()), "b": torch.tensor(second.copy())}
        args = made.case().args
        for key, tensor in tensors.items():
            buffer = args[key]
            assert isinstance(buffer, Buffer) and buffer.shape == tuple(tensor.shape), (name, key)
        assert made.reference is not None
        np.testing.assert_allclose(made.reference(tensors)["c"].numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_without_a_configuration_it_is_the_tuned_one() -> None:
    chosen = load("gemm:512x512x64").meta["config"]
    assert from_fields(chosen) == winner(Shape(512, 512, 64))
    assert from_fields(chosen).why_illegal(Shape(512, 512, 64)) is None


def test_shapes_of_one_kernel_are_cases_each_with_its_launch(tmp_path: Path) -> None:
    """As one objective each is opened and judged as its own launch, around the same code."""
    named = {"64x128x16384": "split_k_nn_64x64_s6q1/c8+ol", "128x64x8192": "split_k_nn_64x64_s6q1/c4"}
    target = "gemm:" + ",".join(map("/".join, named.items()))
    assert load(target).source == target
    problems = [(Shape.parse(shape), names.parse(name)) for shape, name in named.items()]
    cached_path(problems[0][1].instance, tmp_path).write_bytes(b"\x7fELF")
    made = of_shapes(problems, tmp_path)
    seen: list[tuple[str, bytes, str, dict[str, Any]]] = []

    class Told:
        """A device that is asked."""

        name, arch, modelled = "told", "sm_90a", False

        def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
            self.case = case
            self.note(baseline)

        def note(self, kernel: Kernel) -> None:
            seen.append((self.case.name, kernel.cubin, kernel.meta["tensor_maps"], kernel.meta["scalars"]))

        def run(self, candidate: Candidate) -> Evaluation:
            self.note(candidate.kernel)
            return Evaluation(candidate.digest, Verdict.CORRECT, 1.0, 2.0, 2.0)

    device = EveryCase(Told, dict.fromkeys(named, 1))
    baseline = made.build(made.case(), "sm_90a")
    device.open(made, made.case(), baseline)
    outcome = device.run(Candidate(baseline.with_cubin(b"\x7fELF2")))
    assert isinstance(outcome, Evaluation) and outcome.speedup == 2.0
    own = {c.name: made.build(c, "sm_90a").meta for c in made.cases}
    one, other = (made.build(c, "sm_90a") for c in made.cases)
    assert one.meta["tensor_maps"] != other.meta["tensor_maps"] and one.cluster != other.cluster
    assert [(name, code) for name, code, *_ in seen] == [
        (shape, code) for code in (b"\x7fELF", b"\x7fELF2") for shape in named
    ]
    judge = KernelJudge.__new__(KernelJudge)
    judge.gpu = SimpleNamespace(capability=(9, 0))  # type: ignore[assignment]
    assert judge._same_variant(made, made.case()) == ["64x128x16384"], "none is launched as another one is"
    for case, _, maps, scalars in seen:
        assert (maps, scalars) == (own[case]["tensor_maps"], own[case]["scalars"])


@pytest.mark.parametrize(
    "target",
    (
        "gemm:64x64",
        "gemm:64x64x64,64x64",
        "gemm:64x64x64,64x64x64",
        "gemm:512x512x64/small_tn_m1n2s2/w2x1x4/c1,512x512x512/split_k_nn_64x64_s6q1/c1",
        "gemm:64x64x64/none",
        "gemm:64x64x64/split_k_tn_64x32_s8q1/c8",
        "gemm:",
    ),
)
def test_what_is_no_shape_or_cannot_run_it_is_refused_with_a_reason(target: str) -> None:
    with pytest.raises(WorkloadError):
        load(target)


@pytest.mark.parametrize(
    "config",
    ("split_k_tn_64x32_s8q1/c1", "persistent_tn_128x128_pp2s6b2c1x1/g1", "small_tn_m1n2s2/w2x1x4/c1"),
)
def test_control_codes_can_be_made_anew_where_a_barrier_itself_waits(config: str) -> None:
    """ptxas gives MEMBAR (behind another) and NOP (behind a fence) waits in these kernels, and what R2UR
    finds out with a predicate is a fence to the validator."""
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    try:
        kernel = load(f"gemm:512x512x512/{config}").build(None, "sm_90a")  # type: ignore[arg-type]
    except ToolMissing as missing:
        pytest.skip(str(missing))
    space = ScheduleSpace(kernel, control="regenerate")
    validator = Validator(kernel.cubin, kernel.name)
    assert validator.check(space.emit(space.tightened(space.start()))).ok
    state, rng = space.start(), np.random.default_rng(1)
    for _ in range(20):
        move = space.sample(state, rng)
        assert move is not None
        state = space.apply(state, move)
        assert validator.check(space.emit(state)).ok
