"""The fence around system calls: a seccomp filter that allows what is on a list and refuses the rest.

The list is what the C library, Python, torch, Triton, gcc and the CUDA tools call (traced with strace),
without anything that reaches another process, another user's memory, the clock, or the filter itself. Calls
whose arguments decide are checked: `prlimit64` only reads, `clone` makes no namespace, `prctl`, `fcntl` and
`ioctl` know a list of commands, signals go to the caller alone. Numbers: Linux, x86-64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

from .kernel import NotConfined, last_error, libc, no_new_privileges

#: harmless whatever the arguments are
ALLOWED: dict[str, int] = {
    # files and descriptors. Which files is Landlock's part, which knows nothing of modes, owners and times:
    # no chmod, chown, utime; nor of truncating before its ABI 3: no truncate, and see `_open`
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "pread64": 17,
    "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "dup": 32, "dup2": 33,
    "sendfile": 40, "flock": 73, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getdents": 78,
    "getcwd": 79, "chdir": 80, "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85,
    "link": 86, "unlink": 87, "symlink": 88, "readlink": 89, "umask": 95, "statfs": 137, "fstatfs": 138,
    "readahead": 187, "getxattr": 191, "lgetxattr": 192, "fgetxattr": 193, "listxattr": 194,
    "llistxattr": 195, "flistxattr": 196, "getdents64": 217, "fadvise64": 221, "mkdirat": 258,
    "newfstatat": 262, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266, "readlinkat": 267,
    "faccessat": 269, "fallocate": 285, "dup3": 292, "pipe2": 293, "preadv": 295, "pwritev": 296,
    "renameat2": 316, "copy_file_range": 326, "preadv2": 327, "pwritev2": 328, "statx": 332,
    "close_range": 436, "faccessat2": 439,
    # waiting
    "poll": 7, "select": 23, "sched_yield": 24, "pause": 34, "nanosleep": 35, "futex": 202,
    "epoll_create": 213, "restart_syscall": 219, "clock_nanosleep": 230, "epoll_wait": 232,
    "epoll_ctl": 233, "pselect6": 270, "ppoll": 271, "epoll_pwait": 281, "timerfd_create": 283,
    "eventfd": 284, "timerfd_settime": 286, "timerfd_gettime": 287, "eventfd2": 290, "epoll_create1": 291,
    "epoll_pwait2": 441, "futex_waitv": 449,
    # memory of its own
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "msync": 26, "mincore": 27,
    "madvise": 28, "mlock": 149, "munlock": 150, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239,
    "membarrier": 324, "mlock2": 325,
    # its threads, its signal handlers, its end
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "exit": 60, "wait4": 61,
    "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sigaltstack": 131,
    "arch_prctl": 158, "gettid": 186, "set_tid_address": 218, "exit_group": 231, "waitid": 247,
    "set_robust_list": 273, "get_robust_list": 274, "rseq": 334,
    # asking
    "getpid": 39, "uname": 63, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99,
    "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110,
    "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120, "getpgid": 121, "getsid": 124,
    "capget": 125, "getpriority": 140, "sched_getparam": 143, "sched_getscheduler": 145,
    "sched_get_priority_max": 146, "sched_get_priority_min": 147, "time": 201, "sched_getaffinity": 204,
    "clock_gettime": 228, "clock_getres": 229, "getcpu": 309, "sched_getattr": 315, "getrandom": 318,
    # giving up more
    "seccomp": 317, "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
}  # fmt: skip
#: only while other programs may be started (a compiler driver)
PROCESSES = {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322}
#: only with a CUDA driver: socket pairs and what is done with them, memory files, which count as memory (see
#: `watch`), and a Unix socket that listens: the driver offers its memory manager's descriptor on one, and
#: does not start where it cannot. No connection is answered: no accept. And none is made: no connect, and
#: no datagram socket, which sends to any address (see `_stream`).
CUDA = {
    "sendto": 44,
    "recvfrom": 45,
    "sendmsg": 46,
    "recvmsg": 47,
    "shutdown": 48,
    "bind": 49,
    "listen": 50,
    "getsockname": 51,
    "getsockopt": 55,
    "memfd_create": 319,
}
_OPEN, _OPENAT, _OPENAT2 = 2, 257, 437
_IOCTL, _KILL, _FCNTL, _PRCTL, _TGKILL, _CLONE = 16, 62, 72, 157, 234, 56
_SOCKET, _SOCKETPAIR, _SETSOCKOPT = 41, 53, 54
_PRLIMIT, _CLONE3 = 302, 435

_CLONE_THREAD, _CLONE_PARENT = 0x00010000, 0x00008000
#: mount, cgroup, UTS, IPC, user, PID and network namespaces
_CLONE_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
#: get: death signal, dumpable, seccomp, capabilities and their bits, timer slack, no_new_privs, huge pages;
#: set: name, seccomp, no_new_privs, huge pages, names of mappings. Not set: the death signal, dumpable (the
#: judge reads /proc), subreaper.
_PRCTL_OPTIONS = (2, 3, 15, 16, 21, 22, 23, 27, 30, 38, 39, 41, 42, 0x53564D41)
#: duplicates, flags, locks, pipe size, seals. Not: owners, signals, leases, directory notes: each can have
#: the kernel send a signal, and SIGCONT would wake a stopped process.
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032, 1033, 1034)
#: terminal state and size, process group of the terminal, bytes waiting, non-blocking, close-on-exec
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451)
#: types of Unix sockets that send only where they are connected: streams, sequences of packets
_CONNECTED = (1, 5)
#: of the socket itself: buffer sizes, credentials, time limits. Not: programs that filter packets.
_SOCKET_OPTIONS = (7, 8, 16, 20, 21)
#: commands of nvidia-uvm above 255: its start, its end, and "is this version 8"
_UVM_COMMANDS = (0x30000001, 0x30000002, 2047)
#: highest number that was judged; what is newer "does not exist", so that the C library does without
_NEWEST = 462

_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
_DENY, _ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_LOAD, _EQUAL, _GREATER, _AT_LEAST, _SET = 0x20, 0x15, 0x25, 0x35, 0x45
_RETURN, _SHIFT, _AND = 0x06, 0x74, 0x54
Line = tuple[int, int, int, int]  # code, jump if true, jump if false, constant
_MACHINE = 0xC000003E  # AUDIT_ARCH_X86_64


def _low(argument: int) -> Line:
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _high(argument: int) -> Line:
    return (_LOAD, 0, 0, 20 + 8 * argument)


def _one_of(argument: int, values: Iterable[int]) -> list[Line]:
    """Allow when the argument's low half is one of these; falls through otherwise."""
    lines = [_low(argument)]
    for value in values:
        lines += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return lines


