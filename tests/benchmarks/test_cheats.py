"""The cheat gallery's parts that need no GPU; benchmarks/cheats.py runs all of it and writes the table."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cheats
from common import RESULTS
from gallery import Exhibit, device, host, machine, source, subject

from sassafras.core import Verdict
from sassafras.evaluate import Confinement
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.evaluate.scan import scan_cuda, scan_python

needs_fences = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
SCANNED = {
    "cuda_includes_a_file", "cuda_embeds_a_file", "cuda_calls_cublas", "cuda_own_launch", "cuda_own_stream",
    "cuda_own_graph", "cuda_l2_carve_out", "cuda_runs_a_program", "triton_reads_files",
    "triton_opens_sockets", "triton_forks", "triton_patches_triton",
}  # fmt: skip


@pytest.mark.parametrize("name", [e.name for e in machine.exhibits() if e.name.endswith("softmax")])
def test_patched_machine_code_is_refused_by_the_validator(name: str) -> None:
    exhibit = next(e for e in machine.exhibits() if e.name == name)
    assert cheats.judge_machine(exhibit)[0] == "illegal_schedule"


@pytest.mark.parametrize("exhibit", [e for e in source.exhibits() if e.name in SCANNED], ids=lambda e: e.name)
def test_cheating_sources_are_refused_by_the_scan(exhibit: Exhibit) -> None:
    made = exhibit.make()
    finding = scan_cuda(made.text) if made.language == "cuda" else scan_python(made.text)
    assert finding is not None
    assert finding.verdict is Verdict.CHEATED


@pytest.mark.parametrize(
    "exhibit", [e for e in host.exhibits() if e.how == "python_scan"], ids=lambda e: e.name
)
def test_cheating_python_is_refused_by_the_scan(exhibit: Exhibit) -> None:
    finding = scan_python(exhibit.make(), "python")
    assert finding is not None
    assert finding.verdict is Verdict.CHEATED


@pytest.mark.parametrize("exhibit", device.exhibits(), ids=lambda e: e.name)
def test_the_scan_leaves_all_device_code_to_the_gpu(exhibit: Exhibit) -> None:
    """Honest and cheating: none of these texts gives itself away, and none may be refused unrun."""
    assert scan_cuda(exhibit.make().text) is None


@needs_fences
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
@pytest.mark.parametrize("name", ["gpu_cooperative_groups", "gpu_large_shared_memory", "gpu_clusters"])
def test_odd_honest_device_code_builds(name: str) -> None:
    from sassafras.evaluate.source import build

    exhibit = next(e for e in device.exhibits() if e.name == name)
    built = build(exhibit.make(), subject.CASE, "sm_90a", confinement=Confinement(wall_s=250.0))
    assert built.verdict is None, built.detail
    assert built.kernel is not None
    assert built.kernel.cluster == ((2, 1, 1) if name == "gpu_clusters" else (1, 1, 1))


def test_the_gallerys_workload_can_be_loaded_by_a_worker() -> None:
    from sassafras.targets import load

    workload = load(f"{subject.__file__}:workload")
    assert workload.source is not None
    assert workload.cases[0] == subject.CASE


@needs_fences
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_lower_precision_is_seen_in_the_results_not_in_the_opcodes() -> None:
    """It rounds in between and accumulates nothing in FP16: the scan must leave it to the tolerance."""
    from sassafras.evaluate.source import build

    exhibit = next(e for e in device.exhibits() if e.name == "gpu_lower_precision")
    built = build(
        exhibit.make(), subject.CASE, "sm_90a", confinement=Confinement(wall_s=250.0), fp32_accumulation=True
    )
    assert built.verdict is None, built.detail


def test_honest_gemm_sources_are_not_flagged() -> None:
    rows = cheats.honest_gemm()
    assert len(rows) > 10
    assert all(row["ok"] for row in rows)


def test_names_are_unique_and_cheats_never_expect_to_pass() -> None:
    every = [
        *machine.exhibits(), *source.exhibits(), *host.exhibits(), *host.on_gpu(), *device.exhibits()
    ]  # fmt: skip
    names = [e.name for e in every]
    assert len(set(names)) == len(names)
    for exhibit in every:
        if exhibit.kind == "cheat":
            assert not {"built", "legal"} & set(exhibit.expected), exhibit.name
        assert exhibit.title


def _row(name: str, kind: str, ok: bool, where: str = "cpu", how: str = "source") -> dict[str, Any]:
    return {
        "name": name, "kind": kind, "expected": "x", "verdict": "x", "ok": ok, "title": "t", "by": "b",
        "how": how, "where": where, "detail": "", "seconds": 0.0,
    }  # fmt: skip


def test_summary_and_merging_and_the_page(tmp_path: Path) -> None:
    old = [_row("a", "cheat", False), _row("b", "cheat", True), _row("g", "cheat", True, "gpu", "gpu")]
    path = tmp_path / "cheats.json"
    path.write_text(json.dumps({"date": "2026-11-21", "rows": old, "summary": cheats.summarise(old)}))
    rows = cheats.merged(path, [_row("a", "cheat", True)], "cpu", only="a")
    assert {(r["name"], r["ok"]) for r in rows} == {("a", True), ("b", True), ("g", True)}
    rows = cheats.merged(path, [_row("a", "cheat", True)], "cpu", only="")
    assert {r["name"] for r in rows} == {"a", "g"}
    assert cheats.summarise(old)["missed"] == ["a"]
    both = [_row("h", "honest", True), _row("h", "honest", False, "gpu"), _row("i", "honest", True)]
    found = cheats.summarise(both)
    assert (found["honest"], found["honest_flagged"]) == (2, 1), "a candidate that both parts judge is one"
    page = cheats.docs(path)
    assert "2 of 3 cheats were caught" in page
    assert "**missed**" in page
    assert "## What cannot be caught" in page


def test_the_published_page_is_the_published_results() -> None:
    assert (RESULTS / "cheats.json").is_file()
    page = cheats.PAGE.read_text()
    assert page == cheats.docs(RESULTS / "cheats.json")
    published = json.loads((RESULTS / "cheats.json").read_text())
    assert not published["summary"]["missed"]
    assert cheats.summarise(published["rows"]) == published["summary"]
    assert published["summary"]["honest"] >= 200


def test_a_run_without_a_gpu_leaves_the_gpus_environment(tmp_path: Path) -> None:
    """Its rows stand beside those that a GPU judged."""
    old = {"rows": [_row("g", "cheat", True, "gpu", "gpu")], "environment": {"gpu": "some"}}
    (tmp_path / "cheats.json").write_text(json.dumps(old))
    chosen = next(e.name for e in machine.exhibits() if e.name.endswith("softmax"))
    assert cheats.main(["cpu", "--only", chosen, "--out", str(tmp_path)]) == 0
    kept = json.loads((tmp_path / "cheats.json").read_text())
    assert kept["environment"]["gpu"] == "some" and {r["name"] for r in kept["rows"]} == {"g", chosen}
