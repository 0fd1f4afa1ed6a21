"""Giving up rights, in the process itself: limits, namespaces, few files, few system calls.

Standard library only: this package also runs outside its parent package, before anything else is imported
(``keeper.main``): a keeper confines a child, which then becomes the program, or calls it (``keeper.keep``).
Every fence but the limits is optional in the kernel:

========== ================================================= ============================
fence      what it stops                                     needs
========== ================================================= ============================
limits     CPU time, address space, file size, descriptors   nothing
network    everything but an empty loopback                  user and network namespaces
ipc        shared memory and queues of other processes       an IPC namespace
pids       seeing or signalling a process outside            a PID namespace
files      reading, writing, executing outside given folders Landlock (Linux 5.13)
calls      every system call that is not on a list           seccomp filters, x86-64
========== ================================================= ============================

Facts: landlock(7), seccomp(2), user_namespaces(7), pid_namespaces(7).
Numbers come from Linux's headers for x86-64.
"""

from __future__ import annotations

from .calls import restrict_calls
from .files import landlock_version, restrict_files
from .keeper import apply, keep, main
from .kernel import NotConfined, fork_sibling
from .namespaces import enter_namespaces

__all__ = [
    "NotConfined",
    "apply",
    "enter_namespaces",
    "fork_sibling",
    "keep",
    "landlock_version",
    "main",
    "restrict_calls",
    "restrict_files",
]
