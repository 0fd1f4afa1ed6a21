"""The fences around other processes: namespaces, the CPUs, capabilities, the parent's death."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping

from .kernel import last_error, libc

_NEWUSER, _NEWNS = 0x10000000, 0x00020000
#: fence: flag of unshare(2)
_NAMESPACES: Mapping[str, int] = {"network": 0x40000000, "ipc": 0x08000000, "pids": 0x20000000}
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18


def enter_namespaces() -> tuple[dict[str, str], set[str]]:
    """Leave the network, the IPC objects and (from the next fork on) the process ids of all others.

    Returns: what this kernel or its settings refuse, with the reason, by fence; and which of ``users`` and
        ``mounts`` (namespaces) are our own.
    """
    user, group = os.getuid(), os.getgid()
    own: set[str] = set()
    if libc.unshare(_NEWUSER) == 0:
        own.add("users")
        # files keep their owners, and the program its user; in the namespace no other user exists
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            try:
                with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                    file.write(line)
            except OSError:
                break
    missing: dict[str, str] = {}
    for name, flag in _NAMESPACES.items():
        if libc.unshare(flag) != 0:
            missing[name] = str(last_error(f"no {name} namespace"))
    if libc.unshare(_NEWNS) == 0 and libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0:
        own.add("mounts")
    return missing, own


def own_mounts(shared_bytes: int) -> list[str]:
    """In a PID and a mount namespace: /proc shows our processes alone, /dev/shm is ours and this large.

    Where the system refuses (containers mask parts of /proc), the old ones stay: the other fences guard them.

    Returns: folders that are the program's to write.
    """
    libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
    if shared_bytes:
        size = f"size={shared_bytes}".encode()
        if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID | _MS_NODEV, size) == 0:
            return ["/dev/shm"]
    return []


def end_with_parent() -> None:
    """SIGKILL to this process when the process that forked it ends."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def drop_capabilities() -> None:
    """None after the next exec, for any user (inside a user namespace root would have them all)."""
    for number in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    libc.capset(header, (ctypes.c_uint32 * 6)())
