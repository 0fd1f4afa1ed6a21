"""A candidate's confined process, seen from the judge: memory shared with it, requests, answers.

The process is stopped except between a request and its answer, so that it computes in no other's turn and
sees no input before the clock runs. The clock runs until it stands still again: what its threads write into
the shared memory after the answer counts in its time, or comes too late.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sassafras.core import Verdict
from sassafras.cuda.frames import readable

from ..sandbox import LIMIT_VERDICTS, ConfinedProcess, Confinement, import_path
from ..sandbox.watch import processor_ns, stopped
from .gpu import variables

#: bytes of one answer; who writes more floods the pipe
LONGEST_ANSWER = 1 << 20
#: seconds that loading a source may take, where a call may not take longer
LOAD_S = 60.0
#: the same where compilers may run: nvcc needs a minute for one file that includes torch's headers
BUILD_S = 600.0
#: seconds between two looks at what it holds
LOOK_S = 0.04
#: seconds that all of its threads may take to stand still after SIGSTOP
STOP_S = 2.0
#: seconds for which that is looked for without a pause: most processes stand still by then
_SPIN_S = 5e-4
#: nanoseconds of CPU time by which the kernel's count may lag behind when a process stops
_COUNT_LAG_NS = 1_000_000
#: one compiler at a time; ninja and the compilers of this installation come first
_BUILDING = {
    **{name: os.environ[name] for name in ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST") if name in os.environ},
    "PATH": os.pathsep.join((os.path.join(sys.prefix, "bin"), os.environ.get("PATH", "/usr/bin:/bin"))),  # noqa: PTH118
    "MAX_JOBS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
#: what a child says of an error -> what that says of its source
_KINDS = {
    "refused": Verdict.CHEATED,
    "memory": Verdict.OUT_OF_RESOURCES,
    **dict.fromkeys(("shape", "dtype", "input"), Verdict.WRONG_RESULT),
}


@dataclass(frozen=True, slots=True)
class HostSource:
    """A Python module whose function takes the case's inputs and returns its outputs.

    Attributes:
        text: the module. It may import torch, triton, numpy and little else.
        entry: the function: inputs (tensors) and scalars in; the output tensor, a sequence in the order of
            the case's outputs, or a dict by name out. A class (`torch.nn.Module`) with `init`.
        style: arguments by ``name``, by ``position`` in the case's order, or by position with tensors for
            the outputs behind them (``destination``).
        init: arguments of the class's constructor, plain values; None for a function. The constructor runs
            after ``torch.manual_seed(seed)``, so that two classes that draw alike have the same weights.
        seed: of the weights.
        path: the text's place among `files`.
        binding: how C++ and CUDA are bound, by torch or by ``tvm-ffi``.
        files: further files of the same package, text by relative path.
        builds: it may start compilers while it is loaded and called for the first time; no process of them
            may be left afterwards.
        recipe: provenance.
    """

    text: str = field(repr=False)
    entry: str = "run"
    style: Literal["name", "position", "destination"] = "name"
    init: tuple[Any, ...] | None = None
    seed: int = 0
    path: str = "candidate.py"
    binding: Literal["torch", "tvm-ffi"] = "torch"
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    builds: bool = False
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def setup(self) -> dict[str, Any]:
        """Everything that decides what it computes, as JSON; `recipe` is not part of that."""
        names = ("text", "entry", "style", "seed", "path", "binding", "builds")
        said = {name: getattr(self, name) for name in names}
        # JSON would make lists of tuples
        return {**said, "files": dict(self.files), "init": None if self.init is None else repr(self.init)}

    @property
    def digest(self) -> str:
        """sha256 of `setup`, the harness's seed left out."""
        return hashlib.sha256(json.dumps({**self.setup(), "seed": 0}, sort_keys=True).encode()).hexdigest()


class Lost(Exception):
    """A process is of no more use; `verdict` is what that says of what ran in it, `facts` say more of it."""

    def __init__(self, verdict: Verdict, text: str, **facts: Any) -> None:
        self.verdict, self.facts = verdict, facts
        super().__init__(text)


class HostProcess:
    """A confined process that runs `source`, and the memory shared with it.

    Args:
        source: what it runs.
        setup: what `child` needs to know: slots and size of the memory, scalars, device.
        limits: what it may use.
        call_s: seconds that a request may take.
        first: bytes of the memory, by offset, with which it is called once while it loads.

    Attributes:
        memory: shared with the process, laid out as ``setup["slots"]`` says.

    Raises:
        Lost: it ended before it had read its setup.
        NotSafe: this machine cannot confine it.
    """

    def __init__(
        self,
        source: HostSource,
        setup: Mapping[str, Any],
        limits: Confinement,
        call_s: float,
        first: Mapping[int, Any] | None = None,
    ) -> None:
        self._call_s = call_s
        self._builds = source.builds
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
            for offset, data in (first or {}).items():
                self.memory[offset : offset + len(data)] = data
            to_child, self._write = os.pipe()
            undo.callback(os.close, self._write)
            self._read, from_child = os.pipe()
            undo.callback(os.close, self._read)
            child = str(Path(__file__).with_name("child.py"))
            words = ["-P", child, *map(str, (to_child, from_child, self._memory_fd))]
            try:
                self.process = ConfinedProcess(
                    [sys.executable, *words],
                    limits,
                    environment={
                        "PYTHONPATH": os.pathsep.join(import_path()),
                        **(variables() if limits.cuda else {}),
                        **(_BUILDING if source.builds else {}),
                    },
                    descriptors=(to_child, from_child, self._memory_fd),
                    preloads=True,
                )
            finally:
                os.close(to_child)
                os.close(from_child)
            undo.callback(self.process.close)
            self._send({**setup, **source.setup()})
            self._give_back = undo.pop_all()

    # -- talking to it --------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Wait until it has loaded the source, and stop it. Raises Lost."""
        if not self._ready:
            self._receive(max(BUILD_S if self._builds else LOAD_S, self._call_s))
            self._ready = True
            self._pids = self.process.members()
            deadline = time.monotonic() + STOP_S
            while len(self._pids) > 1 and time.monotonic() < deadline:  # a compiler may be about to end
                time.sleep(LOOK_S)
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
        begin = time.monotonic()
        while not stopped(self._pids):
            waited = time.monotonic() - begin
            if waited > STOP_S:
                raise Lost(Verdict.TIMED_OUT, f"it did not stop within {STOP_S:g} s")
            if waited > _SPIN_S:  # it waits for a core: ours may be the one
                time.sleep(_SPIN_S / 4)
        # one that may start processes could have taken the fence off that its loader raised behind it
        if self._builds and len(self.process.members()) > 1:
            raise Lost(Verdict.CHEATED, "it leaves a process behind")
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
            if readable(self._read, min(left, 0.05)):
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


def _short(text: str) -> str:
    """Both ends of a text: what went wrong, and a compiler's last words."""
    # half of a surrogate pair fits into no store
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= 2000 else f"{text[:1000]} ... {text[-1000:]}"


def _raised(answer: Mapping[str, Any]) -> Lost:
    """What an error in the process says of its source."""
    kind = str(answer.get("kind"))
    verdict = _KINDS.get(kind, Verdict.COMPILE_ERROR if answer.get("loading") else Verdict.CRASHED)
    what = "tried what is not allowed: " if verdict is Verdict.CHEATED else ""
    facts = {"failed": kind} if verdict is Verdict.WRONG_RESULT else {}
    return Lost(verdict, what + _short(str(answer["error"])), **facts)
