"""A process in which one evaluator judges; what a candidate does to it ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from . import Case, Said

Make = Callable[[], Callable[[Case], Said]]
#: an evaluator that cannot be made has not judged
FAILED = "failed: "


class Worker:
    """A forked process, with a folder of its own as working directory.

    Args:
        make: makes the judge, called there.
        environment: variables set there.
        log: takes what is printed there.
    """

    def __init__(self, make: Make, environment: Mapping[str, str], log: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="evaluators-", ignore_cleanup_errors=True)
        context = get_context("fork")  # torch is imported once
        self._pipe, theirs = context.Pipe()
        given = make, theirs, dict(environment), self._folder.name, str(log)
        self._process = context.Process(target=_serve, args=given)
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.is_alive()

    def ask(self, case: Case, seconds: float) -> Said:
        """The evaluator's answer; a refusal where it raises, ends, or takes longer (and is ended then)."""
        try:
            self._pipe.send(case)
            if not self._pipe.poll(seconds):
                self.close()
                return Said(False, None, f"no answer within {seconds:g} s")
            said = self._pipe.recv()
            assert isinstance(said, Said)
            return said
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            return Said(False, None, f"its process ended with {code}")

    def close(self) -> None:
        """End the process and all that it started; safe to call twice."""
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join(30)
        self._pipe.close()
        self._folder.cleanup()


def _serve(make: Make, pipe: Connection, environment: Mapping[str, str], folder: str, log: str) -> None:
    os.setsid()
    os.environ.update(environment)
    os.chdir(folder)
    printed = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(printed, descriptor)
    judge: Callable[[Case], Said] | None = None
    why = ""
    try:
        judge = make()
    except BaseException as error:
        traceback.print_exc()
        why = f"{FAILED}{type(error).__name__}: {error}"[:300]
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        try:
            said = Said(False, None, why) if judge is None else judge(case)
        except BaseException as error:
            traceback.print_exc()
            lacks = FAILED if isinstance(error, ImportError) else ""  # a package, not the candidate's fault
            said = Said(False, None, f"{lacks}it raised {type(error).__name__}: {error}"[:300])
        pipe.send(said)
