"""A fork server: a process that has imported what workers need, and starts each of them in milliseconds.

A forked worker is as fresh as one that was started: the server imports, and does nothing else. CUDA cannot be
used in a process whose parent has initialised it, so the server never does.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from sassafras.core import DeviceError

from .frames import readable
from .worker_process import package_path

#: seconds that the imports may take
PRELOAD_SECONDS = 120.0
_RUNNING, _LONGEST = b"running", 64
#: that one request may bring
MOST_DESCRIPTORS = 16


class ForkServer:
    """The parent's side. The process starts at once; imports go on while the caller does other things.

    Subclasses start it by `_start`, with a `serve` of theirs.

    Args:
        module: what workers run: ``preload()`` imports, and leaves neither threads nor CUDA state; ``main()``
            serves the descriptors in ``sys.argv`` and returns the exit status (see `worker_loop.serve`).
        environment: further environment variables.

    Raises:
        DeviceError: the process cannot be started.
    """

    def __init__(self, module: str, *, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-P", "-m", __name__, module]
        self._start(module, command, {**os.environ, **package_path(), **(environment or {})})

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: str | None = None
    ) -> None:
        """Start the process; its last argument names the descriptor that it is asked by (see `serve`)."""
        self._module, self._owner = name, os.getpid()
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PRELOAD_SECONDS)
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=environment,
                cwd=folder,
            )
        except OSError as error:
            self._socket.close()
            self._errors.close()
            raise DeviceError(f"the fork server cannot be started: {error}") from error
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        """True while it can fork, for the process that started it."""
        return self._owner == os.getpid() and self._socket.fileno() >= 0 and self._process.poll() is None

    def fork(self, descriptors: Sequence[int]) -> ForkedProcess:
        """A worker with these descriptors: ``main``'s (to read requests, to write answers), and to print to.

        Waits for the imports to end. Raises DeviceError where the server is gone.
        """
        try:
            return ForkedProcess(self, int(self._ask(b"fork", descriptors)))
        except (OSError, ValueError) as error:
            self.close()
            raise DeviceError(f"the fork server of {self._module} is gone: {error}") from error

    def status(self, pid: int) -> int | None:
        """A worker's exit status as `subprocess` has it, None while it runs. Workers end with the server."""
        try:
            answer = self._ask(str(pid).encode())
        except OSError:
            return -signal.SIGKILL
        return None if answer == _RUNNING else int(answer or -signal.SIGKILL)

    def _ask(self, message: bytes, descriptors: Sequence[int] = ()) -> bytes:
        with self._lock:
            socket.send_fds(self._socket, [message], list(descriptors))
            return self._socket.recv(_LONGEST)

    def close(self) -> None:
        """End it, and with it its workers; safe to call twice."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.2)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class ForkedProcess:
    """A worker of a fork server, with the part of `subprocess.Popen` that `WorkerProcess` uses."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """See `subprocess.Popen.poll`. The server keeps the process id taken until this was asked."""
        if self.returncode is None:
            self.returncode = self._server.status(self.pid)
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        """See `subprocess.Popen.wait`."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(0.002)
        return status

    def kill(self) -> None:
        """See `subprocess.Popen.kill`."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def serve(
    load: Callable[[], Any], descriptor: int, fork: Callable[[], int] = os.fork, idle_s: float = math.inf
) -> int:
    """The server's side: fork when asked, say how workers ended, until the parent is gone.

    Args:
        load: gives what has ``preload`` and ``main`` (see `ForkServer`).
        fork: how workers are made.
        idle_s: seconds without a request after which the server ends.
    """
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent's business, as in `worker_loop.serve`
    control = socket.socket(fileno=descriptor)
    worker = load()
    worker.preload()
    gc.freeze()  # so that a worker's first collection does not copy every page
    while True:
        asked = time.monotonic()
        while not readable(descriptor, 1.0):
            # a process that the parent forked may hold the other end of the socket
            if os.getppid() != parent or time.monotonic() - asked > idle_s:
                return 0
        message, descriptors, _, _ = socket.recv_fds(control, _LONGEST, MOST_DESCRIPTORS)
        if not message:
            return 0
        if message != b"fork":
            pid, status = os.waitpid(int(message), os.WNOHANG)
            answer = str(os.waitstatus_to_exitcode(status)).encode() if pid else _RUNNING
        elif pid := fork():
            answer = str(pid).encode()
        else:
            control.close()
            _become(worker, descriptors)
        for inherited in descriptors:
            os.close(inherited)
        try:
            control.send(answer)
        except OSError:
            return 0


def _become(worker: Any, descriptors: Sequence[int]) -> None:
    """Run the worker in this forked process; does not return."""
    status = 1
    try:
        *given, errors = descriptors
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        sys.argv = [getattr(worker, "__name__", "worker"), *map(str, (*given, os.getppid()))]
        status = worker.main()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)  # nothing of the server's is this process's to end


if __name__ == "__main__":
    sys.exit(serve(partial(import_module, sys.argv[1]), int(sys.argv[2])))
