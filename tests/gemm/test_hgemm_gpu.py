"""The lean kernels and the benchmark on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sassafras.gemm.bench.context import Context
from sassafras.gemm.configs import backward, registry
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.problem.shape import BACKWARD, LAYOUTS, Product, Shape

if TYPE_CHECKING:
    from sassafras.gemm.bench.contestants import Contestants
    from sassafras.gemm.bench.operands import Operands

pytestmark = pytest.mark.gpu
#: extents that are no multiple of a tile, and the smallest that are allowed; two have rows of any length
BOUNDARY = [
    *(Shape(1, 8, 8), Shape(1, 64, 2048), Shape(7, 24, 40), Shape(16, 8, 64), Shape(17, 72, 136)),
    *(Shape(100, 104, 1000), Shape(33, 520, 96), Shape(64, 64, 64), Shape(65, 200, 4104)),
    *(Shape(300, 88, 512), Shape(7, 33, 61), Shape(101, 150, 1006)),
]


@pytest.fixture(scope="module")
def tools() -> Contestants:
    pytest.importorskip("torch")
    from sassafras.gemm.bench.contestants import Contestants

    return Contestants()


def wrong_launch(tools: Contestants, config: Config, operands: Operands) -> str:
    """What is wrong with two launches, which must agree bit for bit; "" when nothing is."""
    import torch

    enqueue = tools.ours(config, operands)
    if why := operands.check(enqueue).why:
        return why
    first = operands.c.clone()
    why = operands.check(enqueue).why
    same = torch.equal(first.view(torch.int16), operands.c.view(torch.int16))
    return why or ("" if same else "two launches differ")


def some_of_each(shape: Shape, dtype: str) -> list[Config]:
    """Four legal configurations of each instance: nn and tn, and the layouts of weights' gradients."""
    every = (*registry.configurations(), *backward.configurations())
    rng, legal = np.random.default_rng(1), dict[Any, list[Config]]()
    for config in every if dtype == "fp16" else registry.other_configurations():
        if config.dtype == dtype and config.why_illegal(shape) is None:
            legal.setdefault(config.instance, []).append(config)
    chosen = [members[i] for members in legal.values() for i in rng.permutation(len(members))[:4]]
    assert len(chosen) > (15 if shape.n % 8 or shape.k % 8 else 300)
    return chosen


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", BOUNDARY, ids=str)
def test_every_instance_is_right(tools: Contestants, shape: Shape, dtype: str) -> None:
    """Against FP64."""
    from sassafras.gemm.bench.operands import Operands

    operands = Operands(shape, 1, (*LAYOUTS, *BACKWARD), dtype=dtype)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    chosen = some_of_each(shape, dtype)
    assert {c.name: why for c in chosen if (why := wrong_launch(tools, c, operands))} == {}


def test_a_wrong_launch_is_noticed(tools: Contestants) -> None:
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


def test_launches_that_overlap_stay_right(tools: Contestants) -> None:
    from sassafras.gemm.bench.operands import Operands

    operands = Operands(Shape(128, 128, 512), 0)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    modes = [mode for config in registry.legal(operands.shape)[::40] for mode in config.in_modes()]
    overlapping = [mode for mode in modes if mode.launch(operands.shape).overlap]
    assert len(overlapping) > 10
    for config in overlapping:
        enqueue = tools.ours(config, operands)
        assert operands.check(lambda call=enqueue: [call() for _ in range(20)]).why == "", config.name


def test_benchmark_of_two_shapes(tmp_path: Path) -> None:
    from sassafras.gemm.bench.options import Options
    from sassafras.gemm.bench.runs import RunSettings, benchmark

    shapes = (Shape(64, 64, 64), Shape(128, 64, 256))
    settings = RunSettings(tmp_path, Options(configs=24, seconds=0.02), progress=0)
    path, summary = benchmark(shapes, settings, processes=2)
    found = json.loads(path.read_text())
    assert summary["measured"] == summary["with_ours"] == 2 and summary["failed"] == 0
    for row in found["rows"]:
        assert row["processes"] == 2 and 0.9 < row["null"] < 1.1 and row["speedup_low"] <= row["speedup"]
        for name in ("ours", "lt_autotune", "lt_heuristic", "cublas", "torch"):
            assert 0.5 < row[name] < 100
    again, _ = benchmark(shapes, settings, processes=2)  # resumes: nothing is left to do
    assert json.loads(again.read_text())["rows"] == found["rows"]


def test_an_error_on_one_set_of_operands_shows(tools: Contestants) -> None:
    here = Context(tools, Product(Shape(1000, 512, 256), "tn", "bf16"), most=3, around=False)
    calls = {
        key: here.calls(key) for key in ("torch", "sassafras", here.fastest(tools.lt.candidates(here.lt)))
    }

    def spoilt() -> None:
        calls["torch"][1]()
        here.sets[1].c[-1].mul_(1.5)

    calls["spoilt"] = [calls["torch"][0], spoilt, calls["torch"][2]]
    torchs, ours, library, found = here.errors(calls).values()
    assert (ours <= 1.1 * torchs).all() and (library <= 10 * torchs).all()
    assert found[0] == torchs[0] and found[1] > 2 * torchs[1] and found[2] == torchs[2]
    assert here.right("sassafras") and not here.wrong
    here.close()
