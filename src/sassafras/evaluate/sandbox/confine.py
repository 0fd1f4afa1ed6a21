"""Giving up rights, in the process itself: limits, no network, few files, few system calls.

Standard library only: this file also runs as a script of its own, ``python confine.py SPEC -- PROGRAM ...``,
which confines itself and then becomes PROGRAM. Four independent fences, each optional in the kernel:

========== ================================================= ============================
fence      what it stops                                     needs
========== ================================================= ============================
limits     CPU time, address space, file size, descriptors   nothing
network    everything but an empty loopback                  user and network namespaces
files      reading, writing, executing outside given folders Landlock (Linux 5.13)
calls      sockets, tracing, mounts, new processes           seccomp filters (Linux 3.17)
========== ================================================= ============================

Facts: landlock(7), seccomp(2), user_namespaces(7); numbers from the Linux headers of x86-64 and AArch64.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_THREAD = 0x10000000, 0x40000000, 0x00010000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_ACCESS_EXECUTE, _ACCESS_WRITE, _ACCESS_READ, _ACCESS_LIST = 1, 2, 4, 8
#: make, remove and so on of every kind; 13 bits in the first ABI, then REFER, TRUNCATE and IOCTL_DEV
_ACCESS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ACCESS_LATEST = (1 << 16) - 1
_ACCESS_OF_FILES = _ACCESS_EXECUTE | _ACCESS_WRITE | _ACCESS_READ | 1 << 14 | 1 << 15

#: system call numbers: (x86-64, AArch64); None where the architecture has no such call
_CALLS: Mapping[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "setns": (308, 268), "unshare": (272, 97), "bpf": (321, 280), "perf_event_open": (298, 241),
    "keyctl": (250, 219), "add_key": (248, 217), "userfaultfd": (323, 282), "kexec_load": (246, 104),
    "init_module": (175, 105), "finit_module": (313, 273), "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265), "pidfd_getfd": (438, 438), "sethostname": (170, 161),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "reboot": (169, 142),
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "pidfd_send_signal": (424, 424),
    "setsid": (112, 157), "clone": (56, 220), "clone3": (435, 435),
}  # fmt: skip
_ALWAYS = (
    "socket", "connect", "bind", "ptrace", "process_vm_readv", "process_vm_writev", "mount", "umount2",
    "pivot_root", "chroot", "setns", "unshare", "bpf", "perf_event_open", "keyctl", "add_key", "userfaultfd",
    "kexec_load", "init_module", "finit_module", "io_uring_setup", "open_by_handle_at", "pidfd_getfd",
    "sethostname", "settimeofday", "clock_settime", "adjtimex", "reboot",
    "setsid",  # the parent finds all children by their session
)  # fmt: skip
_NO_PROCESSES = ("execve", "execveat", "fork", "vfork", "socketpair")
_NO_SIGNALS = ("kill", "tkill", "pidfd_send_signal")


class NotConfined(OSError):
    """The kernel does not offer a fence that was asked for."""


def set_limits(limits: Mapping[str, int]) -> None:
    """Set resource limits by name, without ``RLIMIT_`` (``CPU`` in seconds, ``AS`` in bytes), for good."""
    for name, value in {"CORE": 0, **limits}.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        # at equal limits the kernel kills at once, which looks like want of memory; SIGXCPU says what it was
        end = value + 1 if name == "CPU" else value
        most = end if hard == resource.RLIM_INFINITY else min(end, hard)
        resource.setrlimit(which, (min(value, most), most))


def leave_network() -> None:
    """Enter a network namespace of our own, with nothing in it. Raises NotConfined."""
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise NotConfined(code, f"no network namespace: {os.strerror(code)}")


def landlock_version() -> int:
    """The kernel's Landlock ABI; 0 without it."""
    return max(0, _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))


def restrict_files(
    readable: Iterable[str], writable: Iterable[str], executable: Iterable[str] | None = None
) -> None:
    """Allow these files and folders (whole trees) only; everything else is refused from now on.

    Args:
        readable: may be read and listed.
        writable: may also be written, made and removed; never executed.
        executable: may be executed and read; by default everything readable.

    Raises:
        NotConfined: no Landlock.
    """
    abi = landlock_version()
    if abi < 1:
        raise NotConfined(errno.ENOSYS, "no Landlock in this kernel")
    handled = _ACCESS_BY_ABI.get(abi, _ACCESS_LATEST)
    # struct landlock_ruleset_attr: files, TCP (ABI 4: bind 1, connect 2), scope (ABI 6: sockets 1, signals 2)
    attributes = struct.pack("<QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        raise NotConfined(ctypes.get_errno(), "Landlock refused the rule set")
    look = _ACCESS_READ | _ACCESS_LIST
    rights: dict[str, int] = {}
    for path in readable:
        rights[path] = rights.get(path, 0) | look | (_ACCESS_EXECUTE if executable is None else 0)
    for path in executable or ():
        rights[path] = rights.get(path, 0) | look | _ACCESS_EXECUTE
    for path in writable:
        rights[path] = rights.get(path, 0) | (handled & ~_ACCESS_EXECUTE)
    try:
        for path, access in rights.items():
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # what is not there needs no right
            try:
                if not os.path.isdir(path):  # noqa: PTH112 (runs without pathlib's start-up cost)
                    access &= _ACCESS_OF_FILES
                rule = struct.pack("<Qi", access & handled, fd)
                if _libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0) != 0:
                    raise NotConfined(ctypes.get_errno(), f"Landlock refused a rule for {path}")
            finally:
                os.close(fd)
        _no_new_privileges()
        if _libc.syscall(_LANDLOCK_RESTRICT, rules, 0) != 0:
            raise NotConfined(ctypes.get_errno(), "Landlock refused to restrict this process")
    finally:
        os.close(rules)


