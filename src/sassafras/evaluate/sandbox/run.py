"""Running a program confined: hard time, memory and process limits from outside, fences from inside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError

_CONFINE = Path(__file__).with_name("confine.py")
#: system folders that compilers and Python need; nothing of a user's
SYSTEM_READABLE = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt/nvidia", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd",
    "/etc/group", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/proc/self", "/proc/cpuinfo",
    "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/sys/devices/system/cpu", "/sys/devices/system/node",
)  # fmt: skip
SYSTEM_WRITABLE = ("/dev/null",)
_POLL_S = 0.02


class NotSafe(SassafrasError):
    """This machine lacks a fence that the caller required."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a confined program may use.

    Attributes:
        wall_s: seconds before it and all of its children are killed.
        cpu_s: CPU seconds a process (the kernel kills it).
        memory_bytes: address space a process, None for no limit (CUDA reserves it by the hundred GiB).
        resident_bytes: resident memory of all its processes together, watched from outside.
        file_bytes: largest file that it may write.
        processes: processes (threads not counted) that it may have at a time, watched from outside.
        readable: files and folders that it may read and execute, besides the system's.
        writable: the same to write, besides a scratch folder of its own.
        required: fences without which nothing is run: of ``network``, ``files``, ``calls``. A missing network
            namespace is made good by the other two, which refuse every socket.
    """

    wall_s: float = 60.0
    cpu_s: int = 120
    memory_bytes: int | None = 16 << 30
    resident_bytes: int = 8 << 30
    file_bytes: int = 256 << 20
    processes: int = 16
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    required: tuple[str, ...] = ("files", "calls")

    def spec(self, scratch: str, report: int) -> dict[str, Any]:
        """The JSON that `confine.main` reads."""
        limits = {"CPU": self.cpu_s, "FSIZE": self.file_bytes, "NOFILE": 256}
        if self.memory_bytes is not None:
            limits["AS"] = self.memory_bytes
        return {
            "limits": limits, "report": report, "required": list(self.required),
            "files": {
                "readable": [*SYSTEM_READABLE, *_python_folders(), *self.readable],
                "writable": [*SYSTEM_WRITABLE, scratch, *self.writable],
            },
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finished:
    """How a confined program ended.

    Attributes:
        status: exit status, negative for a signal.
        stopped: why we ended it: ``time``, ``memory``, ``processes``, or ``""``.
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
    ) -> None:
        self.limits = confinement or Confinement()
        self.scratch = tempfile.mkdtemp(prefix="sassafras-confined-")
        self._begin = time.monotonic()
        self._report, write_end = os.pipe()
        self._missing: dict[str, str] | None = None
        self._over = False
        try:
            for name, data in (files or {}).items():
                Path(self.scratch, name).write_bytes(data)
            command = [
                sys.executable, "-I", "-S", str(_CONFINE),
                json.dumps(self.limits.spec(self.scratch, write_end)), "--",
                *(part.replace("{scratch}", self.scratch) for part in program),
            ]  # fmt: skip
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, cwd=self.scratch,
                env={**_base_environment(self.scratch), **(environment or {})},
                pass_fds=(write_end, *descriptors), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._report)
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise
        finally:
            os.close(write_end)

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll()

    @property
    def missing(self) -> Mapping[str, str]:
        """Fences that this kernel does not offer, with the reason; complete once it has ended or answered."""
        if self._missing is None:
            self._missing = _read_report(self._report)
        return self._missing

    def exceeded(self) -> str:
        """Which limit it exceeds now: ``time``, ``memory``, ``processes``, or ``""``."""
        if time.monotonic() - self._begin > self.limits.wall_s:
            return "time"
        held, count = _family(self._process.pid)
        if held > self.limits.resident_bytes:
            return "memory"
        return "processes" if count > self.limits.processes else ""

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
        _end(self._process)

    def close(self) -> None:
        """`kill`, and remove the scratch folder. Safe to call twice."""
        if self._over:
            return
        self._over = True
        self.kill()
        os.close(self._report)
        self._output.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

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
) -> Finished:
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
        return Finished(status, stopped, words, missing, time.monotonic() - begin, found)
    finally:
        process.close()


def _family(session: int) -> tuple[int, int]:
    """(resident bytes, number) of the session's processes; (0, 0) where the system does not tell."""
    held = count = 0
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH208, PTH112 (hot loop)
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:  # noqa: PTH123
                fields = file.read().rsplit(")", 1)[1].split()
            if int(fields[3]) == session and fields[0] != "Z":
                held += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
                count += 1
        except (OSError, IndexError, ValueError):
            continue
    return held, count


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session (its leader's id is the group's), and reap the leader."""
    for _ in range(3):  # a fork may slip between listing and killing
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in _members(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session:
                    found.append(int(entry.name))
    return found


def _read_report(fd: int) -> dict[str, str]:
    data = b""
    while select.select([fd], [], [], 0)[0] and (part := os.read(fd, 65536)):
        data += part
    try:
        return dict(json.loads(data)) if data else {"calls": "the program ended before it was confined"}
    except ValueError:
        return {"calls": "the report was garbled"}


def _take(path: Path, most: int) -> bytes | None:
    """A plain file's contents; None for links, special files and what is too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        import stat

        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        return file.read(most)


def _base_environment(scratch: str) -> dict[str, str]:
    """No secret, proxy or preload of the caller's travels along."""
    return {
        "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"), "HOME": scratch, "TMPDIR": scratch,
        "LANG": "C.UTF-8", "TRITON_CACHE_DIR": f"{scratch}/.triton", "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": f"{scratch}/.cache",
    }  # fmt: skip


def _python_folders() -> list[str]:
    """Where this interpreter and its packages lie, and this package."""
    import site
    import sysconfig

    places = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    with contextlib.suppress(AttributeError):
        places.update(site.getsitepackages())
    places.add(str(Path(__file__).resolve().parents[3]))  # also what an editable installation needs
    places.add(str(Path(sys.executable).resolve().parent.parent))
    return sorted(place for place in places if Path(place).exists())
