"""Files that are complete or not there. Imports nothing of ours, so that captured programs stay light."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file beside its place and put it there in one step; text as UTF-8.

    A reader sees the old file or the new one, even when several processes write concurrently or one is
    killed. Folders above it are made. A device or a pipe (``/dev/stdout``) is written to, not replaced; of a
    link the file that it names is. Mode and owner of a file stay.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    data = data.encode() if isinstance(data, str) else data
    before = path.stat() if path.exists() else None
    if before is not None and not stat.S_ISREG(before.st_mode):
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name[:50]}.{os.getpid():x}-{threading.get_ident():x}.part")
    try:
        with part.open("wb") as file:
            with contextlib.suppress(OSError):  # not on every file system, nor any owner but by root
                if before is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.write(data)
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
        try:
            yield
        finally:
            if path:  # a child that was forked meanwhile has it, too
                fcntl.flock(file, fcntl.LOCK_UN)


@cache
def code_digest(*rooms: str) -> str:
    """SHA-256 of the package's code and tables in these rooms, as this process first saw them."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(p for room in rooms for p in (root / room).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
