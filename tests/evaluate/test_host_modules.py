"""Classes and packages as Python candidates: built in their process, timed beside a control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from sassafras.core import Buffer, Case, DeviceError, Tolerance, Verdict, Workload
from sassafras.evaluate.host import HostEvaluator, HostSource, session
from sassafras.evaluate.host.session import lay_out
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.evaluate.scan import scan_python

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
N = 192
CASE = Case(
    "192", (1, 1, 1), {"x": Buffer("fp32", (N, N)), "scale": 2, "y": Buffer("fp32", (N, N), "out")}
)  # fmt: skip
MODEL = """
import torch

class Layer(torch.nn.Module):
    def __init__(self, features, repeats):
        super().__init__()
        assert isinstance(repeats, tuple)
        self.weight = torch.nn.Parameter(2 * torch.rand(features, features) / features)
        self.repeats = repeats[0]

    def forward(self, x, scale):
        for _ in range(self.repeats):
            x = x @ self.weight
        return x * scale
"""
LAYER = HostSource(MODEL, "Layer", "position", (N, (60,)), seed=11, builds=True)


@cache
def _all_layers() -> torch.Tensor:
    """The product of the 60 equal matrices: a reference is asked for a hundred times."""
    torch.manual_seed(11)
    return torch.linalg.matrix_power((2 * torch.rand(N, N) / N).double(), 60)


def _reference(tensors: dict[str, Any]) -> dict[str, Any]:
    return {"y": tensors["x"].double() @ _all_layers() * tensors["scale"]}


def _draw(seed: int) -> dict[str, Any]:
    return {"x": torch.rand(N, N, generator=torch.Generator().manual_seed(seed)).T + 0.5}


WORKLOAD = Workload("layer", (CASE,), lambda *_: None, _reference, Tolerance(1e-4, 1e-5))  # type: ignore[arg-type, return-value]


@pytest.fixture(scope="module")
def judge() -> Iterator[HostEvaluator]:
    with HostEvaluator(WORKLOAD, CASE, LAYER, rounds=3, call_s=30.0, draw=_draw, control=True) as made:
        yield made


def _body(lines: str) -> str:
    """The layer with other lines ahead of its forward's loop."""
    return MODEL.replace("        for _ in", f"        {lines}\n        for _ in")


def test_a_module_has_the_baselines_weights_and_a_control_beside_it(judge: HostEvaluator) -> None:
    outcome = judge.evaluate(LAYER)
    assert outcome.verdict is Verdict.CORRECT, outcome.detail
    assert outcome.null is not None and outcome.null_interval is not None and outcome.speedup is not None
    assert 0.2 < outcome.null < 5 and 0.2 < outcome.speedup < 5
    absolute, relative = outcome.facts["error"]
    assert 0 < absolute < 1e-4 and 0 < relative < 1e-4  # FP32 beside FP64


@pytest.mark.parametrize(
    ("text", "verdict", "words", "failed"),
    [
        (_body("scale = 1.01 * scale"), Verdict.WRONG_RESULT, "elements of y differ", "values"),
        (MODEL.replace("* scale", "[:1] * scale"), Verdict.WRONG_RESULT, "shape (1, 192), not", "shape"),
        (_body("return None"), Verdict.WRONG_RESULT, "it returned None for y, not a tensor", "shape"),
        (_body("return x, x"), Verdict.WRONG_RESULT, "it returned 2 outputs, not 1", "shape"),
        (MODEL.replace("* scale", ".double()"), Verdict.WRONG_RESULT, "float64, not", "dtype"),
        (_body("x.zero_()"), Verdict.WRONG_RESULT, "it modified its input x", "input"),
        (
            _body("known = self.__dict__.setdefault('known', {}); key = tuple(x[0].tolist())")
            .replace("        for _ in", "        for _ in () if key in known else")
            .replace("return x * scale", "return known.setdefault(key, x * scale)"),
            Verdict.CHEATED,
            "repeated inputs",
            None,
        ),
        (
            "import subprocess\nsubprocess.Popen(['sleep', '60'])\n" + MODEL,
            Verdict.CHEATED,
            "leaves a process behind",
            None,
        ),
        (
            "import subprocess\n" + _body("subprocess.run(['true'])"),
            Verdict.CHEATED,
            "not allowed",
            None,
        ),
        (MODEL.replace("class Layer", "class Other"), Verdict.COMPILE_ERROR, "no attribute 'Layer'", None),
    ],
    ids=[
        "values",
        "shape",
        "nothing",
        "two",
        "dtype",
        "input",
        "remembers",
        "process left",
        "process started",
        "no class",
    ],
)
def test_modules_get_their_verdicts(
    judge: HostEvaluator, text: str, verdict: Verdict, words: str, failed: str | None
) -> None:
    outcome = judge.evaluate(replace(LAYER, text=text))
    assert outcome.verdict is verdict, outcome.detail
    assert words in outcome.detail
    assert outcome.facts.get("failed") == failed


