"""The main job from the command line, on the timing model: run, repeat, interrupt, kill, resume."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sassafras import Store
from sassafras.core import StoreError
from sassafras.frontend.ptxas_options import available
from sassafras.sass import Program
from sassafras.validate import Validator
from tests.cli.in_process import sassafras
from tests.shared import without_torch

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "softmax.py")
NULL = r"null \d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]"
LINE = (
    rf"modelled (1\.00x, {NULL}|(\d\.\d{{3}})x \[\d\.\d{{3}}, \d\.\d{{3}}\], {NULL}, \d+ fresh draws) "
    r"\(timing model of sm_90a?, not a measurement; rank correlation.*\)"
)


@pytest.fixture(autouse=True)
def as_without_a_gpu(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that these tests start find no torch, as after the README's first command."""
    monkeypatch.setenv("PYTHONPATH", without_torch(shared))


def words(folder: Path, *arguments: str, target: str = "suite:softmax") -> list[str]:
    return [
        "optimize", target, "--device", "model",
        "--store", str(folder / "store.sqlite"), "--out", str(folder / "out"), *arguments,
    ]  # fmt: skip


def here(folder: Path, *arguments: str, target: str = "suite:softmax") -> tuple[str, str]:
    """In this process: stdout and stderr."""
    status, out, err = sassafras(*words(folder, *arguments, target=target))
    assert status == 0, err
    return out, err


def start(folder: Path, *arguments: str, target: str = "suite:softmax") -> subprocess.Popen[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "sassafras", *words(folder, *arguments, target=target)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=200)
    assert process.returncode == status, err
    return out, err


def evaluations(folder: Path) -> int:
    try:
        with Store.open(folder / "store.sqlite", readonly=True) as store:
            return sum(run.evaluations for run in store.runs())
    except StoreError as error:
        assert "no store here" in str(error)
        return 0


