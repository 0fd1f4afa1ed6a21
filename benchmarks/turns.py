"""Turns on one GPU: candidates are timed there, and agents' networks think there, never two at once.

A lock on a file, which the kernel lets go when its holder dies, however it does. The owner, which times
(`shared_device.py`), is not kept waiting for ever by a holder that lives and hangs: that one is ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

#: seconds that a network may keep the owner waiting (making a GPU's context takes a few)
PATIENCE_S = 30.0


class Turns:
    """One GPU's lock; travels to processes, each of which has it for itself. Not for several threads of one.

    Attributes:
        waited: seconds that this process has waited for its turns.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.waited = 0.0
        self._file = -1

    @classmethod
    def new(cls) -> Turns:
        """Turns on another GPU."""
        file, path = tempfile.mkstemp(prefix="turns-")
        os.close(file)
        return cls(path)

    def end(self) -> None:
        """Take the file away; nobody may want a turn any more."""
        Path(self.path).unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "waited": 0.0, "_file": -1}

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A turn of a network's; waits until it comes. Not to be begun within another."""
        begin = time.perf_counter()
        self._open()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            os.pwrite(self._file, b"%-20d" % os.getpid(), 0)
            self.waited += time.perf_counter() - begin
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def timing(self, patience: float = PATIENCE_S) -> Iterator[float]:
        """The owner's turn; gives the seconds waited. Who has kept it for `patience` seconds is ended.

        For the main thread of a process (it uses SIGALRM).
        """
        begin = time.perf_counter()
        self._open()
        try:
            while not self._within(patience):
                self._end_holder(patience)
            waited = time.perf_counter() - begin
            self.waited += waited
            yield waited
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _open(self) -> None:
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def _within(self, patience: float) -> bool:
        """Take the lock; False when it does not come in time."""
        if self._at_once():
            return True

        def late(number: int, frame: FrameType | None) -> None:
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, late)
        try:
            signal.setitimer(signal.ITIMER_REAL, patience)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            return True
        except TimeoutError:
            return self._at_once()  # (it may have come in the last moment)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _at_once(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _end_holder(self, patience: float) -> None:
        holder = int(os.pread(self._file, 20, 0) or b"0")
        print(f"process {holder} has kept the GPU for {patience:g} s and is ended", flush=True)
        if holder > 0 and holder != os.getpid():
            try:
                os.kill(holder, signal.SIGKILL)
            except ProcessLookupError:
                time.sleep(0.01)
