"""The parent's side of a worker: start, ask with a hard time limit, watch its memory, kill, reap."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sassafras.core import DeviceError, Verdict
from sassafras.cuda.frames import ASK_WHERE, read_frame, readable, write_frame

if TYPE_CHECKING:
    from sassafras.cuda.fork_server import ForkServer

#: how often the parent looks at the worker's memory while it waits
WATCH_SECONDS = 0.05
#: how long a worker may take to say where it stands before it is killed
WHERE_SECONDS = 0.3
_FRAME = re.compile(r'File "[^"]*?([^"/]+)", line (\d+) in (\S+)')
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class WorkerDied(DeviceError):
    """The worker ended before it answered.

    Attributes:
        signal: the signal that ended it, 0 for none.
    """

    signal = 0
    sticky, verdict = True, Verdict.CRASHED


class WorkerTimeout(DeviceError):
    """The worker did not answer within the limit; it was killed."""

    sticky, verdict = True, Verdict.TIMED_OUT


class WorkerTooLarge(DeviceError):
    """The worker held more host memory than allowed; it was killed."""

    sticky, verdict = True, Verdict.OUT_OF_RESOURCES


class Stopped(Exception):
    """The caller was asked to stop while it waited; the worker was killed."""


class WorkerProcess:
    """A worker process and its two pipes.

    Args:
        module: what the process runs.
        memory_bytes: host memory (resident set) that it may hold; RLIMIT_AS is of no use with CUDA, which
            reserves address space by the hundred GiB.
        environment: further environment variables.
        server: forks the worker, which its `module` and `environment` make; None: a new interpreter.
    """

    def __init__(
        self,
        module: str,
        *,
        memory_bytes: int = 32 << 30,
        environment: Mapping[str, str] | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self.memory_bytes = memory_bytes
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in kill)
        try:
            if server is not None:
                self._process: Any = server.fork((to_read, to_write, self._errors.fileno()))
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(to_read), str(to_write), str(os.getpid())],
                    pass_fds=(to_read, to_write),
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    env={**os.environ, **package_path(), **(environment or {})},
                )
        except (OSError, DeviceError) as error:
            os.close(self._write)
            os.close(self._read)
            self._errors.close()
            raise DeviceError(f"the worker process cannot be started: {error}") from error
        finally:
            os.close(to_read)
            os.close(to_write)
        self._next_id = 0
        self._sent: list[int] = []
        self._dead = False

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        """True while it runs and was not killed by us."""
        return not self._dead and self._process.poll() is None

    def send(self, do: str, blobs: Sequence[bytes] = (), /, **fields: Any) -> None:
        """Send a request; answers come in the order of requests. Raises WorkerDied."""
        self._next_id += 1
        try:
            write_frame(self._write, {"do": do, "id": self._next_id, **fields}, blobs)
        except OSError as error:
            raise self._died() from error
        self._sent.append(self._next_id)

    def receive(
        self,
        seconds: float,
        stop: Callable[[], bool] = lambda: False,
        hear: Callable[[dict[str, Any]], None] = lambda news: None,
    ) -> dict[str, Any]:
        """The answer to the oldest unanswered request.

        Args:
            stop: asked while waiting; True kills the worker and ends the wait.
            hear: called with the news (`worker_loop.tell`) that come before the answer.

        Raises:
            Stopped: `stop` said so.
            WorkerTimeout, WorkerTooLarge: it was killed for that.
            WorkerDied: it ended by itself.
            DeviceError: it answered with an error.
        """
        if not self._sent:
            raise DeviceError("no request is pending")
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if readable(self._read, min(left, WATCH_SECONDS)):
                if (frame := read_frame(self._read)) is None:
                    raise self._died()
                answer, _ = frame
                if "news" not in answer:
                    break
                hear(answer["news"])
            if left <= 0:
                where = self._standing()
                self.kill()
                raise WorkerTimeout(f"no answer within {seconds:g} s", where=where)
            if stop():
                self.kill()
                raise Stopped
            if (held := self.resident_bytes()) > self.memory_bytes:
                self.kill()
                raise WorkerTooLarge(
                    f"the worker held {held >> 20} MiB of host memory, "
                    f"{self.memory_bytes >> 20} MiB are allowed"
                )
        expected = self._sent.pop(0)
        if answer.get("id") != expected:
            self.kill()
            raise WorkerDied(f"the worker answered request {answer.get('id')!r} instead of {expected}")
        if "error" in answer:
            raise DeviceError(
                answer["what"],
                where=answer["where"],
                hint=answer["hint"],
                sticky=answer["sticky"],
                verdict=Verdict(said) if (said := answer.get("verdict")) else None,
            )
        return answer

    def ask(self, do: str, seconds: float, blobs: Sequence[bytes] = (), /, **fields: Any) -> dict[str, Any]:
        """`send`, then `receive`."""
        self.send(do, blobs, **fields)
        return self.receive(seconds)

    def resident_bytes(self) -> int:
        """Host memory that it holds now; 0 where the system does not tell."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError, ValueError):
            return 0

    def last_words(self, limit: int = 2000) -> str:
        """The end of what it printed."""
        try:
            size = os.fstat(self._errors.fileno()).st_size
            return (
                os.pread(self._errors.fileno(), limit, max(0, size - limit)).decode(errors="replace").strip()
            )
        except (OSError, ValueError):
            return ""

    def _standing(self) -> str | None:
        """The functions that a worker which does not answer is in, innermost first; None if it cannot say."""
        begin = os.fstat(self._errors.fileno()).st_size
        with contextlib.suppress(OSError):
            if Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
                return "its process is stopped"
            os.kill(self.pid, ASK_WHERE)
        text, before = b"", None
        deadline = time.monotonic() + WHERE_SECONDS
        while (not text or text != before) and time.monotonic() < deadline:
            time.sleep(0.02)
            before, text = text, os.pread(self._errors.fileno(), 1 << 16, begin)
        main_thread = text.decode(errors="replace").rpartition("hread 0x")[2]  # the last one printed
        frames = _FRAME.findall(main_thread)[:6]
        return ", called by ".join(f"{name} ({file}, line {line})" for file, line, name in frames) or None

    def signal_kill(self) -> None:
        """SIGKILL without a wait; `kill` is still to be called. Lets several workers end at a time."""
        if not self._dead and self._process.poll() is None:
            self._process.kill()

    def kill(self, seconds: float = 0.3) -> None:
        """SIGKILL at once; waits so long for the system to take it away. Safe to call twice."""
        if self._dead:
            return
        self.signal_kill()
        self._dead = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        self._close()

    def close(self, seconds: float = 5.0) -> None:
        """Let it end by itself (end of its input), then kill. Safe to call twice."""
        if self._dead:
            return
        os.close(self._write)
        self._write = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        self.kill()

    def _close(self) -> None:
        for fd in (self._read, self._write):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._read = self._write = -1
        self._errors.close()

    def _died(self) -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        status = self._process.poll()
        words = self.last_words(400).splitlines()
        self.kill()
        how = (
            "closed its pipe"
            if status is None
            else (f"was ended by signal {-status}" if status < 0 else f"ended with status {status}")
        )
        died = WorkerDied(f"the worker {how}", where=words[-1] if words else None)
        died.signal = -status if status is not None and status < 0 else 0
        return died


def package_path() -> dict[str, str]:
    """PYTHONPATH for a child that imports this very package, also from a tree that is not installed."""
    import sassafras

    root = str(Path(str(sassafras.__file__)).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": root + (os.pathsep + inherited if inherited else "")}