def test_a_fence_that_was_taken_off_is_noticed_from_outside(judge: HostEvaluator) -> None:
    """The loader's fence is raised in the candidate's own process, which may have replaced it."""
    text = "import subprocess, confine\n"
    text += "confine.restrict_calls.__code__ = (lambda *a, **k: None).__code__\n"
    outcome = judge.evaluate(replace(LAYER, text=text + _body("subprocess.Popen(['sleep', '60'])")))
    assert outcome.verdict is Verdict.CHEATED, outcome.detail
    assert "leaves a process behind" in outcome.detail


def test_outputs_can_be_the_callers_and_files_a_package() -> None:
    files = {"parts/work.py": "def work(x, scale, y):\n    y.copy_(x @ x * scale)\n"}
    text = "from .parts.work import work\n\ndef run(x, scale, y):\n    work(x, scale, y)\n"
    source = HostSource(text, "run", "destination", path="main.py", files=files)
    plain = HostSource("def run(x, scale):\n    return x @ x * scale\n", "run", "position")
    workload = replace(WORKLOAD, reference=lambda t: {"y": t["x"].double() @ t["x"].double() * t["scale"]})
    with HostEvaluator(workload, CASE, plain, rounds=6, call_s=30.0, draw=_draw) as judge:
        outcome = judge.evaluate(source)
        assert outcome.verdict is Verdict.CORRECT, outcome.detail
        assert outcome.null is None  # no control was asked for
        empty = judge.evaluate(replace(source, files={"parts/work.py": "def work(x, scale, y):\n    pass\n"}))
    assert empty.verdict is Verdict.WRONG_RESULT
    assert np.isnan(empty.facts["error"]).all()


def test_large_tensors_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sets instead of five, and one former result: a case may hold gigabytes."""
    buffers = {"x": Buffer("fp32", (1 << 13, 1 << 13))}
    slots, size = lay_out(buffers, {"y": buffers["x"]})
    assert len(slots) == 2 and (1 << 30) < size < (1 << 30) + (1 << 16)
    monkeypatch.setattr(session, "LARGE", N * N * 8)
    with HostEvaluator(WORKLOAD, CASE, LAYER, rounds=2, call_s=30.0, draw=_draw) as judge:
        assert len(judge.task.slots) == 2
        stale = _body("known = self.__dict__.setdefault('known', {})").replace(
            "return x * scale", "return known.setdefault(given.data_ptr(), x * scale)"
        )
        stale = stale.replace("known = self", "given = x; known = self")
        assert judge.evaluate(LAYER).verdict is Verdict.CORRECT
        outcome = judge.evaluate(replace(LAYER, text=stale))
    assert outcome.verdict is Verdict.CHEATED and "earlier inputs" in outcome.detail


def test_what_is_drawn_has_the_cases_shape() -> None:
    other = HostEvaluator(WORKLOAD, CASE, LAYER, draw=lambda seed: {"x": torch.rand(3)})
    with pytest.raises(DeviceError, match=r"input x is \(3,\) torch.float32 in one draw"):
        other.task.inputs_of(1, 1)


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("time.perf_counter = None", "patches time.perf_counter"),
        ("torch.cuda.synchronize = None", "patches torch.cuda.synchronize"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", ""),
        ("self.x = torch.matmul(a, b)", ""),
        ("import os, torch.utils.cpp_extension", ""),
    ],
)
def test_only_patches_are_refused_by_a_modules_text(line: str, refused: str) -> None:
    found = scan_python(line, "module")
    assert (found.reason if found else "") == refused
