"""Many GPUs, many hosts: searches, sweeps and sampling on Ray's actors, one worker a GPU."""

from __future__ import annotations

from .pool import Pool, Task
from .remote import connected

__all__ = ["Pool", "Task", "connected"]
