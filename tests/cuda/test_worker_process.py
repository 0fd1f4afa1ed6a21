"""Workers as real processes: answers, hangs, deaths, memory, noise, and the clear error without a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sassafras.core import DeviceError
from sassafras.cuda.fork_server import ForkServer
from sassafras.cuda.worker_process import (
    WorkerDied,
    WorkerProcess,
    WorkerTimeout,
    WorkerTooLarge,
    package_path,
)
from sassafras.evaluate.gpu.protocol import WORKER
from tests.processes import gone

#: the module that sleeps, dies and so on when asked, and where it is
FAULTY = "faulty_worker"
FAULTS = {"PYTHONPATH": os.pathsep.join([package_path()["PYTHONPATH"], str(Path(__file__).parent)])}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    forks = ForkServer(FAULTY, environment=FAULTS)
    yield forks
    forks.close()


@pytest.fixture(params=["started", "forked"])
def worker(request: pytest.FixtureRequest, server: ForkServer) -> Iterator[WorkerProcess]:
    """A worker in a new interpreter, and one of a fork server: no difference in how they live and die."""
    forks = server if request.param == "forked" else None
    process = WorkerProcess(FAULTY, environment=FAULTS, server=forks)
    yield process
    process.kill()


def test_answers_come_from_another_process(worker: WorkerProcess) -> None:
    answer = worker.ask("ping", 30)
    assert answer["pid"] == worker.pid != os.getpid()


def test_requests_are_answered_in_order(worker: WorkerProcess) -> None:
    worker.send("sleep", seconds=0.05)
    worker.send("ping")
    assert "pid" not in worker.receive(30)
    assert worker.receive(30)["pid"] == worker.pid


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_stops_the_parent_ends_no_evaluation(worker: WorkerProcess, number: int) -> None:
    pid = worker.ask("ping", 30)["pid"]
    os.kill(pid, number)
    assert worker.ask("ping", 30)["pid"] == pid


def test_blobs_arrive_whole_and_noise_on_stdout_does_no_harm(worker: WorkerProcess) -> None:
    blobs = [b"", b"\0\xff" * 150_000, b"x"]
    answer = worker.ask("chatter", 30, blobs)
    assert answer["blob_bytes"] == [0, 300_000, 1]
    assert worker.ask("ping", 30)["pid"] == worker.pid
    assert "noise on standard output" in worker.last_words()


def test_a_hang_is_killed_soon_after_the_limit(worker: WorkerProcess) -> None:
    worker.ask("ping", 30)
    begin = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"0\.5 s"):
        worker.ask("sleep", 0.5, seconds=600)
    assert time.monotonic() - begin < 30  # a second on an idle machine; it would sleep for ten minutes
    assert not worker.alive
    assert gone(worker.pid)


def test_a_hang_says_where_it_stands(worker: WorkerProcess) -> None:
    worker.ask("ping", 30)
    with pytest.raises(WorkerTimeout) as caught:
        worker.ask("sleep", 0.5, seconds=600)
    assert caught.value.where is not None and caught.value.where.startswith("sleep (faulty_worker.py, line ")
    assert "called by serve (worker_loop.py, line " in caught.value.where


def test_a_stopped_worker_is_said_to_be_stopped(worker: WorkerProcess) -> None:
    os.kill(worker.ask("ping", 30)["pid"], signal.SIGSTOP)
    with pytest.raises(WorkerTimeout) as caught:
        worker.ask("ping", 0.2)
    assert caught.value.where == "its process is stopped" and gone(worker.pid)


@pytest.mark.parametrize(("do", "words"), [("die", "ended by signal 9"), ("leave", "ended with status 3")])
def test_a_death_is_reported_with_its_cause(worker: WorkerProcess, do: str, words: str) -> None:
    with pytest.raises(WorkerDied, match=words) as caught:
        worker.ask(do, 30)
    if do == "die":
        assert caught.value.where == "last words of the worker"
    with pytest.raises(WorkerDied):
        worker.ask("ping", 30)


def test_a_segmentation_fault_costs_only_the_worker(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerDied, match="signal 11"):
        worker.ask("die", 30, signal=int(signal.SIGSEGV))
    fresh = WorkerProcess(FAULTY, environment=FAULTS)
    try:
        assert fresh.ask("ping", 30)["pid"] == fresh.pid
    finally:
        fresh.close()


def test_too_much_host_memory_is_killed() -> None:
    worker = WorkerProcess(FAULTY, memory_bytes=256 << 20, environment=FAULTS)
    try:
        assert 0 < worker.resident_bytes() < 256 << 20
        with pytest.raises(WorkerTooLarge, match="256 MiB are allowed"):
            worker.ask("eat", 60, mebibytes=1024)
        assert gone(worker.pid)
    finally:
        worker.kill()


def test_an_unexpected_exception_is_an_error_with_its_place(worker: WorkerProcess) -> None:
    with pytest.raises(DeviceError, match="ValueError: planted") as caught:
        worker.ask("fail", 30)
    assert not isinstance(caught.value, WorkerDied)
    assert caught.value.sticky
    assert worker.ask("ping", 30)["pid"] == worker.pid


def test_unknown_requests_are_refused() -> None:
    worker = WorkerProcess(WORKER)
    try:
        with pytest.raises(DeviceError, match="does not know the request 'die'"):
            worker.ask("die", 30)
        with pytest.raises(DeviceError, match="no open workload"):
            worker.ask("run", 30, [b""], kernel={
                "name": "k", "arch": "sm_90a", "threads": 32, "shared_bytes": 0, "cluster": [1, 1, 1],
                "hidden_args": 0, "scratch_bytes": 0, "parameters": None,
            }, pairs=1, stop_above=1.0)  # fmt: skip
    finally:
        worker.close()


def test_closing_twice_is_safe_and_ends_the_process(worker: WorkerProcess) -> None:
    worker.ask("ping", 30)
    worker.close()
    worker.close()
    worker.kill()
    assert gone(worker.pid)


def test_a_program_with_a_thousand_open_files_has_workers() -> None:
    """As servers are, which search on call; `select` knows no descriptor from 1024 up."""
    program = (
        "import os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\n"
        "opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]\n"
        "from sassafras.cuda.fork_server import ForkServer\n"
        "from sassafras.cuda.worker_process import WorkerProcess\n"
        f"server = ForkServer({FAULTY!r}, environment={FAULTS!r})\n"
        "for forks in (None, server):\n"
        f"    w = WorkerProcess({FAULTY!r}, environment={FAULTS!r}, server=forks)\n"
        "    assert w.ask('ping', 30)['pid'] == w.pid\n"
        "    w.close()\n"
        "server.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_worker_follows_its_parent_into_death() -> None:
    """Also when it is busy and does not read its pipe (a hanging kernel)."""
    program = (
        "import os, signal, sys\n"
        "from sassafras.cuda.worker_process import WorkerProcess\n"
        f"w = WorkerProcess({FAULTY!r}, environment={FAULTS!r})\n"
        "w.ask('ping', 30)\n"
        "w.send('sleep', seconds=600)\n"
        "print(w.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert gone(int(done.stdout), within=5.0)


def test_without_a_gpu_opening_says_what_is_missing(worker: WorkerProcess) -> None:
    from sassafras.cuda.environment import available
    from sassafras.evaluate.gpu import CudaDevice

    usable, reason = available()
    if usable:
        pytest.skip(f"there is a GPU: {reason}")
    assert reason
    with pytest.raises(DeviceError, match="no usable GPU") as caught:
        CudaDevice()
    assert "--device model" in str(caught.value)
    with pytest.raises(DeviceError, match=r"CUDA driver|GPU|torch"):
        worker.ask("open", 60, [b""], source="suite:softmax", case="x", baseline={}, cold=None)


def test_environment_never_fails_and_leaves_out_what_is_unknown() -> None:
    from sassafras.cuda.environment import environment

    found = environment()
    assert {"gpu", "driver", "cuda", "ptxas", "triton", "torch", "cublas", "clocks_mhz"} <= set(found)
    assert found["numpy"]
    assert "cuda.bindings" not in sys.modules or found["gpu"]
