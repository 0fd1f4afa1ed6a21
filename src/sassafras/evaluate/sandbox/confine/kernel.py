"""The C library's door to the kernel, and what all fences share."""

from __future__ import annotations

import ctypes
import errno
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_NO_NEW_PRIVS = 38
_CLONE, _CLONE_PARENT = 56, 0x8000  # x86-64


class NotConfined(OSError):
    """The kernel does not offer a fence that was asked for."""


def last_error(what: str) -> NotConfined:
    """`NotConfined` for the call that failed just now."""
    code = ctypes.get_errno()
    return NotConfined(code, f"{what}: {os.strerror(code)}")


def no_new_privileges() -> None:
    """Set-user-ID programs gain nothing from here on. Raises NotConfined."""
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise last_error("no_new_privs cannot be set")


def fork_sibling() -> int:
    """fork(2), but the new process is our parent's child: the parent waits for it, and it may outlive us.

    No hook of Python or the C library runs in it, so it should do little before it forks (by `os.fork`) a
    process that does more. For x86-64. Raises OSError, also where this process has several threads.
    """
    if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208
        raise OSError(errno.EAGAIN, "what another thread holds would stay held in a fork")
    words = (ctypes.c_long(word) for word in (_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    pid = ctypes.PyDLL(None, use_errno=True).syscall(*words)  # the interpreter's lock stays ours
    if pid < 0:
        raise OSError(ctypes.get_errno(), "no clone with CLONE_PARENT")
    return int(pid)