def _when(number: int, body: list[Line], otherwise: int = _DENY) -> list[Line]:
    """A system call whose arguments decide: what `body` does not allow is refused."""
    whole = [*body, (_RETURN, 0, 0, otherwise)]
    return [(_EQUAL, 0, len(whole), number), *whole]


def _open(flags: int) -> list[Line]:
    """Opening, but for O_TRUNC without a mode that writes: early Landlock takes that for reading."""
    return [
        _low(flags),
        (_SET, 0, 3, os.O_TRUNC),
        (_AND, 0, 0, os.O_ACCMODE),
        (_EQUAL, 0, 1, os.O_RDONLY),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _cuda_ioctls() -> list[Line]:
    """Commands of type F (nvidiactl, nvidia0), and those of nvidia-uvm, which are small numbers."""
    return [
        _low(1),
        (_SHIFT, 0, 0, 8),
        (_AND, 0, 0, 0xFF),
        (_EQUAL, 0, 1, ord("F")),
        (_RETURN, 0, 0, _ALLOW),
        _low(1),
        (_GREATER, 1, 0, 0xFF),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _stream() -> list[Line]:
    """A Unix socket, or a pair, of a connected type."""
    return [
        _low(0),
        (_EQUAL, 1, 0, 1),
        (_RETURN, 0, 0, _DENY),
        *[
            line
            for kind in _CONNECTED
            for line in (_low(1), (_AND, 0, 0, 0xF), (_EQUAL, 0, 1, kind), (_RETURN, 0, 0, _ALLOW))
        ],
    ]


def program(*, processes: bool, signals: bool = True, cuda: bool = False, pid: int = 0) -> list[Line]:
    """The filter as lines of classic BPF; see `restrict_calls`. `pid`: the process it is made for."""
    lines: list[Line] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _MACHINE),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, 0x40000000),
        (_RETURN, 0, 0, _DENY),  # numbers of x32
    ]
    allowed = {**ALLOWED, **(PROCESSES if processes else {}), **(CUDA if cuda else {})}
    for number in sorted(allowed.values()):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    # reading its own limits: no process id, no new limit
    null = [_low(2), (_EQUAL, 0, 3, 0), _high(2), (_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)]
    lines += _when(_PRLIMIT, [_low(0), (_EQUAL, 0, len(null), 0), *null])
    lines += [*_when(_OPEN, _open(1)), *_when(_OPENAT, _open(2))]
    # flags that lie in memory are out of a filter's reach: "no such call" makes the C library use the older
    lines += [*_when(_CLONE3, [], _ABSENT), *_when(_OPENAT2, [], _ABSENT)]
    bad = _CLONE_NAMESPACES | _CLONE_PARENT
    thread = [] if processes else [(_SET, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _DENY)]
    lines += _when(_CLONE, [_low(0), *thread, (_SET, 1, 0, bad), (_RETURN, 0, 0, _ALLOW)])
    lines += _when(_PRCTL, _one_of(0, _PRCTL_OPTIONS))
    lines += _when(_FCNTL, _one_of(1, _FCNTL_COMMANDS))
    driver = [*_cuda_ioctls(), *_one_of(1, _UVM_COMMANDS)] if cuda else []
    lines += _when(_IOCTL, [*_one_of(1, _IOCTL_COMMANDS), *driver])
    if cuda:
        lines += [*_when(_SOCKET, _stream()), *_when(_SOCKETPAIR, _stream())]
        own = [_low(1), (_EQUAL, 1, 0, 1), (_RETURN, 0, 0, _DENY)]  # SOL_SOCKET
        lines += _when(_SETSOCKOPT, [*own, *_one_of(2, _SOCKET_OPTIONS)])
    for number in (_KILL, _TGKILL):
        if not (signals and processes):  # a process that cannot have children signals itself alone
            lines += _when(number, _one_of(0, (pid,)))
        else:
            lines += _when(number, [(_RETURN, 0, 0, _ALLOW)])
    return [*lines, (_AT_LEAST, 0, 1, _NEWEST + 1), (_RETURN, 0, 0, _ABSENT), (_RETURN, 0, 0, _DENY)]


