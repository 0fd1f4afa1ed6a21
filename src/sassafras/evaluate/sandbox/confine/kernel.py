"""The C library's door to the kernel, and what all fences share."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_NO_NEW_PRIVS = 38


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
