"""What a Triton candidate's process says of its launch: forged in that very process, and not believed."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from sassafras.core import Buffer, Candidate, Case, Evaluation, Kernel, Verdict, WorkloadError
from sassafras.evaluate import Confinement, KernelEvaluator, Source
from sassafras.evaluate.gpu.protocol import LAUNCH_FACTS
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.evaluate.source import build
from sassafras.evaluate.source.launching import Forged, launched, ptxas_flags
from sassafras.targets import load

needs_fences = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
N = 1_000_000
CASE = Case("1M", (3907, 1, 1), {"y": Buffer("fp32", (N,), "out"), "x": Buffer("fp32", (N,)), "n": N})
TRITON = """
import triton
import triton.language as tl

@triton.jit
def affine(y, x, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o, mask=o < n) + 1, mask=o < n)
"""
#: replaces what writes the answer: whatever is written, says all of this too
FORGES = """
import json
honest = json.dumps
def dumps(said, **more):
    if isinstance(said, dict) and "parameters" in said:
        said = {**said, "meta": LIES, "launch": LIES, "threads": 32, "cluster": [8, 1, 1], "target": "sm_80",
                "name": "other", "hidden_args": 0, "ptxas_flags": ["-G"], **LIES, **MORE}
    return honest(said, **more)
json.dumps = dumps
LIES = {"overlap": True, "grid": [1, 1, 1], "scalars": {"n": 1}, "tensor_maps": {"y": {"operand": "x"}}}
"""
FACTS = ("name", "arch", "threads", "shared_bytes", "cluster", "hidden_args", "parameters")
PATIENT = Confinement(wall_s=250.0, cpu_s=250)


def _built(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sassafras.evaluate.source.building.scan_python", lambda text: None)
    source = Source("triton", text, constants={"BLOCK": 1024}, grid=(977, 1, 1))
    return build(source, CASE, "sm_90a", confinement=PATIENT)


@needs_fences
def test_forged_launch_facts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _built(TRITON, monkeypatch)
    forged = _built(FORGES + "MORE = {}\n" + TRITON, monkeypatch)
    assert forged.verdict is None, forged.detail
    assert forged.kernel.meta["grid"] == [977, 1, 1]
    assert {key for key in LAUNCH_FACTS if key in forged.kernel.meta} == {"grid"}
    for name in (
        "name",
        "arch",
        "threads",
        "shared_bytes",
        "cluster",
        "hidden_args",
        "scratch_bytes",
        "parameters",
    ):
        assert getattr(forged.kernel, name) == getattr(honest.kernel, name), name


@needs_fences
def test_absurd_wishes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    more = '{"parameters": [["y", "*fp32"], ["x", "*fp32"], ["m", "i32"]]}'
    built = _built(f"{FORGES}MORE = {more}\n{TRITON}", monkeypatch)
    assert built.verdict is Verdict.CHEATED
    assert "'m' is no argument of the case" in built.detail


@needs_fences
@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.mkdir('kernel.ptx'); os.mkdir('kernel.json'); os._exit(0)\n",
        "import os\nopen('kernel.ptx', 'w').write('x'); open('kernel.json', 'w').write('[' * 100000)\n"
        "os._exit(0)\n",
        "import os\nopen('kernel.ptx', 'w').write('.target sm_80\\n'); open('kernel.json', 'w').write('{}')\n"
        "os._exit(0)\n",
    ],
    ids=["folders", "a deep answer", "another GPU"],
)
def test_a_builder_that_leaves_rubbish_loses_itself_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = _built(text, monkeypatch)
    assert built.verdict in (Verdict.CHEATED, Verdict.COMPILE_ERROR)
    assert built.kernel is None


@functools.cache
def _softmax() -> tuple[Kernel, Case]:
    workload = load("suite:softmax")
    return workload.build(workload.cases[0], "sm_90a"), workload.cases[0]


def test_launch_facts_are_the_cubins_and_the_cases() -> None:
    kernel, case = _softmax()
    said = {"parameters": kernel.parameters, "shared_bytes": kernel.shared_bytes, "scratch_bytes": 0}
    made = launched(kernel.cubin, said, Source("triton", ""), case, "sm_90a", ptx=b"", ptxas="x")
    for name in FACTS:
        assert getattr(made, name) == getattr(kernel, name), name


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": [("y_ptr", "*"), ("y_ptr", "*"), ("n_cols", "i32")]},
        {"parameters": [("y_ptr", "*"), ("x_ptr", "*")]},  # the size of n_cols is no pointer's
        {"parameters": 7},
        {"shared_bytes": 1 << 40},
        {"scratch_bytes": 1 << 40},
        {"shared_bytes": -1},
        {"shared_bytes": True},
        {"scratch_bytes": 2.5},
    ],
)
def test_what_does_not_fit_the_cubin_is_forged(change: dict[str, Any]) -> None:
    kernel, case = _softmax()
    said = {"parameters": kernel.parameters, "shared_bytes": 0, **change}
    with pytest.raises((Forged, TypeError, WorkloadError)):
        launched(kernel.cubin, said, Source("triton", ""), case, "sm_90a", ptx=b"", ptxas="x")


def test_flags_of_ptxas_are_the_owners() -> None:
    assert ptxas_flags({"enable_fp_fusion": False, "ptx_options": "-O1"})[-2:] == ["--fmad=false", "-O1"]
    with pytest.raises(Forged, match="-o"):
        ptxas_flags({"ptx_options": "-o /tmp/x"})


class _Device:
    name, arch, modelled = "none", "sm_90a", False

    def run(self, candidate: Candidate) -> Evaluation:
        return Evaluation(candidate.digest, Verdict.CORRECT, 1.0, 2.0, 2.0)


class _Yes:
    ok, violations = True, ()


@pytest.mark.parametrize("fact", [{"overlap": True}, {"grid": [1, 1, 1]}, {"tensor_maps": {"x": {}}}])
def test_a_schedule_cannot_change_its_launch(fact: dict[str, Any]) -> None:
    """An overlap with the launch before is worth more than most schedules."""
    baseline = Kernel(b"baseline", "k", "sm_90a", 128)
    judge = KernelEvaluator(_Device(), lambda *_: _Yes(), baseline)  # type: ignore[arg-type]
    outcome = judge.evaluate(Candidate(replace(baseline, cubin=b"schedule", meta=fact), {}))
    assert outcome.verdict is Verdict.ILLEGAL_SCHEDULE
    # the same code with another launch is another candidate
    assert judge.evaluate(Candidate(replace(baseline, cubin=b"schedule"), {})).verdict is Verdict.CORRECT
