"""The fence around files: Landlock."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from .kernel import NotConfined, last_error, libc, no_new_privileges

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
#: make, remove and so on of every kind; 13 bits in the first ABI, then REFER, TRUNCATE and IOCTL_DEV
_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_LATEST = (1 << 16) - 1
_OF_FILES = _EXECUTE | _WRITE | _READ | 1 << 14 | 1 << 15


def landlock_version() -> int:
    """The kernel's Landlock ABI; 0 without it."""
    return max(0, libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1))


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Allow these files and folders (whole trees) only; everything else is refused from now on.

    Args:
        readable: may be read, listed and executed.
        writable: may also be written, made and removed; never executed.

    Raises:
        NotConfined: no Landlock.
    """
    abi = landlock_version()
    if abi < 1:
        raise NotConfined(errno.ENOSYS, "no Landlock in this kernel")
    handled = _BY_ABI.get(abi, _LATEST)
    # struct landlock_ruleset_attr: files, TCP (ABI 4: bind 1, connect 2), scope (ABI 6: sockets 1, signals 2)
    attributes = struct.pack("<QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = libc.syscall(_CREATE, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        raise last_error("Landlock refused the rule set")
    rights: dict[str, int] = {}
    for path in readable:
        rights[path] = rights.get(path, 0) | _READ | _LIST | _EXECUTE
    for path in writable:
        rights[path] = rights.get(path, 0) | (handled & ~_EXECUTE)
    try:
        for path, access in rights.items():
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # what is not there needs no right
            try:
                if not os.path.isdir(path):  # noqa: PTH112 (runs without pathlib's start-up cost)
                    access &= _OF_FILES
                rule = struct.pack("<Qi", access & handled, fd)
                if libc.syscall(_ADD, rules, 1, rule, 0) != 0:
                    raise last_error(f"Landlock refused a rule for {path}")
            finally:
                os.close(fd)
        no_new_privileges()
        if libc.syscall(_RESTRICT, rules, 0) != 0:
            raise last_error("Landlock refused to restrict this process")
    finally:
        os.close(rules)
