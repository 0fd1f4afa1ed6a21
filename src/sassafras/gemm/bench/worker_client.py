"""A GPU process that is asked for one shape after another, over a pipe, and may die or hang.

The same work as `pool.work`, for whoever learns the next shape only when the last one is done (a worker of a
cluster). The process ends by itself when its parent is gone, even from the middle of a kernel that hangs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError

#: seconds without an answer after which a process hangs
STALL = 90.0
#: of a process whose context was lost
LOST = 3
_TICK = 0.2


class Stopped(Exception):
    """The parent was asked to stop while it waited."""


class WorkerClient:
    """``python -m sassafras.gemm.bench.worker_client``: started when first asked, and again after it died.

    Args:
        plan: what all questions share (mode, options, ...; see `worker`), JSON-able.
        stop: asked while waiting; True ends the process and the wait.
        stall: seconds without an answer after which it is killed, by default `STALL`.
    """

    def __init__(
        self, plan: dict[str, Any], stop: Callable[[], bool] = lambda: False, *, stall: float | None = None
    ) -> None:
        self.plan, self.stop, self.stall = plan, stop, stall
        #: the conditions that its figures belong to, once it runs
        self.header: dict[str, Any] = {}
        #: processes that died or were killed
        self.deaths = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The record of one shape (``question["shape"]``); it carries ``error`` where the process died.

        Raises:
            DeviceError: the process cannot start, with its own words.
            Stopped: `stop` said so.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send_bytes(json.dumps(question).encode())
            found = self._answer(self.stall or STALL)
        except (EOFError, OSError):
            found = None
        if found is not None:
            return found
        status = self._end()
        self.deaths += 1
        return {"shape": question["shape"], "error": f"the worker ended with status {status}"}

    def _start(self) -> None:
        self.close()
        self._pipe, theirs = Pipe()
        handle = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sassafras.gemm.bench.worker_client", str(handle)],
            pass_fds=(handle,),
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
        theirs.close()
        try:
            self._pipe.send_bytes(json.dumps(self.plan).encode())
            first = self._answer(STALL)
        except (EOFError, OSError):
            first = None
        if first is None or "failed" in first:
            status = self._end()
            why = first["failed"] if first else f"it ended with status {status} before it was ready"
            raise DeviceError(f"the process that measures does not start: {why}", where=self.plan["mode"])
        self.header = first["header"]

    def _answer(self, stall: float) -> dict[str, Any] | None:
        """What the process says next; None when it said nothing for too long."""
        assert self._pipe is not None
        since = time.monotonic()
        while time.monotonic() - since < stall:
            if self._pipe.poll(_TICK):
                answer: dict[str, Any] = json.loads(self._pipe.recv_bytes())
                return answer
            if self.stop():
                self.close()
                raise Stopped
        return None

    def _end(self) -> int:
        assert self._process is not None
        try:
            self._process.wait(timeout=2.0)  # its pipe closes a little before it is gone
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = self._process.wait()
        self.close()
        return status

    def close(self) -> None:
        """End the process. Safe to call twice."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def environment() -> dict[str, str]:
    """This process's, with the package that it runs importable."""
    root = str(Path(__file__).resolve().parents[3])
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": root + (os.pathsep + inherited if inherited else "")}


def main(handle: int) -> int:
    """Serve one parent: its plan first, then a question at a time, until it closes the pipe."""
    from sassafras.core import SassafrasError

    from .worker import ShapeWorker

    _end_with_parent()
    with Connection(handle) as pipe:

        def say(what: dict[str, Any]) -> None:
            pipe.send_bytes(json.dumps(what, default=str).encode())

        try:
            station = ShapeWorker(json.loads(pipe.recv_bytes()))
        except (SassafrasError, ImportError, OSError, RuntimeError) as error:
            say({"failed": f"{type(error).__name__}: {error}"})
            return 1
        say({"header": station.header})
        while True:
            try:
                question = json.loads(pipe.recv_bytes())
            except EOFError:
                return 0
            record, lost = station.answer(question)
            say(record)
            if lost:
                return LOST


def _end_with_parent() -> None:
    """Leave at once when the parent is gone: a kernel that hangs would hold the GPU for ever."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(4)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