def restrict_calls(*, processes: bool, signals: bool = True, cuda: bool = False) -> None:
    """Refuse (EPERM) every system call that is not on the list, in all threads and all that come of them.

    Args:
        processes: new processes and programs stay possible (a compiler driver needs them); threads always do.
        signals: signals may be sent to other processes (where a PID namespace or Landlock of ABI 6 confines
            them to descendants); ignored without `processes`: then they reach this process alone.
        cuda: what the CUDA driver needs besides.

    Raises:
        NotConfined: no seccomp filters, or another architecture than x86-64.
    """
    machine = platform.machine()
    if machine not in ("x86_64", "AMD64"):
        raise NotConfined(errno.ENOSYS, f"the list of system calls is for x86-64, this is {machine}")
    install(program(processes=processes, signals=signals, cuda=cuda, pid=os.getpid()))


def install(lines: list[Line]) -> None:
    """Put a filter in force for all threads of this process, for good. Raises NotConfined."""
    code = b"".join(struct.pack("<HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    no_new_privileges()
    filters = Program(len(lines), ctypes.cast(buffer, ctypes.c_void_p))
    # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC: libraries have started threads before
    if (done := libc.syscall(ALLOWED["seccomp"], 1, 1, ctypes.byref(filters))) != 0:
        what = "no seccomp filters" if done < 0 else "a thread has a filter of its own"
        raise last_error(what)
