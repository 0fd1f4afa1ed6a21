"""From a fresh interpreter to a confined program: a keeper outside, an init inside, the program.

The keeper is the judge's child, started or forked from a template (see `keepers`). It enters namespaces and
forks the init (process 1 where there is a PID namespace), which forks the program. The keeper ends the others
when the judge ends, by whatever cause, since it holds one end of the judge's lifeline; the init ends with the
keeper and, in a PID namespace, every process ends with the init. The program and all that come of it share
the init's process group, so that one signal stops or continues them, and the keeper stays out of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .calls import restrict_calls
from .files import landlock_version, restrict_files
from .namespaces import drop_capabilities, end_with_parent, enter_namespaces, own_mounts

#: exit status when a required fence is missing
NOT_RUN = 126


def set_limits(limits: Mapping[str, int]) -> None:
    """Set resource limits by name, without ``RLIMIT_`` (``CPU`` in seconds, ``AS`` in bytes), for good."""
    for name, value in {"CORE": 0, **limits}.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        # at equal limits the kernel kills at once, which looks like want of memory; SIGXCPU says what it was
        end = value + 1 if name == "CPU" else value
        most = end if hard == resource.RLIM_INFINITY else min(end, hard)
        resource.setrlimit(which, (min(value, most), most))


def apply(spec: Mapping[str, Any], *, alone: bool = False) -> dict[str, str]:
    """Raise the fences of a spec (see `run.Confinement.spec`) around this process.

    Args:
        alone: signals reach no process outside, because of a PID namespace.

    Returns: what could not be raised, with the reason.
    """
    missing: dict[str, str] = {}

    def fence(name: str, raise_it: Callable[[], None]) -> None:
        try:
            raise_it()
        except OSError as error:
            missing[name] = str(error)

    if spec.get("cpus"):
        fence("cpus", lambda: os.sched_setaffinity(0, spec["cpus"]))
    set_limits(spec.get("limits") or {})
    files: Mapping[str, Sequence[str]] | None = spec.get("files")
    if files is not None:
        fence("files", lambda: restrict_files(files["readable"], files["writable"]))
    drop_capabilities()
    if spec.get("calls", True):
        signals = alone or landlock_version() >= 6
        fence("calls", lambda: restrict_calls(processes=True, signals=signals, cuda=bool(spec.get("cuda"))))
    return missing


def main(arguments: list[str]) -> int:
    """Keep a program: ``SPEC -- PROGRAM ...``, SPEC as JSON. Ends as the program ends."""
    return keep(json.loads(arguments[0]), partial(_execute, arguments[2:]))


def keep(spec: dict[str, Any], program: Callable[[], int]) -> int:
    """Keep a program: what is called, in a confined process, returns its exit status. Ends as it ends.

    Descriptors named in the spec: ``report``, where one line of JSON tells the process group and one what is
    missing, both before the program's first instruction; ``lifeline``, a pipe whose other end is the judge's.
    """
    judge = os.getppid()
    missing, own = enter_namespaces()
    alone = "pids" not in missing
    if "users" in own and os.getuid() != 0 and spec.get("threads"):
        # counted by user and user namespace: here these are the program's. Root is never counted.
        spec["limits"]["NPROC"] = spec["threads"] + 2
    told, tell = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(told)
        os._exit(_init(spec, missing, alone, alone and "mounts" in own, program, tell))
    with contextlib.suppress(OSError):
        os.setpgid(init, init)
    os.close(tell)
    os.write(spec["report"], (json.dumps({"group": init}) + "\n").encode())
    for fd in (spec["report"], *spec.get("descriptors", ())):
        os.close(fd)
    _await(told, spec["lifeline"], judge)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(init, signal.SIGKILL)  # without a PID namespace children may be left
    status = os.read(told, 16)
    _, ended = os.waitpid(init, 0)
    code = int(status) if status else os.waitstatus_to_exitcode(ended)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code if code >= 0 else 128 - code


def _await(told: int, lifeline: int, judge: int) -> None:
    """Until the init has ended, or the judge has."""
    waiting = select.poll()
    waiting.register(told, select.POLLIN | select.POLLHUP)
    waiting.register(lifeline, select.POLLHUP)
    while not waiting.poll(500):
        if os.getppid() != judge:
            return


def _init(
    spec: Mapping[str, Any],
    missing: dict[str, str],
    alone: bool,
    mounts: bool,
    program: Callable[[], int],
    tell: int,
) -> int:
    """The parent of the program; adopts and reaps what the program leaves. Returns when the program ends."""
    end_with_parent()
    os.setpgid(0, 0)
    if mounts:
        spec["files"]["writable"] += own_mounts(int(spec.get("shared_bytes", 0)))
    os.close(spec["lifeline"])
    confined = os.fork()
    if confined == 0:
        os.close(tell)
        end_with_parent()
        os._exit(_become(spec, missing, alone, program))
    for fd in (spec["report"], *spec.get("descriptors", ())):
        os.close(fd)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == confined:
            os.write(tell, str(os.waitstatus_to_exitcode(status)).encode())
            return 0


def _become(spec: Mapping[str, Any], missing: dict[str, str], alone: bool, program: Callable[[], int]) -> int:
    missing = {**missing, **apply(spec, alone=alone)}
    report = spec["report"]
    os.write(report, (json.dumps({"missing": missing}) + "\n").encode())
    os.close(report)
    if set(missing) & set(spec.get("required", ())):
        return NOT_RUN
    return program()


def _execute(words: list[str]) -> int:
    try:
        os.execv(words[0], words)
    except OSError as error:
        print(f"cannot run {words[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
