"""Mutants in bulk: fair shares of time, jobs that hang or die, results written on the way. No GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import softmax_cubin
from tests.scripts import run_benchmark

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from mutants import kernel_run, learning
from mutants.pool import Event, Job, Pool, Say
from mutants.shares import Item, Shares
from mutants.summary import Results


def count(say: Say, to: int) -> int:
    for n in range(to):
        say(n)
    return to


def hang(say: Say) -> None:
    say("begun")
    time.sleep(600)


def die(say: Say) -> None:
    os._exit(3)


def fail(say: Say) -> None:
    raise ValueError("no such thing")


def events(jobs: list[Job], workers: int, seconds: float) -> list[Event]:
    left = iter(jobs)
    heard = Pool(workers).run(lambda: next(left, None), time.time() + seconds)
    return [event for event in heard if event.kind != "tick"]


def test_what_jobs_say_is_heard_and_one_that_dies_or_fails_costs_no_other() -> None:
    jobs = [Job("dies", die, (), 60.0), Job("fails", fail, (), 60.0), Job("counts", count, (2,), 60.0)]
    heard = events(jobs, 1, 60.0)
    assert [(e.kind, e.key, e.value) for e in heard] == [
        ("failed", "dies", "its process died"), ("failed", "fails", "ValueError: no such thing"),
        ("said", "counts", 0), ("said", "counts", 1), ("done", "counts", 2),
    ]  # fmt: skip


def test_a_job_that_hangs_is_killed_at_its_limit_and_the_next_one_runs() -> None:
    heard = events([Job("hangs", hang, (), 4.0), Job("counts", count, (1,), 60.0)], 1, 60.0)
    assert [(e.kind, e.key) for e in heard] == [
        ("said", "hangs"), ("killed", "hangs"), ("said", "counts"), ("done", "counts")
    ]  # fmt: skip


def test_whatever_runs_at_the_end_is_killed_and_named() -> None:
    begin = time.time()
    heard = events([Job("hangs", hang, (), 600.0), Job("never begun", count, (1,), 60.0)], 1, 6.0)
    assert time.time() - begin < 30
    assert (heard[-1].kind, heard[-1].key, heard[-1].value) == ("killed", "hangs", "time")
    assert "never begun" not in {e.key for e in heard}


def items(count: int) -> list[Item]:
    return [Item(f"/k/{n}.cubin", f"{n}.cubin", 0, "k", 100 * (n + 1)) for n in range(count)]


def test_every_kernel_gets_the_same_time_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers that take as long as they may: all kernels are begun, and the time is used."""
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    shares = Shares(items(40), 4, now + 400)
    given: list[tuple[Item, float]] = []
    free = [(now, None)] * 4
    while True:
        now, done = min(free, key=lambda one: one[0])
        free.remove((now, done))
        if done is not None:
            shares.ended(done)
            shares.opened(done, 3 * done.guess_s)
        if (one := shares.following()) is None:
            break
        given.append(one)
        free.append((now + 3 * one[0].guess_s + one[1], one[0]))
    assert [item.instructions for item, _ in given] == sorted(
        (100 * (n + 1) for n in range(40)), reverse=True
    )
    middle = sorted(share for _, share in given)[20]
    assert middle > 15
    assert all(0.4 * middle < share < 1.6 * middle for _, share in given)
    assert all(1320 < end <= 1400.3 for end, _ in free)


def test_slow_openings_shorten_the_shares() -> None:
    quick, slow = (Shares(items(40), 4, time.time() + 100) for _ in range(2))
    for item in items(10):
        quick.opened(item, item.guess_s)
        slow.opened(item, 5 * item.guess_s)
    fast, late = quick.following(), slow.following()
    assert fast is not None
    assert late is not None
    assert late[1] < 0.7 * fast[1]


def test_a_kernel_is_run_until_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_run, "LEAST", 30)
    path = tmp_path / "softmax.cubin"
    path.write_bytes(softmax_cubin())
    said: list[dict[str, Any]] = []
    row = kernel_run.run(said.append, str(path), "softmax", 0.0, time.time() + 300, 10_000, 1, 0)
    made = sum(row[k] for k in ("mutants", "idle", "same_bytes", "repeated"))
    assert made == kernel_run.LEAST
    assert said[0]["mutants"] == 0
    assert row["mutants"] >= row["approved"] == row["equal"] + row["different"] > 0
    assert row["different"] == len(row["disagreements"]) == 0
    again = kernel_run.run(said.append, str(path), "softmax", 0.0, time.time() + 300, 10, 1, 0)
    assert again["mutants"] <= 10 < row["mutants"]


