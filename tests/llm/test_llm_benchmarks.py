"""The benchmarks that a GPU sitting runs, rehearsed, so that nothing trivial fails there."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.frontend import load
from sassafras.llm.holes import Template
from sassafras.llm.source_space import source_of

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.skipif(landlock_version() < 1 or shutil.which("nvcc") is None, reason="cannot build confined")
def test_proposals_are_generated_and_measured_on_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import llm_proposals

    words = ["llm_proposals.py", "--workloads", "bias_gelu", "--proposals", str(tmp_path / "p.jsonl")]
    words += ["--cubins", str(tmp_path / "carried")]
    monkeypatch.setattr(sys, "argv", [*words, "--generate", "--count", "3", "--seed", "1"])
    llm_proposals.main()
    llm_proposals.main()  # finished: nothing is done twice
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert records[-1]["tally"]["proposed"] == 3 and "correct" not in records[-1]["tally"]
    assert {"compiled", "compile_error"} >= {r["static"] for r in records if "static" in r}
    monkeypatch.setattr(sys, "argv", [*words, "--carry"])
    llm_proposals.main()
    compiled = {r["digest"] for r in records if r.get("static") == "compiled"}
    assert {p.stem for p in (tmp_path / "carried").glob("*.cubin")} == {"bias_gelu", *compiled}
    measure = ["--measure", "--dry-run", "--journal", str(tmp_path / "j.jsonl"), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, *measure])
    llm_proposals.main()
    said = capsys.readouterr().out
    summary = json.loads(said[said.index("{\n") :])
    assert summary["mutation"]["proposed"] == 3 and summary["mutation"]["correct"] == 0
    journal = (tmp_path / "j.jsonl").read_text()
    llm_proposals.main()
    assert (tmp_path / "j.jsonl").read_text() == journal  # resumed: nothing is judged twice
    assert not (tmp_path / "llm-proposals.json").exists()


def test_the_proposals_that_wait_for_a_gpu_are_whole() -> None:
    import llm_proposals

    records = llm_proposals.read(llm_proposals.PROPOSALS)
    groups = {(workload, model): found for workload, model, found in llm_proposals.groups(records)}
    assert len({workload for workload, _ in groups}) >= 3
    _, summary = llm_proposals.summarise(records, {}, {})
    counts = [summary[model]["proposed"] for model in dict.fromkeys(model for _, model in groups)]
    assert len(set(counts)) == 1 < len(counts)  # the control is as large as what it controls
    for (workload, _), found in groups.items():
        language, text, _ = source_of(load(str(BENCHMARKS.parent / "examples" / "evolve" / f"{workload}.py")))
        template = Template.parse(text, language)
        for record in found:
            assert template.fill(record["texts"]) != text


def test_the_live_benchmark_runs_on_a_modelled_clock(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    import llm_live

    from sassafras.gemm.shapes import Shape
    from sassafras.llm.policy import Table
    from sassafras.llm.policy.model import Policy

    table = Table.stand_in([Shape(64, 64, 512), Shape(64, 128, 2048)], most=8)
    policy = Policy(table.columns)
    policy.standardise(table.problems)
    policy.save(tmp_path / "p.npz")
    given = {
        "policy": tmp_path / "p.npz", "cache": None, "shapes": 1, "seed": 0, "dry_run": True,
        "journal": tmp_path / "j.jsonl", "until": float("inf"),
    }  # fmt: skip
    for _ in range(2):  # the second time everything is known
        for step in ("choose", "compare0", "compare1"):
            llm_live.worker(Namespace(**given, worker=step))
    records = llm_live.read(tmp_path / "j.jsonl")
    assert len(records) == 6
    chosen = next(r for r in records if "policy" in r)
    assert chosen["policy_us"] <= chosen["rule_us"] and chosen["control_us"] <= chosen["rule_us"]
    rows, summary = llm_live.summarise(records)
    assert summary["measured"] == 1 and rows[0]["null_low"] <= 1.01 and rows[0]["null_high"] >= 0.99


def test_live_shapes_are_off_the_grid_and_fixed() -> None:
    import llm_live

    shapes = llm_live.live_shapes(40, 0)
    assert shapes == llm_live.live_shapes(40, 0) and len(set(shapes)) == 40
    assert all(int(extent) % 8 == 0 for shape in shapes for extent in shape.split("x"))
