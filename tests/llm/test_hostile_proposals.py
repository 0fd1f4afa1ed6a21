"""Planted hostile proposals: each goes the way of every proposal, and is contained with the right verdict.

What can only be judged on a GPU (a hang, a result kept from launch to launch) is the cheats' benchmark's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sassafras.core import Verdict
from sassafras.evaluate.sandbox import Confinement
from sassafras.evaluate.sandbox.confine import landlock_version

from .hostile import CUDA, TRITON, WHOLE_CUDA, WHOLE_TRITON, Hostile
from .test_source_space import fill, space

pytestmark = [
    pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc"),
]


#: an honest build needs a second or two; a slow machine only makes a hostile one end sooner
TIGHT = Confinement(wall_s=8.0, cpu_s=8, resident_bytes=2 << 30)


@pytest.fixture(scope="module")
def cuda():
    return space("bias_gelu")


@pytest.mark.parametrize("planted", CUDA, ids=lambda planted: planted.name)
def test_a_hostile_cuda_hole_is_contained(cuda, planted: Hostile) -> None:
    cuda.judge.confinement = TIGHT if Verdict.TIMED_OUT in planted.verdicts else Confinement()
    outcome = cuda.evaluate(cuda.candidate(fill(cuda, body=planted.text)))
    assert outcome.verdict in planted.verdicts, (outcome.verdict, outcome.detail)
    assert outcome.detail
    assert "root:" not in outcome.detail  # of /etc/passwd


@pytest.mark.parametrize("planted", WHOLE_CUDA, ids=lambda planted: planted.name)
def test_a_hostile_whole_cuda_source_is_contained(planted: Hostile) -> None:
    made = space("bias_gelu", whole=True)
    text = made.text.replace("// y = gelu", planted.text + "\n// y = gelu")
    outcome = made.evaluate(made.candidate(made.state({"source": text}, made.start(), "test", "")))
    assert outcome.verdict in planted.verdicts, (outcome.verdict, outcome.detail)


@pytest.fixture(scope="module")
def softmax():
    return space("softmax")


@pytest.mark.parametrize("planted", TRITON, ids=lambda planted: planted.name)
def test_a_hostile_triton_hole_is_contained(softmax, planted: Hostile) -> None:
    made = softmax
    outcome = made.evaluate(made.candidate(fill(made, row=planted.text)))
    assert outcome.verdict in planted.verdicts, (outcome.verdict, outcome.detail)
    assert not Path("/tmp/sassafras-was-here").exists()


@pytest.mark.parametrize("planted", WHOLE_TRITON, ids=lambda planted: planted.name)
def test_a_hostile_triton_module_is_contained(planted: Hostile) -> None:
    made = space("softmax", whole=True)
    if Verdict.TIMED_OUT in planted.verdicts:
        made.judge.confinement = TIGHT
    text = made.text.replace("@triton.jit", planted.text + "\n\n@triton.jit", 1)
    outcome = made.evaluate(made.candidate(made.state({"source": text}, made.start(), "test", "")))
    assert outcome.verdict in planted.verdicts, (outcome.verdict, outcome.detail)
    assert not Path("/tmp/sassafras-was-here").exists()


def test_verdicts_that_are_expected_are_never_ok() -> None:
    for planted in (*CUDA, *WHOLE_CUDA, *TRITON, *WHOLE_TRITON):
        assert Verdict.CORRECT not in planted.verdicts
