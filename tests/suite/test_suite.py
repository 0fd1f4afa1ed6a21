"""Every suite kernel compiles; tails select the headline's variant and odd sizes another; numerics hold."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sassafras import suite
from sassafras.core import Buffer
from sassafras.targets import load
from sassafras.targets.load import variants


def test_the_names() -> None:
    assert len(suite.paper_six()) == 6
    assert set(suite.paper_six()) < set(suite.names())
    assert len(set(suite.names())) == len(suite.names()) >= 14


@pytest.mark.parametrize("name", suite.names())
def test_variants_are_as_documented(name: str) -> None:
    workload = load(f"suite:{name}")
    groups = variants(workload, "sm_90a")
    kernel, same = groups[0]
    shared = {case.name for case in same}
    assert kernel.hidden_args == 2 and kernel.scratch_bytes == 0
    assert workload.reference is not None
    assert set(workload.meta["tails"]) <= shared
    assert workload.meta["tails"], "no case with masked tails"
    assert not set(workload.meta["odd"]) & shared
    assert {*workload.meta["tails"], *workload.meta["odd"]} <= {case.name for case in workload.cases}
    for case in workload.cases:
        assert any(isinstance(arg, Buffer) and arg.role != "in" for arg in case.args.values())
        assert set(case.args) == {name for name, _ in kernel.parameters or ()}


@pytest.mark.parametrize(
    "name", ["gemm_leakyrelu", "batched_gemm", "feed_forward", "attention", "attention_causal"]
)
def test_matrix_kernels_use_wgmma_and_state_their_loop(name: str) -> None:
    workload = suite.load(name)
    assert all(case.loop_trips for case in workload.cases)
    assert "wgmma.mma_async" in workload.build.ptx(workload.cases[0], "sm_90a")  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_every_kernel_agrees_with_its_reference_in_tritons_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("numerics.py"))],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") >= 3 * len(suite.names()) - 3
