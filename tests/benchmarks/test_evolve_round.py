"""The result file of runs of proposals, from transcripts alone."""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path

import pytest

from sassafras import search
from sassafras.api import evolve
from sassafras.core import Budget, SassafrasError
from sassafras.llm.evolve import Evolve
from sassafras.llm.record import Record
from tests.llm.test_evolve import Dice, Numbers
from tests.llm.test_record import SETTINGS, TASK

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evolve_round

#: prompts, answers and verdicts of a language model's runs on an H200
DATA = Path(__file__).parents[2] / "benchmarks/data/evolve.tar.xz"


def run(folder: Path) -> None:
    """Four proposals about numbers, kept as `evolve` keeps them."""
    record, strategy = Record(folder), Evolve(Dice(), **SETTINGS)  # type: ignore[arg-type]
    settings = {k: v for k, v in search.settings_of(strategy).items() if k != "proposer"}
    record.agree({"seed": 0, "task": asdict(TASK), "settings": settings, "target": "numbers", "context": []})
    strategy.record, strategy.task = record, TASK
    search.run(strategy, Numbers(), Numbers(), Budget(seconds=60))
    record.append("confirmed", digest="x", improved=True, speedup=1.25, over_best=1.125)


def summed(root: Path) -> dict:
    evolve_round.summary(argparse.Namespace(root=root, out=root, shipped=0, held_out_gain=None))
    return json.loads((root / "llm-evolve.json").read_text())


def test_rows_and_totals(tmp_path: Path) -> None:
    run(tmp_path / "numbers")
    run(tmp_path / f"numbers{evolve_round.CONTROL}")
    found = summed(tmp_path)
    totals = found["summary"]
    assert (totals["remeasured"], totals["confirmed"]) == (1, 1)
    assert (totals["targets"], totals["proposals"], totals["replayed"]) == (1, 4, 2)
    control = totals["mutation"]
    assert (control["proposed"], control["remeasured"], control["confirmed"]) == (4, 1, 1)
    assert totals["geomean_confirmed"] == pytest.approx(1.125)
    proposals = [row for row in found["rows"] if row["verdict"] != "confirmed"]
    assert len(proposals) == 8 and {row["proposer"] for row in proposals} == {"model", "mutation"}
    right = [row for row in proposals if row["verdict"] == "correct" and row["proposer"] == "model"]
    assert len(right) == totals["right"] and all(row["null"] == 1.0 and row["speedup"] for row in right)


def test_winners_that_a_second_measurement_refutes_are_counted(tmp_path: Path) -> None:
    run(tmp_path / "numbers")
    path = tmp_path / "numbers" / "transcript.jsonl"
    path.write_text(path.read_text().replace('"improved": true', '"improved": false').replace("1.125", "0.5"))
    totals = summed(tmp_path)["summary"]
    assert (totals["remeasured"], totals["confirmed"], totals["geomean_confirmed"]) == (1, 0, None)
    assert totals["geomean_remeasured"] == 0.5


def test_modelled_figures_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "numbers")
    path = tmp_path / "numbers" / "transcript.jsonl"
    path.write_text(path.read_text().replace('"verdict": "correct"', '"verdict": "modelled"'))
    (tmp_path / "numbers" / "archive.jsonl").unlink()
    with pytest.raises(SystemExit, match="was modelled"):
        summed(tmp_path)


def test_names_of_folders() -> None:
    assert evolve_round.name_of("gemm:64,64,512", []) == "gemm-64-64-512"
    assert evolve_round.name_of("suite:softmax/a", ["metrics"]) == "suite-softmax-a-no-metrics"


def test_recorded_runs_replay(tmp_path: Path) -> None:
    """Of the archive of recorded runs, one of CUDA C++ and one of Triton: every prompt, the same archive."""
    with tarfile.open(DATA) as archive:
        wanted = ("runs/gemm-128x128x16384/", "runs/suite-topk_gating/")
        archive.extractall(
            tmp_path, [m for m in archive.getmembers() if m.name.startswith(wanted)], filter="data"
        )
    for folder in sorted((tmp_path / "runs").iterdir()):
        judged = Record(folder).judged
        assert len(judged) >= 8
        evolve.replay_run(folder)
        spoilt = next(folder.glob("*.answer.md"))
        spoilt.write_text("something else")
        with pytest.raises(SassafrasError):
            evolve.replay_run(folder)


def test_prompts_name_the_gpu_that_judges(tmp_path: Path) -> None:
    for gpu, said in (("NVIDIA H200", "Bound on an H200"), ("", "Bound on an H100")):
        evolve.write_prompts(
            "suite:softmax", tmp_path / said, settings={"width": 1, "proposals": 1}, whole=True, gpu=gpu
        )
        assert said in (tmp_path / said / "0001.prompt.md").read_text()