def test_a_result_on_the_way_is_whole(tmp_path: Path) -> None:
    results = Results(1, "python mutants_run.py", 0, 2, str(tmp_path / "out"))
    one, two = items(2)
    for item in (one, two):
        results.rows[item] = {
            "kernel": "k",
            "cubin": item.shown,
            "folder": 0,
            "mutants": 0,
            "left_out": "time",
        }
    first, _ = results.write(1.0)
    assert json.loads(first.read_text())["summary"]["left_out"] == {
        "0.cubin: k": "time",
        "1.cubin: k": "time",
    }
    results.rows[one] = {
        "kernel": "k", "cubin": one.shown, "folder": 0, "instructions": 9, "mutants": 7, "approved": 3,
        "equal": 2, "different": 1, "idle": 0, "same_bytes": 1, "repeated": 1, "planted": {"copies": 2},
        "kinds": {"swap": 7}, "disagreements": [{"number": 4, "edits": ["swap"], "why": "w", "where": "3"}],
    }  # fmt: skip
    second, summary = results.write(2.0)
    assert second == first
    assert summary == json.loads(second.read_text())["summary"]
    assert (summary["mutants"], summary["disagreements"], summary["approved_but_wrong"]) == (7, 1, None)
    assert (summary["planted_copies"], summary["planted_copies_proved"]) == (2, 0)
    assert summary["sources"] == {"folder 1": {"subfolders": 1, "kernels": 1, "mutants": 7}}
    assert summary["mutants_per_second"] == 3.5
    assert summary["left_out"] == {"1.cubin: k": "time"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mutants-run.json"]


def test_what_another_version_learnt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "learnt.json"
    rows = learning.merged([
        [["raw", "FADD", "0", "FMUL", "1", 5, 1]],
        [["raw", "FADD", "0", "FMUL", "1", 4, 1], ["war", "FADD", "0", "FMUL", "1", 2, 1]],
        [["raw", "FADD", "0", "FMUL", "1", 4, 2]],
    ])  # fmt: skip
    assert rows == [["raw", "FADD", "0", "FMUL", "1", 4, 3], ["war", "FADD", "0", "FMUL", "1", 2, 1]]
    learning.keep(path, rows)
    assert learning.kept(path) == rows
    monkeypatch.setattr(learning, "digest", lambda: "another")
    with pytest.raises(ValueError, match="another version of the second model"):
        learning.kept(path)
    with pytest.raises(ValueError, match="no file of learnt distances"):
        learning.kept(tmp_path / "none.json")


def test_the_script_learns_runs_and_writes(tmp_path: Path) -> None:
    folder = tmp_path / "cubins"
    folder.mkdir()
    (folder / "softmax.cubin").write_bytes(softmax_cubin())
    (folder / "again.cubin").write_bytes(softmax_cubin())
    (folder / "none.cubin").write_bytes(b"no cubin")

    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_benchmark("mutants_run", folder, "--workers", "1", *arguments)

    learnt = tmp_path / "learnt.json"
    done = script("--learn", str(learnt), "--seconds", "300")
    assert done.returncode == 0, done.stderr
    assert "from 1 of 1 kernels" in done.stdout
    arguments = ("--learnt", str(learnt), "--seconds", "300", "--most", "250", "--out", str(tmp_path))
    done = script(*arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "mutants-run.json").read_text())
    (row,) = found["rows"]
    assert row["cubin"] == "again.cubin"
    assert found["summary"]["mutants"] == row["mutants"] > 150
    assert found["summary"]["planted_copies"] > 0
    assert found["summary"]["seconds"] < 300
    assert script("--rebuild", "softmax", "3", "--out", str(tmp_path)).returncode == 0
    assert (tmp_path / "again-3.cubin").read_bytes() != softmax_cubin()
    (tmp_path / "empty").mkdir()
    done = run_benchmark("mutants_run", tmp_path / "empty")
    assert done.returncode == 2
    assert "there is no kernel for sm_90" in done.stderr
