"""Whether processes that a test has started still run."""

from __future__ import annotations

import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether it runs; what has ended and waits for its parent alone does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended while that was read
        return False


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether it ends within so many seconds."""
    deadline = time.monotonic() + within
    while running := alive(pid):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return not running
