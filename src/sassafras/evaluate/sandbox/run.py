"""Running a program confined: hard time, memory and process limits from outside, fences from inside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError, SassafrasError, Verdict
from sassafras.cuda.frames import readable

from .imports import python_folders
from .keepers import Child, Keeping, execute, templates
from .watch import held, members

#: system folders that compilers and Python need; nothing of a user's
SYSTEM_READABLE = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt/nvidia", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/proc/self", "/proc/cpuinfo",
    "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)  # fmt: skip
SYSTEM_WRITABLE = ("/dev/null",)
#: what compilers alone need: no file of /etc that names users, no Python
COMPILER_READABLE = (
    "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/alternatives", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/proc/self",
    "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip
_POLL_S = 0.02
#: one look in so many is thorough: files and mappings too
_THOROUGH = 4


#: what exceeding a limit says of a program (see `ProcessEnd.stopped`)
LIMIT_VERDICTS = {
    "time": Verdict.TIMED_OUT,
    "memory": Verdict.OUT_OF_RESOURCES,
    "disk": Verdict.OUT_OF_RESOURCES,
    "processes": Verdict.CHEATED,
    "threads": Verdict.CHEATED,
}


class NotSafe(SassafrasError):
    """This machine lacks a fence that the caller required."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a confined program may use.

    Attributes:
        wall_s: seconds before it and all of its children are killed.
        cpu_s: CPU seconds a process (the kernel kills it).
        memory_bytes: address space a process, None for no limit (CUDA reserves it by the hundred GiB).
        resident_bytes: memory of all its processes together, resident or behind memory files, watched from
            outside.
        file_bytes: largest file that it may write.
        disk_bytes: all of its files together, removed ones that it holds open included, watched from outside.
        processes: processes (threads not counted) that it may have at a time, watched from outside.
        threads: threads of all its processes together, watched from outside; where it runs in a user
            namespace and not as root, the kernel refuses more.
        cpus: the CPUs that it may run on; empty for all that this process may use.
        readable: files and folders that it may read and execute, besides the system's.
        writable: the same to write, besides a scratch folder of its own.
        system: what of the system it may read and execute; `COMPILER_READABLE` is less, without Python.
        cuda: it may call what the CUDA driver needs, and has a /dev/shm of its own.
        template: a program that allows it is forked from a process that has made its imports already.
        required: fences without which nothing is run: of ``network``, ``ipc``, ``pids``, ``files`` and
            ``calls``. A missing namespace is made good by the last two, which refuse every connection,
            shared memory and signals to others.
    """

    wall_s: float = 60.0
    cpu_s: int = 120
    memory_bytes: int | None = 16 << 30
    resident_bytes: int = 8 << 30
    file_bytes: int = 256 << 20
    disk_bytes: int = 1 << 30
    processes: int = 16
    threads: int = 512
    cpus: tuple[int, ...] = ()
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    cuda: bool = False
    template: bool = True
    required: tuple[str, ...] = ("files", "calls")

    def spec(
        self, scratch: str, report: int, lifeline: int, descriptors: Sequence[int] = ()
    ) -> dict[str, Any]:
        """The JSON that `confine.main` reads."""
        limits = {"CPU": self.cpu_s, "FSIZE": self.file_bytes, "NOFILE": 256}
        if self.memory_bytes is not None:
            limits["AS"] = self.memory_bytes
        system = self.system or (*SYSTEM_READABLE, *python_folders())
        return {
            "limits": limits,
            "report": report,
            "lifeline": lifeline,
            "descriptors": list(descriptors),
            "required": list(self.required),
            "cpus": list(self.cpus),
            "threads": self.threads,
            "cuda": self.cuda,
            "shared_bytes": (64 << 20) if self.cuda else 0,
            "files": {
                "readable": [*system, *self.readable],
                "writable": [*SYSTEM_WRITABLE, scratch, *self.writable],
            },
        }


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a confined program ended.

    Attributes:
        status: exit status, negative for a signal.
        stopped: why we ended it: ``time``, ``memory``, ``disk``, ``processes``, ``threads``, or ``""``.
        output: the end of what it printed.
        missing: fences that this kernel does not offer, with the reason.
        seconds: wall time.
        files: contents of the files asked for in ``collect`` that it left in its scratch folder.
    """

    status: int
    stopped: str
    output: str
    missing: Mapping[str, str]
    seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class ConfinedProcess:
    """A program running confined, in a scratch folder of its own that goes with it.

    Args:
        program: absolute path and arguments; ``{scratch}`` in an argument becomes the scratch folder.
        confinement: what it may use.
        files: written into the scratch folder first, by name.
        environment: the only variables that it sees, besides PATH, HOME and TMPDIR.
        descriptors: open file descriptors that it inherits.
        preloads: `program` is ``[sys.executable, "-P", FILE, *words]``, and FILE has a function ``preload``,
            which imports and leaves no threads and no shared memory, and a function ``main`` of the words.

    Attributes:
        scratch: the folder.
    """

    def __init__(
        self,
        program: Sequence[str],
        confinement: Confinement | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        preloads: bool = False,
    ) -> None:
        self.limits = confinement or Confinement()
        self.scratch = tempfile.mkdtemp(prefix="sassafras-confined-")
        self._begin = time.monotonic()
        self._looks = 0
        self._ours = {os.fstat(fd).st_ino for fd in descriptors}
        self._told: dict[str, Any] = {}
        self._lines = b""
        self._over = False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        try:
            for name, data in (files or {}).items():
                Path(self.scratch, name).write_bytes(data)
            words = [part.replace("{scratch}", self.scratch) for part in program]
            own = environment or {}
            for template in templates(words[2], own) if preloads and self.limits.template else ():
                with contextlib.suppress(DeviceError):
                    self._start(template.start, words, own, descriptors)
                    return
            self._start(execute, words, own, descriptors)
        except BaseException:
            self._output.close()
            _remove(self.scratch)
            raise

    def _start(
        self,
        keeper: Callable[[Keeping], Child],
        words: list[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
    ) -> None:
        self._report, write_end = os.pipe()
        # the keeper ends with us: no other process has our end of this pipe
        lifeline, self._lifeline = os.pipe()
        try:
            spec = self.limits.spec(self.scratch, write_end, lifeline, descriptors)
            output = self._output.fileno()
            self._process = keeper(Keeping(spec, words, self.scratch, dict(environment), output))
            os.write(self._lifeline, b"\n")  # a forked keeper waits for this
        except BaseException:
            os.close(self._report)
            os.close(self._lifeline)
            raise
        finally:
            os.close(write_end)
            os.close(lifeline)

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll()

    @property
    def missing(self) -> Mapping[str, str]:
        """Fences that this kernel does not offer, with the reason; complete once it has ended or answered."""
        self._listen()
        return self._told.get("missing", {"calls": "the program ended before it was confined"})

    @property
    def group(self) -> int:
        """Process group of the program and all that come of it; 0 before it has started."""
        self._listen()
        return int(self._told.get("group", 0))

    def _listen(self) -> None:
        """Read what keeper and program said of themselves before the program's first instruction."""
        while len(self._told) < 2 and readable(self._report, 0.0):
            part = os.read(self._report, 65536)
            if not part:
                return
            self._lines += part
            *lines, self._lines = self._lines.split(b"\n")
            for line in lines:
                self._told |= json.loads(line)

    def members(self) -> list[int]:
        """Processes of the program, its init left out."""
        return [pid for pid, _ in members(self._process.pid) if pid not in self._helpers]

    @property
    def _helpers(self) -> tuple[int, int]:
        return (self._process.pid, self.group)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the program at once."""
        if self.group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, number)

    def exceeded(self) -> str:
        """Which limit it exceeds now (see `ProcessEnd.stopped`), or ``""``."""
        limits = self.limits
        if time.monotonic() - self._begin > limits.wall_s:
            return "time"
        self._looks += 1
        scratch = self.scratch if self._looks % _THOROUGH == 0 else ""
        now = held(self._process.pid, self._helpers, scratch=scratch, ours=self._ours)
        found = (
            ("memory", now.memory, limits.resident_bytes),
            ("disk", now.disk, limits.disk_bytes),
            ("processes", now.processes, limits.processes),
            ("threads", now.threads, limits.threads),
        )
        return next((name for name, has, most in found if has > most), "")

    def watch(self) -> str:
        """Wait for its end; the limit that it exceeded first, or ``""``."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_POLL_S)
                return ""
            if stopped := self.exceeded():
                return stopped

    def words(self, most: int = 20_000) -> str:
        """The end of what it printed."""
        size = os.fstat(self._output.fileno()).st_size
        data = os.pread(self._output.fileno(), most, max(0, size - most))
        return data.decode(errors="replace").replace(self.scratch, ".").strip()

    def kill(self) -> None:
        """End it and all of its children. Safe to call twice."""
        if self.status is None:
            self.signal(signal.SIGKILL)
        _end(self._process)

    def close(self) -> None:
        """`kill`, and remove the scratch folder. Safe to call twice."""
        if self._over:
            return
        self._over = True
        self.kill()
        os.close(self._report)
        os.close(self._lifeline)
        self._output.close()
        _remove(self.scratch)

    def refused(self) -> NotSafe | None:
        """The error to raise when it was not run because a required fence is missing."""
        if self.status == 126 and (lacking := sorted(set(self.missing) & set(self.limits.required))):
            return NotSafe(
                "nothing was run, because this machine cannot confine it: "
                f"{lacking[0]}: {self.missing[lacking[0]]}",
                hint="Linux 5.13 or newer with Landlock and seccomp confines candidates",
            )
        return None


def run(
    program: Sequence[str],
    confinement: Confinement | None = None,
    *,
    files: Mapping[str, bytes] | None = None,
    collect: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    most_bytes: int = 64 << 20,
) -> ProcessEnd:
    """Run a program confined until it ends or exceeds a limit.

    Args:
        program, confinement, files, environment: as `ConfinedProcess`.
        collect: names of files to bring back from the scratch folder; links and files over `most_bytes` are
            left.

    Raises:
        NotSafe: a required fence is missing on this machine; nothing was run.
    """
    begin = time.monotonic()
    process = ConfinedProcess(program, confinement, files=files, environment=environment)
    try:
        stopped = process.watch()
        process.kill()
        if error := process.refused():
            raise error
        status = process.status
        assert status is not None
        taken = {name: _take(Path(process.scratch, name), most_bytes) for name in collect}
        found = {name: data for name, data in taken.items() if data is not None}
        missing, words = dict(process.missing), process.words()
        return ProcessEnd(status, stopped, words, missing, time.monotonic() - begin, found)
    finally:
        process.close()


def _end(process: Child) -> None:
    """Kill the whole session (its leader's id is the group's), and reap the leader."""
    for _ in range(3):  # a fork may slip between listing and killing
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid, _ in members(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if process.returncode is None:  # one that was forked just now leads no session yet
            os.kill(process.pid, signal.SIGKILL)
    process.wait()


def _remove(folder: str) -> None:
    """Remove a tree, also one whose folders were made unreadable."""
    shutil.rmtree(folder, ignore_errors=True)
    if not Path(folder).exists():
        return
    for where, folders, _ in os.walk(folder):
        for name in folders:
            with contextlib.suppress(OSError):
                Path(where, name).chmod(0o700, follow_symlinks=False)
    shutil.rmtree(folder, ignore_errors=True)


def _take(path: Path, most: int) -> bytes | None:
    """A plain file's contents; None for links, special files and what is too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(fd)
