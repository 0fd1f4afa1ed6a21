"""Blind mutants: how they are drawn, and what becomes of them on a worker that pretends to have a GPU."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras import Kernel
from sassafras.sass import Program
from sassafras.sass.opcodes import BRANCHES
from sassafras.validate import Validator
from tests.kernels import softmax_cubin
from tests.scripts import run_benchmark
from tests.shared import python_path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import blind_mutants as script  # noqa: E402
from mutants import blind  # noqa: E402

SOFTMAX, STAND_IN = "softmax/512x4096", "tests.evaluate.pretended_gpu"


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return Kernel(softmax_cubin(), "softmax", "sm_90a", 128)


def test_mutants_are_exchanges_in_a_block_of_which_the_validator_names_the_rule(kernel: Kernel) -> None:
    drawn = blind.draw(kernel, 3, 30, 4)
    assert drawn == blind.draw(kernel, 3, 30, 4) and len({m.cubin for m in drawn}) == len(drawn)
    assert {m.kind for m in drawn} == {blind.ADJACENT, blind.ANY}
    assert sum(not m.rule for m in drawn) <= 4 and sum(bool(m.rule) for m in drawn) >= 10
    function = Program.parse(kernel.cubin).function()
    validator = Validator(kernel.cubin)
    block_of = {at: block for block in function.blocks for at in range(block.start, block.end)}
    at_offset = {f"+{i.offset:#x}: {i.text}": i for i in function.instructions}
    for mutant in drawn:
        first, second = (at_offset[shown] for shown in mutant.pair)
        assert block_of[first.index] == block_of[second.index] and first.index < second.index
        assert mutant.kind == blind.ANY or second.index == first.index + 1
        assert not {first.base, second.base} & BRANCHES and "!PT" not in (first.guard, second.guard)
        code = np.frombuffer(mutant.cubin, "<u8", 2 * len(function), function.text_offset).reshape(-1, 2)
        words = function.words.copy()
        words[[first.index, second.index]] = words[[second.index, first.index]]
        assert (code == words).all(), "control codes move with their instructions"
        report = validator.check(mutant.cubin)
        assert report.ok == (not mutant.rule)
        assert report.ok or (str(report.violations[0]) == mutant.why and mutant.rule in mutant.why)


def test_the_empty_kernel_ends_at_once(kernel: Kernel) -> None:
    function, made = Program.parse(kernel.cubin).function(), blind.empty(kernel)
    start, end = function.text_offset, function.text_offset + 16
    ends = [i for i in function.instructions if i.base == "EXIT" and not i.guard]
    assert made[start:end] in [kernel.cubin[start + i.offset : end + i.offset] for i in ends]
    assert made[:start] + made[end:] == kernel.cubin[:start] + kernel.cubin[end:]


def fates(kernel: Kernel, *ends: Any) -> tuple[list[blind.BlindMutant], dict[str, Any]]:
    """Mutants, and what each of their digests is to do (`pretended_gpu`)."""
    drawn = blind.draw(kernel, 0, len(ends), 0)
    assert len(drawn) == len(ends)
    return drawn, {hashlib.sha256(m.cubin).hexdigest(): end for m, end in zip(drawn, ends, strict=True)}


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("LOG", "SAMPLES"):
        monkeypatch.setenv(f"PRETEND_{name}", str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    return tmp_path


def test_each_mutant_gets_its_own_outcome_whatever_the_one_before_did(pretended: Path) -> None:
    import sassafras

    workload = sassafras.load("suite:softmax")
    baseline = workload.build(workload.case("512x4096"), "sm_90a")
    ends = ("passes", 7, "spoils", 5000, "strays", "crashes", "passes", "hangs")
    drawn, known = fates(baseline, *ends)
    (pretended / "SAMPLES").write_text(json.dumps(known))
    nothing, found = blind.empty(baseline), []
    device = script.Unproved(2.0, STAND_IN)
    with device:
        device.begin_case(workload, workload.case("512x4096"), baseline)
        for mutant in drawn:
            found.append(script.settled(device, baseline, nothing, mutant.cubin, 1000, 1))
    assert [row["outcome"] for row in found] == [
        *("passed", "wrong", "wrong", "passed", "stray", "crashed", "passed", "hung")
    ]
    assert found[1]["first"] == 7 and found[0]["samples"] == 1000
    assert found[2]["damages"], "the original no longer passes behind it, also in a fresh worker"
    assert device.restarts == 4, "two for the one that spoils, one each for a crash and a hang"


def subject(mutants: list[blind.BlindMutant], lines: dict[tuple[int, int], dict[str, Any]]) -> Any:
    made = script.Subject.__new__(script.Subject)
    made.marks = {m.number: script.marked(m.cubin) for m in mutants}
    made.target, made.mutants, made.lines = SOFTMAX, mutants, lines
    made.second = {m.number: "equal" if n % 2 else "different" for n, m in enumerate(mutants)}
    return made


def line(outcome: str, samples: int, **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "samples": samples, "detail": "", **more}


def test_a_row_counts_what_passed_so_many_samples(kernel: Kernel) -> None:
    drawn = [m for m in blind.draw(kernel, 0, 8, 2) if m.rule][:8]
    approved = [m for m in blind.draw(kernel, 0, 30, 2) if not m.rule]
    assert len(drawn) == 8 and approved
    numbers = [m.number for m in drawn]
    lines = {
        (numbers[0], 0): line("wrong", 166, first=3),
        (numbers[1], 0): line("wrong", 1000, first=12),
        (numbers[2], 0): line("passed", 1024),
        (numbers[2], 1): line("wrong", 500, first=400),
        (numbers[3], 0): line("passed", 1024),
        (numbers[3], 1): line("passed", 98_976),
        (numbers[4], 0): line("crashed", 0),
        (numbers[5], 0): line("stray", 166),
        (numbers[6], 0): line("passed", 1024),
        (approved[0].number, 0): line("passed", 1024),
    }
    made = subject([*drawn, *approved[:1]], lines)
    row = made.row()
    assert row["refused"] == 8 and row["passed"] == 2
    assert (row["wrong"], row["crashed"], row["stray"], row["hung"]) == (3, 1, 1, 0)
    assert (row["passed_10"], row["passed_1000"], row["passed_100000"]) == (4, 3, 1)
    assert (row["tested_10"], row["tested_1000"], row["tested_100000"]) == (7, 7, 6)
    assert sum(of["refused"] for of in row["by_rule"].values()) == 8
    assert (row["approved"], row["approved_ran"], row["approved_failed"]) == (1, 1, 0)
    assert [m["number"] for m in row["unnoticed"]] == [numbers[2], numbers[3], numbers[6]]
    assert row["unnoticed"][0]["samples"] == 1424 and len(row["unnoticed"][0]["pair"]) == 2
    assert [m["second_model"] for m in row["unnoticed"]] == ["different", "equal", "different"]
    summary = script.summed([row, row])
    assert summary["by_second"]["different"]["passed_1000"] == 4
    assert summary["refused"] == 16 and summary["passed_1000"] == 6 and not summary["complete"]
    assert summary["approved_samples_least"] == 1024
    waiting = [m.number for m in made.left(0)], [m.number for m in made.left(1)]
    assert waiting == ([numbers[7]], [numbers[6], approved[0].number])
    lines[approved[0].number, 0] = line("wrong", 166, first=0)
    row = made.row()
    assert row["approved_failed"] == 1 and row["failures"][0]["number"] == approved[0].number


def command(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["--only", SOFTMAX, "--count", "12", "--approved", "1", "--workers", "1", "--pretend", STAND_IN]
    return run_benchmark("blind_mutants", *words, "--out", folder, *more)


def test_the_script_asks_for_its_door_runs_resumes_and_writes(pretended: Path) -> None:
    import sassafras

    done = command(pretended)
    assert done.returncode == 2 and "--run-refused" in done.stderr
    workload = sassafras.load("suite:softmax")
    baseline = workload.build(workload.case("512x4096"), "sm_90a")
    drawn = blind.draw(baseline, 0, 12, 1)
    ends = ["passes" if not m.rule else ("passes", 2000, 4, "crashes")[n % 4] for n, m in enumerate(drawn)]
    known = {hashlib.sha256(m.cubin).hexdigest(): end for m, end in zip(drawn, ends, strict=True)}
    (pretended / "SAMPLES").write_text(json.dumps(known))
    done = command(pretended, "--run-refused")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((pretended / "blind-mutants-pretended.json").read_text())
    (row,), summary = found["rows"], found["summary"]
    of = Counter(end for m, end in zip(drawn, ends, strict=True) if m.rule)
    assert summary["refused"] == 12 and summary["complete"] and found["environment"]["gpu"] == "pretended"
    assert (row["passed"], row["wrong"], row["crashed"]) == (of["passes"], of[2000] + of[4], of["crashes"])
    assert row["passed_1000"] == of["passes"] + of[2000] and row["passed_100000"] == of["passes"]
    verdicts = blind.second(baseline, drawn)
    assert all(verdicts[m.number] == "equal" for m in drawn if not m.rule)
    different = sum(verdicts[m.number] == "different" for m in drawn if m.rule)
    assert row["by_second"]["different"]["refused"] == different > 0
    assert row["approved_failed"] == 0 and row["approved_samples"] == [100_000] * row["approved_ran"]
    journal = pretended / "blind-mutants-pretended.rows.jsonl"
    lines = journal.read_text().splitlines()
    assert len(lines) == len(drawn) + sum(end in ("passes", 2000) for end in ends)
    again = pretended / "again"
    before = (pretended / "LOG").read_text().count('"sample"')
    cut = pretended / "cut.rows.jsonl"
    cut.write_text("\n".join([*lines[:-1], json.dumps({**json.loads(lines[-1]), "settings": ["other"]})]))
    done = command(again, "--run-refused", "--resume", str(cut))
    assert done.returncode == 0 and f"{len(lines) - 1} lines of the journal" in done.stdout, done.stdout
    assert (pretended / "LOG").read_text().count('"sample"') - before <= 4, "two controls, a mutant, one more"
    assert json.loads((again / "blind-mutants-pretended.json").read_text())["rows"] == found["rows"]


def test_lines_of_other_mutants_are_not_taken_over() -> None:
    options = argparse.Namespace(seed=0)
    made = subject([blind.BlindMutant(4, blind.ANY, ("a", "b"), "raw", "raw at b", b"x")], {})
    made.baseline = Kernel(b"c", "k", "sm_90a", 32)
    settings = {SOFTMAX: script.settings_of(made, options)}
    where = {"settings": settings[SOFTMAX], "target": SOFTMAX, "number": 4, "mutant": script.marked(b"x")}
    good = {**where, "stage": 0, **line("passed", 1000)}
    others = [{**good, "settings": []}, {**good, "number": 5}, {**good, "target": "other"}]
    others += [{**good, "mutant": script.marked(b"y")}, {**good, "number": 5, "mutant": None}]
    assert script.taken_over([made], settings, [*map(dict, others), dict(good)]) == 1
    assert made.lines == {(4, 0): line("passed", 1000)}
