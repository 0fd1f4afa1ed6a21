"""Files that are complete or not there. Imports nothing of ours, so that captured programs stay light."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file beside its place and put it there in one step; text as UTF-8.

    A reader sees the old file or the new one, even when several processes write concurrently or one is
    killed. Folders above it are made. A device or a pipe (``/dev/stdout``) is written to, not replaced.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid():x}-{threading.get_ident():x}.part")
    try:
        part.write_bytes(data.encode() if isinstance(data, str) else data)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