def wait_for(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while evaluations(folder) < count:
        assert process.poll() is None and time.monotonic() < deadline, "the search ended too early"
        time.sleep(0.02)


def test_optimize_repeat_and_start_over(tmp_path: Path) -> None:
    out, err = finish(start(tmp_path, "--budget", "24e", target=EXAMPLE))
    assert re.fullmatch(LINE + r".*\n", out) and "searching 24e with guided" in err
    assert "model assumes: " in err
    (written,) = (tmp_path / "out").glob("*.json")
    facts = json.loads(written.read_text())
    assert facts["evaluations"] == sum(facts["verdicts"].values()) == 24
    # the validator may be stricter than the scheduler, but not by much
    assert set(facts["verdicts"]) <= {"modelled", "illegal_schedule"} and facts["verdicts"]["modelled"] >= 18
    assert facts["failed_after_validation"] == 0
    assert facts["modelled"] is True and facts["speedup"] is None and facts["summary"] + "\n" == out
    from sassafras.targets import load

    workload = load(EXAMPLE)
    original = workload.build(workload.case(), "sm_90a")
    cubin = written.with_suffix(".cubin").read_bytes()
    assert facts["baseline"]["digest"] == original.digest
    assert Validator(original.cubin, original.name).check(cubin).ok
    assert Program.parse(cubin).function().name == original.name
    with Store.open(tmp_path / "store.sqlite") as store:
        assert store.winners() == [] and len(store.runs()) == 1
        assert [w.tuned for w in store.modelled_winners()] == [facts["kernel"]["digest"]] * facts["improved"]

    again, err = here(tmp_path, "--budget", "24e", "--no-check", target=EXAMPLE)
    assert again == out and "this search finished before" in err
    fresh = ("--budget", "24e", "--no-check", "--fresh", "--quiet", "--json")
    over, err = here(tmp_path, *fresh, target=EXAMPLE)
    assert err == "" and json.loads(over)["summary"] == facts["summary"]
    assert json.loads(over)["replayed"] == 0 and len(json.loads(over)["files"]) == 2
    with Store.open(tmp_path / "store.sqlite") as store:
        assert [run.evaluations for run in store.runs()] == [24, 24]


def following(err: str) -> list[list[str]]:
    """The commands that a search named at its end, as words."""
    text = err[err.index("next: ") :].splitlines()[0].removeprefix("next: ").removesuffix(" (resumes)")
    return [shlex.split(part.split(", ")[0]) for part in text.split("; ")]


def test_the_next_command_is_about_the_same_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    target = str(folder / "softmax.py")
    (folder / "softmax.py").write_bytes(Path(EXAMPLE).read_bytes())
    store = ["--store", str(folder / "store.sqlite")]
    case = ["--case", "512x2048"]
    gained = set()
    for space in (), ("--space", "control"), ("--ptxas", str(available()[0])):
        _, err = here(folder, "--budget", "60e", "--no-check", "--seed", "3", *case, *space, target=target)
        first, *others = following(err)
        assert first[:5] == ["sassafras", "optimize", target, *case] and set(store) <= set(first), err
        assert [word for word in first if word in (*space, "--space", "--ptxas")] == [*space], err
        for words in others:  # explain knows schedules of the default space and of the frontend's baseline
            gained.add((words[1], *space))
            assert words == ["sassafras", "explain", target, *case, *store]
    assert gained == {("explain",)}


def test_all_cases_end_in_a_table(tmp_path: Path) -> None:
    """Open cases of an autotuned kernel are one for each configuration; files tell searches apart."""
    target = str(Path(__file__).parents[2] / "examples" / "three_workloads.py") + ":product"
    more = ("--case", "all", "--budget", "2e", "--seed", "3", "--no-check")
    out, err = here(tmp_path, *more, target=target)
    heading, *rows = out.splitlines()
    assert heading.split() == ["kernel", "case", "baseline", "ratio"]
    names = ["64x64x128-BM64-BN64-BK32-w4-s3", "64x64x128-BM32-BN32-BK32-w2-s3"]
    assert [row.split()[:2] for row in rows] == [["product_kernel", name] for name in names]
    assert "1 of 2: product_kernel" in err and all("modelled" in row for row in rows)
    saved = sorted(path.name for path in (tmp_path / "out").glob("*.cubin"))
    assert saved == sorted(f"product_kernel-{name}-guided-s3.cubin" for name in names)
    assert here(tmp_path, *more, "--quiet", target=target) == (out, "")
    both = json.loads(here(tmp_path, *more, "--json", target=target)[0])
    assert [one["case"] for one in both["results"]] == names and both["failures"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_best(tmp_path: Path, number: signal.Signals) -> None:
    more = ("--budget", "1000000e", "--seed", "7", "--set", "cycles=2", "--set", "patience=9", "--no-check")
    process = start(tmp_path, *more, "--fresh", target="suite:rmsnorm")
    wait_for(process, tmp_path, 20)
    process.send_signal(number)
    out, err = finish(process, 130)
    assert re.match(LINE, out) and "interrupted: this is the best so far" in err
    (resuming,) = following(err)  # another seed or setting is another search, and --fresh starts over
    asked = words(tmp_path, *more, target="suite:rmsnorm")
    assert sorted(resuming) == sorted(["sassafras", *asked])
    (saved,) = (tmp_path / "out").glob("rmsnorm-*-guided-s7.cubin")
    assert saved.stat().st_size > 1000
    with Store.open(tmp_path / "store.sqlite") as store:
        assert store.runs()[0].finished_budget is None


def test_kill_9_and_resume_ends_like_an_uninterrupted_search(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    search = ("--budget", "40e", "--seed", "5")

    def result(folder: Path) -> dict[str, Any]:
        facts = json.loads(here(folder, *search, "--json", target="suite:rmsnorm")[0])
        keep = ("summary", "kernel", "evaluations", "verdicts", "modelled_ratio", "recipe")
        return {key: facts[key] for key in keep}

    whole = result(tmp_path / "whole")
    process = start(tmp_path / "killed", *search, target="suite:rmsnorm")
    wait_for(process, tmp_path / "killed", 10)
    process.kill()
    process.communicate()
    assert 10 <= evaluations(tmp_path / "killed") < 40
    assert result(tmp_path / "killed") == whole
    assert evaluations(tmp_path / "killed") == evaluations(tmp_path / "whole") == 40


def test_the_custom_strategy_example_runs(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    done = subprocess.run(
        [sys.executable, "examples/custom_strategy.py", "suite:rmsnorm", "model", "24e"],
        cwd=Path(__file__).parents[2], env=os.environ | {"SASSAFRAS_STORE": str(store)},
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    assert re.match(LINE, done.stdout)
    with Store.open(store, readonly=True) as opened:
        (run,) = opened.runs()
    assert (run.strategy, run.evaluations, run.spec["settings"]) == ("late_acceptance", 24, {"memory": 20})
