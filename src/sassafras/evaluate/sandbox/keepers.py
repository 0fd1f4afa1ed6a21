"""How a confined program's keeper starts: in a new interpreter, or forked from a template.

A template is a fork server that has imported what a file of Python needs, a second's work for torch. It has
the environment that a confined interpreter would have, and serves all of this process's programs of that file
and environment. It gets descriptors and nothing else: the spec of a program is read in the fork. Its forks
are our children, so that they outlive it, and the fences are raised in them, as in an interpreter of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sassafras.core import DeviceError
from sassafras.cuda.fork_server import ForkedProcess, ForkServer

#: starts `confine.main` without importing the package around it
_BOOT = "import sys; sys.path.insert(0, {!r}); from confine import main; sys.exit(main(sys.argv[1:]))"
#: templates that stand at a time
_MOST = 2
#: the home and scratch folder of a template, which is no program's
_NOWHERE = "/nonexistent"


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a keeper is to keep.

    Attributes:
        spec: see `run.Confinement.spec`.
        words: absolute path and arguments of the program.
        folder: its scratch folder.
        environment: its variables, besides those that every program has.
        output: descriptor of what it prints to.
    """

    spec: Mapping[str, Any]
    words: list[str]
    folder: str
    environment: Mapping[str, str]
    output: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Of the keeper and the program, besides `output`."""
        return (self.spec["report"], self.spec["lifeline"], *self.spec["descriptors"])


class Child(Protocol):
    """The part of `subprocess.Popen` that serves a keeper."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float = ...) -> int: ...


def execute(keeping: Keeping) -> Child:
    """A keeper in a new interpreter. Raises OSError."""
    boot = _BOOT.format(str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", boot, json.dumps(keeping.spec), "--", *keeping.words],
        stdin=subprocess.DEVNULL,
        stdout=keeping.output,
        stderr=keeping.output,
        cwd=keeping.folder,
        env=_environment(keeping.folder, keeping.environment),
        pass_fds=keeping.descriptors,
        start_new_session=True,
    )


class Template(ForkServer):
    """Forks keepers of programs that run one file of Python (see `template`).

    Args:
        file: its absolute path.
        environment: the programs' variables, besides those that every program has.

    Raises:
        DeviceError: the process cannot be started.
    """

    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        self.served = False
        command = [sys.executable, "-P", str(Path(__file__).with_name("template.py")), file]
        self._start(file, command, _environment(_NOWHERE, environment), folder="/")

    def start(self, keeping: Keeping) -> Child:
        """A keeper, which waits for a byte in its lifeline. Raises DeviceError where the template is gone."""
        told = {
            # a template has the CPUs that were ours when it was started
            "spec": {**keeping.spec, "cpus": keeping.spec["cpus"] or sorted(os.sched_getaffinity(0))},
            "words": keeping.words[2:],
            "folder": keeping.folder,
            "environment": _environment(keeping.folder, keeping.environment),
        }
        note = os.memfd_create("sassafras-keeping", os.MFD_CLOEXEC)
        try:
            os.pwrite(note, json.dumps(told).encode(), 0)
            process = self.fork((note, *keeping.descriptors, keeping.output))
        finally:
            os.close(note)
        self.served = True
        return _Sibling(self, process.pid)


class _Sibling(ForkedProcess):
    """A process that a template forked, which is our child."""

    def poll(self) -> int | None:
        """See `subprocess.Popen.poll`."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another part of the program waits for every child
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


_Key = tuple[str, str, tuple[tuple[str, str], ...]]
_lock = threading.Lock()
_standing: dict[_Key, Template] = {}
_unfit: set[_Key] = set()


def templates(file: str, environment: Mapping[str, str]) -> Iterator[Template]:
    """A template, and another one if it turns out to be gone; none where there can be none."""
    for _ in range(2):
        if (found := _template((sys.executable, file, tuple(sorted(environment.items()))))) is None:
            return
        yield found


def _template(key: _Key) -> Template | None:
    """The one that stands, else a new one; None where its imports fail, or on another system."""
    with _lock:
        if (found := _standing.pop(key, None)) is not None:
            if found.alive:
                _standing[key] = found  # the last one used is the last one to go
                return found
            found.close()
            if not found.served:
                _unfit.add(key)
        if key in _unfit or sys.platform != "linux" or platform.machine() != "x86_64":
            return None
        while len(_standing) >= _MOST:
            _standing.pop(next(iter(_standing))).close()
        try:
            _standing[key] = Template(key[1], dict(key[2]))
        except DeviceError:
            return None
        return _standing[key]


def _drop() -> None:
    """End all templates. An idle one ends by itself."""
    while _standing:
        _standing.popitem()[1].close()


def _forget() -> None:
    """In a fork of this process, which is not the parent of what they fork."""
    global _lock
    _lock = threading.Lock()
    _standing.clear()


atexit.register(_drop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _environment(scratch: str, more: Mapping[str, str]) -> dict[str, str]:
    """No secret, proxy or preload of the caller's travels along."""
    return {
        "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "USER": "candidate",
        "LOGNAME": "candidate",
        "TRITON_CACHE_DIR": f"{scratch}/.triton",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": f"{scratch}/.cache",
        **more,
    }
