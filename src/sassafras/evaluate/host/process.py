"""A candidate's confined process, seen from the judge: memory shared with it, requests, answers.

The process is stopped except between a request and its answer, so that it computes in no other's turn and
sees no input before the clock runs. The clock runs until it stands still again: what its threads write into
the shared memory after the answer counts in its time, or comes too late.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sassafras.core import Verdict

from ..sandbox import LIMIT_VERDICTS, ConfinedProcess, Confinement, import_path
from ..sandbox.watch import processor_ns, stopped
from .gpu import variables

#: bytes of one answer; who writes more floods the pipe
LONGEST_ANSWER = 1 << 20
#: seconds that loading a source may take, where a call may not take longer
LOAD_S = 60.0
#: seconds between two looks at what it holds
LOOK_S = 0.04
#: seconds that all of its threads may take to stand still after SIGSTOP
STOP_S = 2.0
#: nanoseconds of CPU time by which the kernel's count may lag behind when a process stops
_COUNT_LAG_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class HostSource:
    """A Python module whose function takes the case's inputs by name and returns its outputs.

    Attributes:
        text: the module. It may import torch, triton, numpy and little else.
        entry: the function: inputs (tensors) and scalars by argument name in; the output tensor, a tuple in
            the order of the case's outputs, or a dict by name out.
        recipe: provenance.
    """

    text: str = field(repr=False)
    entry: str = "run"
    recipe: Mapping[str, Any] = field(default_factory=dict)


class Lost(Exception):
    """A process is of no more use; `verdict` is what that says of what ran in it."""

    def __init__(self, verdict: Verdict, text: str) -> None:
        self.verdict = verdict
        super().__init__(text)


class HostProcess:
    """A confined process that runs `source`, and the memory shared with it.

    Args:
        source: what it runs.
        setup: what `child` needs to know: slots and size of the memory, scalars, device.
        limits: what it may use.
        call_s: seconds that a request may take.

    Attributes:
        memory: shared with the process, laid out as ``setup["slots"]`` says.

    Raises:
        Lost: it ended before it had read its setup.
        NotSafe: this machine cannot confine it.
    """

    def __init__(
        self, source: HostSource, setup: Mapping[str, Any], limits: Confinement, call_s: float
    ) -> None:
        self._call_s = call_s
        self._begin = time.monotonic()
        self._pending = b""
        self._asked = 0
        self._ready = False
        self._pids: list[int] = []
        self._ran_ns = 0
        self._looked = 0.0
        with contextlib.ExitStack() as undo:
            self._memory_fd = os.memfd_create("sassafras-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            undo.callback(os.close, self._memory_fd)
            os.ftruncate(self._memory_fd, setup["bytes"])
            # a process that made it shorter would have the judge end by SIGBUS
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._memory_fd, fcntl.F_ADD_SEALS, seals)
            self.memory = mmap.mmap(self._memory_fd, setup["bytes"])
            to_child, self._write = os.pipe()
            undo.callback(os.close, self._write)
            self._read, from_child = os.pipe()
            undo.callback(os.close, self._read)
            words = [
                "-m",
                "sassafras.evaluate.host.child",
                *map(str, (to_child, from_child, self._memory_fd)),
            ]
            try:
                self.process = ConfinedProcess(
                    [sys.executable, *words],
                    limits,
                    environment={
                        "PYTHONPATH": os.pathsep.join(import_path()),
                        **(variables() if limits.cuda else {}),
                    },
                    descriptors=(to_child, from_child, self._memory_fd),
                )
            finally:
                os.close(to_child)
                os.close(from_child)
            undo.callback(self.process.close)
            self._send({**setup, "text": source.text, "entry": source.entry})
            self._give_back = undo.pop_all()

    # -- talking to it --------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Wait until it has loaded the source, and stop it. Raises Lost."""
        if not self._ready:
            self._receive(max(LOAD_S, self._call_s))
            self._ready = True
            self._pids = self.process.members()
            self._stop()

    def ask(self, slot: int) -> float:
        """Seconds that a call on this slot's inputs takes: from a stopped process to a stopped process.

        Raises:
            Lost: it does not answer, answers wrongly, or did not stand still since its last turn.
        """
        if not self.still():
            raise Lost(Verdict.CHEATED, "it ran outside its turn")
        if time.monotonic() - self._looked > LOOK_S:
            self._judge_limits()
        self._asked += 1
        begin = time.perf_counter()
        self.process.signal(signal.SIGCONT)
        self._send({"slot": slot, "id": self._asked})
        answer = self._receive(self._call_s)
        self._stop()
        seconds = time.perf_counter() - begin
        if answer.get("done") != self._asked:
            raise Lost(Verdict.CHEATED, "it answered for the harness, and wrongly")
        return seconds

    def still(self) -> bool:
        """True when it is stopped and has not run since it was."""
        return stopped(self._pids) and processor_ns(self._pids) - self._ran_ns <= _COUNT_LAG_NS

    def _stop(self) -> None:
        """Stop it, and wait until none of its threads runs. Raises Lost."""
        self.process.signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_S
        while not stopped(self._pids):
            if time.monotonic() > deadline:
                raise Lost(Verdict.TIMED_OUT, f"it did not stop within {STOP_S:g} s")
        self._ran_ns = processor_ns(self._pids)

    @property
    def threads(self) -> int:
        """How many threads it has now."""
        with contextlib.suppress(OSError):
            return sum(len(os.listdir(f"/proc/{pid}/task")) for pid in self._pids)  # noqa: PTH208
        return 0

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            data = (json.dumps(message) + "\n").encode()
            while data:
                data = data[os.write(self._write, data) :]
        except OSError as error:
            raise self._died() from error

    def _receive(self, seconds: float) -> dict[str, Any]:
        """The next answer."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, min(left, 0.05)))
            if ready:
                part = os.read(self._read, 65536)
                if not part:
                    raise self._died()
                self._pending += part
                if len(self._pending) > LONGEST_ANSWER:
                    raise Lost(Verdict.CHEATED, "it floods the harness's pipe")
                continue
            if left <= 0:
                raise Lost(Verdict.TIMED_OUT, f"no answer within {seconds:g} s")
            if time.monotonic() - self._looked > LOOK_S:
                self._judge_limits()
        line, _, self._pending = self._pending.partition(b"\n")
        answer = _read(line)
        if "error" in answer:
            raise _raised(answer)
        return answer

    # -- its end --------------------------------------------------------------------------------------------

    def _judge_limits(self) -> None:
        self._looked = time.monotonic()
        if exceeded := self.process.exceeded():
            text = f"its process exceeded its limit: {exceeded}"
            raise Lost(LIMIT_VERDICTS[exceeded], text)

    def _died(self) -> Exception:
        deadline = time.monotonic() + 2.0
        while self.process.status is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if error := self.process.refused():
            return error
        status, words = self.process.status, self.process.words(500).splitlines()
        verdict = Verdict.TIMED_OUT if status == -24 else Verdict.CRASHED  # SIGXCPU
        return Lost(verdict, f"its process ended ({status}){': ' + words[-1] if words else ''}")

    @property
    def tired(self) -> bool:
        """True when it has ended, or half of its wall time is used up."""
        used = time.monotonic() - self._begin
        return self.process.status is not None or used > self.process.limits.wall_s / 2

    def close(self) -> None:
        """End the process, give the memory back."""
        self._give_back.close()


def _read(line: bytes) -> dict[str, Any]:
    """An answer, which may be anything: the candidate can write into the pipe too."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Lost(Verdict.CHEATED, "it writes into the harness's pipe") from error
    if not isinstance(answer, dict):
        raise Lost(Verdict.CHEATED, "it writes into the harness's pipe")
    return answer


def _raised(answer: Mapping[str, Any]) -> Lost:
    """What an error in the process says of its source."""
    verdict = {"refused": Verdict.CHEATED, "memory": Verdict.OUT_OF_RESOURCES}.get(
        str(answer.get("kind")), Verdict.COMPILE_ERROR if answer.get("loading") else Verdict.CRASHED
    )
    what = "tried what is not allowed: " if verdict is Verdict.CHEATED else ""
    return Lost(verdict, what + str(answer["error"])[:1000])
