"""Workers of a fork server: fresh processes of one import, which end as started ones do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sassafras.core import DeviceError
from sassafras.cuda.fork_server import ForkServer
from sassafras.cuda.worker_process import WorkerDied, WorkerProcess
from sassafras.evaluate.gpu.protocol import WORKER
from tests.cuda.test_worker_process import FAULTS, FAULTY
from tests.processes import gone


@pytest.fixture
def server() -> Iterator[ForkServer]:
    forks = ForkServer(FAULTY, environment=FAULTS)
    yield forks
    forks.close()


def forked(server: ForkServer) -> WorkerProcess:
    return WorkerProcess(FAULTY, server=server)


def test_each_worker_is_a_process_of_its_own_and_imports_once(server: ForkServer) -> None:
    workers = [forked(server) for _ in range(5)]
    answers = [worker.ask("preloaded", 30) for worker in workers]
    assert len({worker.pid for worker in workers}) == 5
    assert {answer["by"] for answer in answers} == {str(answer["parent"]) for answer in answers}
    assert len({answer["by"] for answer in answers}) == 1
    begin = time.monotonic()
    forked(server).kill()
    assert time.monotonic() - begin < 1.0  # an interpreter and its imports take longer
    for worker in workers:
        worker.signal_kill()
    assert all(gone(worker.pid) for worker in workers)


def test_workers_end_with_their_server_and_that_is_a_death(server: ForkServer) -> None:
    worker = forked(server)
    worker.ask("ping", 30)
    worker.send("sleep", seconds=600)
    server.close()
    assert not server.alive
    with pytest.raises(WorkerDied, match="signal 9"):
        worker.receive(30)
    assert gone(worker.pid)
    with pytest.raises(DeviceError, match="fork server"):
        forked(server)


def test_a_killed_server_is_an_error_and_no_hang(server: ForkServer) -> None:
    forked(server).kill()
    server._process.send_signal(signal.SIGKILL)
    server._process.wait()
    with pytest.raises(DeviceError, match="is gone"):
        forked(server)
    assert not server.alive


def test_a_server_and_its_workers_follow_the_parent_into_death() -> None:
    program = (
        "import os, signal\n"
        "from sassafras.cuda.fork_server import ForkServer\n"
        "from sassafras.cuda.worker_process import WorkerProcess\n"
        f"server = ForkServer({FAULTY!r}, environment={FAULTS!r})\n"
        f"w = WorkerProcess({FAULTY!r}, server=server)\n"
        "w.ask('ping', 30)\n"
        "w.send('sleep', seconds=600)\n"
        "print(server._process.pid, w.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert all(gone(int(pid), within=5.0) for pid in done.stdout.split())


def test_what_stops_the_parent_does_not_end_the_server(server: ForkServer) -> None:
    forked(server).kill()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(server._process.pid, number)
    assert forked(server).ask("ping", 30)


def test_the_gpu_workers_server_imports_torch_and_touches_no_gpu() -> None:
    """CUDA that a server has initialised would be unusable in all of its workers."""
    program = (
        "import ctypes, os, sys\n"
        f"from {WORKER} import preload\n"
        "preload()\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "mapped = open('/proc/self/maps').read()\n"
        "count = ctypes.c_int()\n"
        "if 'libcuda.so' in mapped:\n"
        "    assert ctypes.CDLL('libcuda.so.1').cuDeviceGetCount(ctypes.byref(count)) == 3\n"
        "print('torch' in sys.modules, 'triton' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "True"], done.stderr
