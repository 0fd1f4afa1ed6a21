"""The runner of GPU sittings, with commands that need no GPU."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import sitting


def ran(tmp_path: Path, plan: str, gpus: int = 2, seconds: float = 60.0) -> tuple[int, dict[str, Any]]:
    (tmp_path / "plan.toml").write_text(plan)
    status = sitting.main([
        str(tmp_path / "plan.toml"), "--gpus", str(gpus), "--seconds", str(seconds), "--work",
        str(tmp_path / "work"), "--out", str(tmp_path / "out"),
    ])  # fmt: skip
    rows = json.loads((tmp_path / "work" / "sitting.json").read_text())
    return status, {row["name"]: row for row in rows}


def job(name: str, command: str, more: str = "", seconds: float = 30) -> str:
    return f'[[job]]\nname = "{name}"\ncommand = """{command}"""\nseconds = {seconds}\n{more}\n'


def test_jobs_get_a_gpu_and_a_folder_each_and_all_of_it_comes_back(tmp_path: Path) -> None:
    write = 'echo "$CUDA_VISIBLE_DEVICES" > "$OUT/gpu"; sleep 0.5'
    status, jobs = ran(tmp_path, job("a", write) + job("b", write) + job("c", write, "gpus = 0"))
    assert status == 0 and {j["state"] for j in jobs.values()} == {"ended"}
    with tarfile.open(tmp_path / "out" / "sitting.tgz") as archive:
        texts = {n: archive.extractfile(f"{n}/gpu").read().decode().strip() for n in "abc"}  # type: ignore[union-attr]
        assert "sitting.json" in archive.getnames() and "a/log.txt" in archive.getnames()
    assert sorted(texts[n] for n in "ab") == ["0", "1"] and texts["c"] == ""


def test_a_job_for_all_gpus_runs_alone_and_order_is_kept(tmp_path: Path) -> None:
    plan = job("first", "sleep 0.6") + job("whole", "sleep 0.6", 'gpus = "all"')
    plan += job("last", "true", 'after = ["whole"]') + job("short", "sleep 0.1")
    status, jobs = ran(tmp_path, plan)
    assert status == 0 and jobs["whole"]["gpu"] == "0,1"
    end = {name: row["began"] + row["took"] for name, row in jobs.items()}
    assert jobs["whole"]["began"] >= end["first"]
    assert min(jobs["last"]["began"], jobs["short"]["began"]) >= end["whole"]


def test_a_job_beyond_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    hangs = "trap '' TERM; (trap '' TERM; sleep 600; echo never > $OUT/never) & echo $! > $OUT/child; wait"
    sitting_grace, sitting.GRACE_S = sitting.GRACE_S, 0.5
    try:
        status, jobs = ran(tmp_path, job("hangs", hangs, seconds=4) + job("fails", "exit 3"))
    finally:
        sitting.GRACE_S = sitting_grace
    assert status == 1
    assert jobs["hangs"]["state"] == "stopped" and jobs["hangs"]["took"] < 60
    assert (jobs["fails"]["state"], jobs["fails"]["status"]) == ("failed", 3)
    child = Path("/proc", (tmp_path / "work" / "hangs" / "child").read_text().strip(), "status")
    until = time.monotonic() + 20
    while (alive := _alive(child)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive


def _alive(status: Path) -> bool:
    try:
        return "zombie" not in status.read_text()
    except OSError:
        return False


def test_nothing_begins_that_cannot_end(tmp_path: Path) -> None:
    plan = job("long", "true", seconds=500) + job("some", "true", "least = 1", seconds=500)
    _, jobs = ran(tmp_path, plan, seconds=30)
    assert jobs["long"]["state"] == "no time left" and jobs["some"]["state"] == "ended"


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("[[job]]\nname = 1", "plan.toml"),
        (job("a", "true") * 2, "name of its own"),
        (job("a", "true", 'after = ["b"]'), "no jobs"),
        (job("a", "true", "gpus = 3"), "0, 1 or 'all'"),
        ("nonsense", "plan.toml"),
    ],
)
def test_a_plan_that_makes_no_sense(tmp_path: Path, plan: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ran(tmp_path, plan)


def test_what_is_too_large_to_travel_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sitting, "PACKED_BYTES", 20_000)
    make = "head -c 100000 /dev/urandom > $OUT/large; echo small > $OUT/small"
    ran(tmp_path, job("a", make))
    with tarfile.open(tmp_path / "out" / "sitting.tgz") as archive:
        assert "a/small" in archive.getnames() and "a/large" not in archive.getnames()


@pytest.mark.parametrize(
    "plan", sorted((Path(sitting.__file__).parent / "plans").glob("*.toml")), ids=lambda p: p.stem
)
def test_committed_plans_can_be_read_and_their_programs_exist(plan: Path) -> None:
    for one in sitting.read(plan):
        found = re.findall(r"(?:benchmarks|examples|tests)/[\w/.-]+", one.command)
        assert found or "python -c" in one.command
        assert all((sitting.ROOT / path).exists() for path in found), one.name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_sitting_that_is_stopped_takes_its_jobs_along_and_keeps_what_they_wrote(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(job("long", "echo $$ > $OUT/pid; sleep 600", seconds=900))
    command = [sys.executable, sitting.__file__, "plan.toml", "--gpus", "1", "--seconds", "1000"]
    process = subprocess.Popen([*command, "--work", "work", "--out", "out"], cwd=tmp_path)
    pid = tmp_path / "work" / "long" / "pid"
    until = time.monotonic() + 60
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(timeout=60) != 0
    child = Path("/proc", pid.read_text().strip(), "status")
    while (alive := _alive(child)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive
    with tarfile.open(tmp_path / "out" / "sitting.tgz") as archive:
        assert {"long/pid", "sitting.json"} <= set(archive.getnames())


def test_a_missing_plan_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, sitting.__file__, "none.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "none.toml" in done.stderr
    assert len(done.stderr.splitlines()) == 1