def restrict_calls(*, processes: bool, signals: bool = True) -> None:
    """Refuse (EPERM) system calls that no candidate needs: sockets, tracing, mounts, the clock.

    Args:
        processes: new processes and programs stay possible (a compiler driver needs them); threads always do.
        signals: signals may be sent (Landlock of ABI 6 confines them to our own descendants).

    Raises:
        NotConfined: no seccomp filters, or an architecture whose call numbers are not known here.
    """
    machine = platform.machine()
    column = {"x86_64": 0, "aarch64": 1}.get(machine)
    if column is None:
        raise NotConfined(errno.ENOSYS, f"no system call numbers for {machine}")
    refused = [*_ALWAYS, *(() if processes else _NO_PROCESSES), *(() if signals else _NO_SIGNALS)]
    numbers = sorted(number for name in refused if (number := _CALLS[name][column]) is not None)
    program: list[tuple[int, int, int, int]] = []  # code, jump if true, jump if false, constant
    deny, allow = 0x00050000 | errno.EPERM, 0x7FFF0000
    architecture = (0xC000003E, 0xC00000B7)[column]
    program += [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, 0x80000000)]  # else kill
    program += [(0x20, 0, 0, 0)]
    if column == 0:  # the x32 numbers would pass every comparison below
        program += [(0x35, 0, 1, 0x40000000), (0x06, 0, 0, deny)]
    for number in numbers:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, deny)]
    if not processes:
        clone, clone3 = _CALLS["clone"][column], _CALLS["clone3"][column]
        assert clone is not None
        assert clone3 is not None
        # clone3's flags lie in memory, out of a filter's reach: "no such call" makes the C library use clone
        program += [(0x15, 0, 1, clone3), (0x06, 0, 0, 0x00050000 | errno.ENOSYS)]
        program += [(0x15, 0, 3, clone), (0x20, 0, 0, 16), (0x45, 1, 0, _CLONE_THREAD), (0x06, 0, 0, deny)]
    program += [(0x06, 0, 0, allow)]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    _no_new_privileges()
    filters = Program(len(program), ctypes.cast(buffer, ctypes.c_void_p))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filters), 0, 0) != 0:
        raise NotConfined(ctypes.get_errno(), "no seccomp filters")


def _no_new_privileges() -> None:
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise NotConfined(ctypes.get_errno(), "no_new_privs cannot be set")


def apply(spec: Mapping[str, object]) -> dict[str, str]:
    """Raise every fence of a spec (see `run.Confinement.spec`); what could not be raised, with the reason."""
    missing: dict[str, str] = {}

    def fence(name: str, raise_it: object) -> None:
        try:
            raise_it()  # type: ignore[operator]
        except OSError as error:
            missing[name] = str(error)

    limits: Mapping[str, int] = spec.get("limits") or {}  # type: ignore[assignment]
    set_limits(limits)
    if spec.get("network", True):
        fence("network", leave_network)
    files: Mapping[str, Sequence[str]] | None = spec.get("files")  # type: ignore[assignment]
    if files is not None:
        fence("files", lambda: restrict_files(files["readable"], files["writable"], files.get("executable")))
    if spec.get("calls", True):
        fence("calls", lambda: restrict_calls(processes=True, signals=landlock_version() >= 6))
    return missing


def main(arguments: list[str]) -> int:
    """Confine this process by the JSON in the first argument, report to its ``report`` descriptor, exec."""
    spec = json.loads(arguments[0])
    missing = apply(spec)
    report = spec["report"]
    os.write(report, (json.dumps(missing) + "\n").encode())
    os.close(report)
    refuse = sorted(set(missing) & set(spec.get("required", ())))
    if refuse:
        return 126
    program = arguments[2:]
    try:
        os.execv(program[0], program)
    except OSError as error:
        print(f"cannot run {program[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
