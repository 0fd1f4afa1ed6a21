"""The process that a cluster's worker asks for one shape after another: real ones, on the modelled clock."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from sassafras.core import DeviceError
from sassafras.gemm.bench import worker_client
from sassafras.gemm.bench.options import Options

PLAN = {"mode": "select", "options": asdict(Options(configs=12, finalists=2)), "cache": None, "dry": True}
QUESTION = {"shape": "64x64x64"}


@pytest.fixture
def child() -> Iterator[worker_client.WorkerClient]:
    made = worker_client.WorkerClient(PLAN)
    yield made
    made.close()


def test_one_process_serves_shape_after_shape(child: worker_client.WorkerClient) -> None:
    first = child.ask(QUESTION)
    process = child._process
    second = child.ask({"shape": "64x128x64"})
    assert child._process is process and child.deaths == 0
    assert first["shape"] == "64x64x64" and first["ours"] in first["rungs"]
    assert second["shape"] == "64x128x64" and child.header["modelled"] is True


def test_a_failure_is_a_record() -> None:
    child = worker_client.WorkerClient({**PLAN, "mode": "measure", "process": 0, "how": "offline"})
    try:
        failed = child.ask(QUESTION)
        assert "nothing was selected" in failed["error"] and failed["shape"] == "64x64x64"
        assert child.deaths == 0 and "nothing was selected" in child.ask(QUESTION)["error"]
    finally:
        child.close()


def test_a_dead_process_costs_one_shape(child: worker_client.WorkerClient) -> None:
    child.ask(QUESTION)
    assert child._process is not None
    child._process.send_signal(signal.SIGSTOP)  # it shall not answer before it dies
    real = worker_client.WorkerClient._answer

    def killed(self: worker_client.WorkerClient, stall: float) -> dict[str, object] | None:
        assert self._process is not None
        self._process.kill()
        return real(self, stall)

    feed_answer, worker_client.WorkerClient._answer = worker_client.WorkerClient._answer, killed  # type: ignore[method-assign]
    try:
        lost = child.ask(QUESTION)
    finally:
        worker_client.WorkerClient._answer = feed_answer  # type: ignore[method-assign]
    assert lost == {"shape": "64x64x64", "error": "the worker ended with status -9"} and child.deaths == 1
    assert "error" not in child.ask(QUESTION)


def test_a_hanging_process_is_killed(
    child: worker_client.WorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.ask(QUESTION)
    assert child._process is not None
    child._process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(worker_client, "STALL", 0.5)
    assert child.ask(QUESTION)["error"] == "the worker ended with status -9"


def test_a_wait_can_be_stopped() -> None:
    child = worker_client.WorkerClient(PLAN, stop=lambda: True)
    with pytest.raises(worker_client.Stopped):
        child.ask(QUESTION)
    assert child._process is None


def test_why_it_does_not_start() -> None:
    child = worker_client.WorkerClient({**PLAN, "options": {}, "mode": "select", "dry": False})
    with pytest.raises(DeviceError, match=r"does not start: \w+"):
        child.ask(QUESTION)


_PARENT = """
import sys
from sassafras.gemm.bench import worker_client
child = worker_client.WorkerClient({plan!r})
child.ask({question!r})
print(child._process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(plan=PLAN, question=QUESTION)],
        env=worker_client.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None and parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until = time.monotonic() + 60
    while time.monotonic() < until and _alive(pid):
        time.sleep(0.1)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    """Whether the process still runs (a zombie that nobody waits for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
