"""A program's runs without and with tuned code, and `tune -- COMMAND` on kernels that no GPU runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sassafras.api.end_to_end import SECONDS, end_to_end
from sassafras.api.optimize_captured import optimize_captured
from sassafras.api.tune_program import tune_program
from sassafras.core import SassafrasError
from tests.capture.conftest import DEMO, ROOT

STEP = r"step ([0-9.]+) us"
#: 20 us a step, 10 with tuned code; the first step of a process takes longer
PROGRAM = """
import os, sys
us = 10 if os.environ.get("TUNED") else 20
open(sys.argv[1], "a").write(f"{us} ")
for each in (9 * us, us, us):
    print(f"step {each} us")
print("loss", 1.5)
"""


def test_runs_come_in_turn_and_the_control_is_between_equal_ones(tmp_path: Path) -> None:
    runs, said = tmp_path / "runs", list[str]()
    found = end_to_end(
        [sys.executable, "-c", PROGRAM, str(runs)],
        {"TUNED": "1"},
        {},
        lambda: ["k"] if runs.read_text() == "10 " else [],
        rounds=3,
        metric=STEP,
        progress=said.append,
    )
    assert runs.read_text().split() == ["10"] + ["20", "10", "20"] * 3, "one run more, to compile"
    assert found.rounds == ((20.0, 10.0, 20.0),) * 3 and found.speedup == 2.0 and found.null == 1.0
    assert (found.interval.low, found.null_interval.high) == (2.0, 1.0)
    assert found.deployed == ("k",) and found.last == ("loss 1.5", "loss 1.5") and len(said) == 10
    assert str(found).startswith("program: 2.000x [2.000, 2.000], A/A 1.000x [1.000, 1.000]")
    assert json.loads(json.dumps(found.to_json()))["speedup"] == 2.0


def test_without_a_time_of_its_own_the_whole_program_counts() -> None:
    wait = "import os, time; time.sleep(0.3 if os.environ.get('TUNED') else 0.6)"
    found = end_to_end([sys.executable, "-c", wait], {"TUNED": "1"}, {}, list, rounds=1)
    assert found.what == SECONDS and 0.3 < found.rounds[0][1] < found.rounds[0][0] and found.speedup > 1.1


@pytest.mark.parametrize(
    ("program", "metric", "words"),
    [
        ("print('step 3 us')", "step (", "no regular expression"),
        ("print('step 3 us')", "step [0-9]+ us", r"needs one group, it has 0 \('step"),
        ("print('done')", STEP, "printed no time that --metric finds"),
        ("print('step 0 us')", STEP, "printed no time that --metric finds"),
        ("print('step 3 us')", "(step)", "is no number"),
        (
            "raise SystemExit('out of memory')",
            STEP,
            "out of memory: the program ended with 1 with tuned code",
        ),
    ],
)
def test_a_program_that_cannot_be_timed(program: str, metric: str, words: str) -> None:
    with pytest.raises(SassafrasError, match=words):
        end_to_end([sys.executable, "-c", program], {}, {}, list, rounds=1, metric=metric)


def test_a_programs_kernels_share_the_budget(tmp_path: Path) -> None:
    """From the program to the table, by the timing model."""
    pytest.importorskip("torch")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    program = [sys.executable, "-m", "tests.capture.drive", str(DEMO), "--device", "cpu", "--steps", "8"]
    command = [sys.executable, "-m", "sassafras", "tune", "--device", "model", "--budget", "2.5s"]
    command += ["--kernels", "1", "--runner-ups", "0", "--rounds", "1"]
    command += ["--out", str(tmp_path), "--store", str(tmp_path / "st.sqlite"), "--json", "--", *program]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, cwd=ROOT, check=False
        )

    done = run()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert json.loads((tmp_path / "program-report.json").read_text()) == found
    first, *others = found["kernels"]["rows"]
    assert first["ratio"] is not None and found["kernels"]["modelled"] and len(others) >= 2
    assert {row["detail"] for row in others} == {"left alone: not among the 1 with the most time"}
    assert found["program"] is None and found["why"] == "modelled, nothing was measured"
    few = optimize_captured(tmp_path / "captured", device="model", total="3s", out=tmp_path)
    short = [row.detail for row in few.rows if row.detail.startswith("left alone: its part of the budget is")]
    assert short and all(row.ratio is None or row.share > 0.5 for row in few.rows)
    with pytest.raises(SassafrasError, match="tuned for a time"):
        optimize_captured(tmp_path / "captured", device="model", total="30e")


def test_a_wrong_metric_is_refused_before_the_program_runs(tmp_path: Path) -> None:
    def run(environment: dict[str, str]) -> None:
        raise AssertionError("it ran")

    with pytest.raises(SassafrasError, match="needs one group"):
        tune_program(["true"], tmp_path, run, budget="9s", metric="us")
    assert not list(tmp_path.iterdir())
