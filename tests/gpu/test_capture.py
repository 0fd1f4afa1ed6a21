"""Capture, tuning of all shapes, deployment and explanation on a real GPU, on ``examples/serve_demo.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sassafras
from sassafras.api.optimize_captured import optimize_captured
from sassafras.core import Candidate, Verdict
from sassafras.evaluate.gpu import CudaDevice
from sassafras.frontend.captured.files import read
from sassafras.frontend.captured.workloads import workload

pytestmark = pytest.mark.gpu
DEMO = Path(__file__).parents[2] / "examples" / "serve_demo.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "TRITON_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "SASSAFRAS_STORE": str(folder / "store.sqlite"),
    }  # fmt: skip
    command = [sys.executable, "-m", "sassafras", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def demo(text: str) -> dict[str, Any]:
    line = next(line for line in text.splitlines() if line.startswith('{"steps"'))
    found: dict[str, Any] = json.loads(line)
    assert found["worst_error"] < 0.01
    return found


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    program = [sys.executable, str(DEMO), "--steps", "80", "--rows", "4096"]
    demo(run(folder, "capture", "-o", str(folder / "captured"), "--", *program).stdout)
    return folder


def test_what_is_captured_runs_as_it_ran(captured: Path) -> None:
    found = read(captured / "captured")
    launched = [v for v in found.variants if v.count]
    assert {v.name for v in launched} == {"gather_kernel", "rmsnorm_kernel", "swiglu_kernel"}
    assert found.timed and found.gpu and not found.problems
    for name in ("gather_kernel", "rmsnorm_kernel", "swiglu_kernel"):  # the autotuner may choose twice
        assert sum(v.count for v in launched if v.name == name) == 82
    for variant in launched:
        assert all(s.timed for s in variant.shapes if s.count > 1)
        made = workload(found, variant)
        with CudaDevice() as device:
            kernel = made.build(made.case(), device.arch)
            device.open(made, made.case(), kernel)
            outcome = device.run(Candidate(kernel))
            assert outcome.verdict is Verdict.CORRECT, (variant.name, outcome.detail)


@pytest.mark.slow
def test_tuned_on_all_shapes_and_deployed(captured: Path) -> None:
    report = optimize_captured(
        captured / "captured", device="cuda", budget="2s", store=captured / "store.sqlite", runner_ups=1
    )
    assert not report.modelled and report.timed
    tried = [row for row in report.rows if row.ratio is not None]
    assert {row.function.rpartition(".")[2] for row in tried} == {
        "gather_kernel", "rmsnorm_kernel", "swiglu_kernel",
    }, [row.detail for row in report.rows]  # fmt: skip
    total, low, high = report.expected
    assert low <= total <= high and "expected change" in report.conclusion()
    status = captured / "status"
    program = [sys.executable, str(DEMO), "--steps", "20", "--rows", "4096"]
    demo(run(captured, "run", "--status", str(status), "--", *program).stdout)
    improved = {row.label.rpartition("-")[0] for row in tried if row.improved}
    rows = [json.loads(line) for path in status.glob("*.jsonl") for line in path.read_text().splitlines()]
    tuned = {row["name"] for row in rows if row["event"] == "loaded" and row["loaded"] != row["original"]}
    assert improved <= tuned | {row.label.rpartition("-")[0] for row in tried if row.runner_up}


@pytest.mark.slow
@pytest.mark.parametrize("static", ["1", "0"])
def test_kernels_of_torch_compile(tmp_path: Path, static: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the static launcher and by Triton's, from a cold and from a warm cache of Inductor's."""
    monkeypatch.setenv("TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER", static)
    program = [sys.executable, str(Path(__file__).parent / "compiled_layer.py")]
    for cache in ("cold", "warm"):
        run(tmp_path, "capture", "-o", str(tmp_path / cache), "--", *program)
        found = read(tmp_path / cache)
        assert found.timed and found.gpu and not found.problems and found.variants
        for variant in found.variants:
            assert variant.name.startswith("triton_") and not variant.problem
            assert [shape.count for shape in variant.shapes] == [6, 3]
            for shape, rows in zip(variant.shapes, (512, 64), strict=True):
                tensors = [v["shape"] for v in shape.args.values() if isinstance(v, dict)]
                whole = [each for each in tensors if len(each) == 2]
                assert whole and all(each[0] == rows for each in whole) and shape.timed
                if "YBLOCK" not in variant.facts["constants"]:
                    blocks = -(-shape.args["xnumel"] // variant.facts["constants"]["XBLOCK"])
                    assert shape.grid == (blocks, 1, 1)
    for variant in found.variants:
        made = workload(found, variant)
        for case in made.cases:
            with CudaDevice() as device:
                kernel = made.build(case, device.arch)
                device.open(made, case, kernel)
                outcome = device.run(Candidate(kernel))
                assert outcome.verdict is Verdict.CORRECT, (variant.name, outcome.detail)


@pytest.mark.slow
def test_a_program_is_tuned_and_timed_by_one_command(tmp_path: Path) -> None:
    words = ["--budget", "9s", "--runner-ups", "0", "--rounds", "2", "--metric", '"seconds": ([0-9.]+)']
    program = [sys.executable, str(DEMO), "--steps", "40", "--rows", "4096"]
    done = run(tmp_path, "tune", *words, "--out", str(tmp_path / "out"), "--json", "--", *program)
    found, (demo_said, *_) = json.loads(done.stdout), done.stderr.split('{"steps"')[1:]
    improved = {row["label"].rpartition("-")[0] for row in found["kernels"]["rows"] if row["improved"]}
    assert found["kernels"]["timed"] and not found["kernels"]["modelled"] and demo_said
    if not improved:
        assert found["program"] is None and found["why"].startswith("nothing to gain here")
        return
    timed = found["program"]
    assert improved >= set(timed["deployed"]) and len(timed["rounds"]) == 2 and timed["deployed"]
    assert 0.5 < timed["null"] < 2 and 0.5 < timed["speedup"] < 2
    assert all(demo(line)["steps"] == 40 for line in timed["last"])


def test_measured_moves_are_explained(tmp_path: Path) -> None:
    result = sassafras.optimize("suite:softmax", device="cuda", budget="6s", store=tmp_path / "s.sqlite")
    if not result.improved:
        pytest.skip("nothing beat the baseline this time")
    found = sassafras.explain(
        f"run:{result.run}", device="cuda", store=tmp_path / "s.sqlite", limit=60, remeasure=1
    )
    assert not found.modelled and "measured" in found.summary()
    if found.moves:
        assert found.moves[0].null_interval is not None or found.notes
    found.save(tmp_path / "why.json")
    from sassafras.report.page import write_report

    page = write_report(tmp_path / "r.html", [tmp_path / "s.sqlite", tmp_path / "why.json"])
    assert "NVIDIA" in page.read_text()
