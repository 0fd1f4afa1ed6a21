"""The process that is asked for one shape after another: real ones, on the modelled clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from sassafras.core import DeviceError
from sassafras.gemm.bench import worker_client
from sassafras.gemm.bench.options import Options
from sassafras.gemm.bench.worker_client import WorkerClient
from tests.processes import alive

PLAN = {"mode": "select", "options": asdict(Options(configs=12, finalists=2)), "cache": None, "dry": True}
QUESTION = {"shape": "64x64x64"}


@pytest.fixture
def child() -> Iterator[WorkerClient]:
    made = WorkerClient(PLAN)
    yield made
    made.close()


def test_one_process_serves_shape_after_shape(child: WorkerClient) -> None:
    first = child.ask(QUESTION)
    process = child._process
    second = child.ask({"shape": "64x128x64"})
    assert child._process is process and child.deaths == 0
    assert first["shape"] == "64x64x64" and first["ours"] in [given for given, _, _ in first["rungs"]]
    assert second["shape"] == "64x128x64" and child.header["modelled"] is True


def test_a_failure_is_a_record() -> None:
    child = WorkerClient({**PLAN, "mode": "measure", "process": 0, "how": "offline"})
    try:
        failed = child.ask(QUESTION)
        assert "nothing was selected" in failed["error"] and failed["shape"] == "64x64x64"
        assert child.deaths == 0 and "nothing was selected" in child.ask(QUESTION)["error"]
    finally:
        child.close()


def test_a_process_killed_from_outside_costs_one_shape(child: WorkerClient) -> None:
    child.ask(QUESTION)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)  # it shall not answer before it dies
    killer = threading.Timer(0.3, os.kill, (child.pid, signal.SIGKILL))
    killer.start()
    lost = child.ask(QUESTION)
    killer.join()
    assert lost.pop("band") == "<1e8" and lost.pop("lost")
    assert lost == {"shape": "64x64x64", "error": "the worker was ended by signal 9"}
    assert child.deaths == 1 and "error" not in child.ask(QUESTION)


def test_a_hanging_process_is_killed(child: WorkerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    child.ask(QUESTION)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    monkeypatch.setattr(worker_client, "STALL", 0.5)
    lost = child.ask(QUESTION)
    assert lost["error"] == "its process is stopped: no answer within 0.5 s" and lost["lost"]
    assert not alive(child.pid)


def test_a_lost_context_ends_the_process(child: WorkerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is poisoned for all that comes after; the next question starts another process."""
    record = child.ask(QUESTION)
    pid, process = child.pid, child._process
    assert pid is not None and process is not None
    monkeypatch.setattr(process, "receive", lambda *args: {"record": {**record, "error": "x", "lost": True}})
    assert child.ask(QUESTION)["lost"] and child.deaths == 1 and not alive(pid)
    monkeypatch.undo()
    assert "error" not in child.ask(QUESTION) and child.pid != pid


def test_why_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    child = WorkerClient({**PLAN, "options": {}, "mode": "select", "dry": False})
    with pytest.raises(DeviceError, match=r"does not start: \w+"):
        child.ask(QUESTION)
    monkeypatch.setattr(worker_client, "WORKER", "sassafras.nothing")
    with pytest.raises(DeviceError, match="does not start: the worker ended with status 1") as caught:
        child.ask(QUESTION)
    assert "No module named sassafras.nothing" in str(caught.value) and child.pid is None


_PARENT = """
import sys
from sassafras.gemm.bench.worker_client import WorkerClient
child = WorkerClient({plan!r})
child.ask({question!r})
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(plan=PLAN, question=QUESTION)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None and parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until = time.monotonic() + 60
    while time.monotonic() < until and alive(pid):
        time.sleep(0.1)
    assert not alive(pid)
