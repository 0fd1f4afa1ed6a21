"""Workloads from recorded launches."""

from __future__ import annotations

#: of the files of a capture; raised when they change
FORMAT = 1
