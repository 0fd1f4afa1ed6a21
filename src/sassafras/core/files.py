"""Files that are complete or not there. Imports nothing of ours, so that captured programs stay light."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from functools import cache
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


def is_file(path: Path) -> bool:
    """Whether there is a file; False where the system does not let this process look."""
    try:
        return path.is_file()
    except OSError:
        return False


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold a lock file, one process of this machine at a time; one that dies lets it go. ``""``: no file."""
    with Path(path or os.devnull).open("a") as file:
        if path:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def code_digest(*rooms: str) -> str:
    """SHA-256 of the package's code and tables in these rooms, as this process first saw them."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(p for room in rooms for p in (root / room).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
