"""What a confined program holds, seen from outside: memory, disk, processes, threads.

Resident memory alone would miss memory behind files: what was written to a memory file that is not mapped, or
was touched in a shared mapping and dropped from it. Those are counted by their size. Disk is what lies in the
scratch folder and what was removed there while a descriptor or a mapping still holds it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass

#: a file's own cost in the file system, whatever it holds
_INODE_BYTES = 1024
#: mappings whose pages are memory that no disk stands behind
_MEMORY = ("/memfd:", "/dev/zero", "/dev/shm/", "/SYSV")
_MAP = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+) (\d+) +(.*?)( \(deleted\))?$")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(slots=True)
class Held:
    """What a session's processes hold.

    Attributes:
        memory: bytes, resident and behind memory files.
        disk: bytes of files, removed ones included; of a `thorough` look only.
        processes, threads: their numbers.
    """

    memory: int = 0
    disk: int = 0
    processes: int = 0
    threads: int = 0


def members(session: int) -> Iterator[tuple[int, list[str]]]:
    """(process id, fields of its stat from the state on) of the session's living processes."""
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH208, PTH112 (hot loop)
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:  # noqa: PTH123
                fields = file.read().rsplit(")", 1)[1].split()
            if int(fields[3]) == session and fields[0] != "Z":
                yield int(entry), fields
        except (OSError, IndexError, ValueError):
            continue


def held(session: int, helpers: Collection[int], *, scratch: str = "", ours: Collection[int] = ()) -> Held:
    """What the processes of a session hold now; nothing where the system does not tell.

    Args:
        session: its id.
        helpers: processes of it that are not the program's.
        scratch: a folder to look through, for a thorough look: disk, and memory behind files, count too.
        ours: inode numbers of memory files that the caller has given to the program.
    """
    found = Held()
    files: dict[tuple[bytes, int], int] = {}
    for pid, fields in members(session):
        if pid in helpers:
            continue
        found.processes += 1
        found.threads += int(fields[17])
        found.memory += int(fields[21]) * _PAGE
        if scratch:
            found.memory -= _shared(pid)
            for key, size in _behind_files(pid).items():
                files[key] = max(files.get(key, 0), size)
    for (kind, inode), size in files.items():
        if kind == b"disk":
            found.disk += size
        elif inode not in ours:
            found.memory += size
    if scratch:
        found.disk += folder_bytes(scratch)
    return found


def _shared(pid: int) -> int:
    """Resident bytes of shared memory, which `_behind_files` counts whole."""
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
            found = re.search(r"^RssShmem:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def _behind_files(pid: int) -> dict[tuple[bytes, int], int]:
    """Bytes by (memory or disk, inode): removed files and memory files that a process has open or mapped."""
    sizes: dict[tuple[bytes, int], int] = {}
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
            for line in file:
                found = _MAP.match(line)
                if not found or not found[6] or found[4] == b"0":
                    continue
                kind = b"memory" if found[5].startswith(tuple(m.encode() for m in _MEMORY)) else b"disk"
                key = (kind, int(found[4]))
                sizes[key] = sizes.get(key, 0) + int(found[2], 16) - int(found[1], 16)
        for entry in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            path = f"/proc/{pid}/fd/{entry}"
            try:
                about = os.stat(path)  # noqa: PTH116
                if about.st_nlink or not stat.S_ISREG(about.st_mode):
                    continue
                kind = b"memory" if os.readlink(path).startswith(_MEMORY) else b"disk"  # noqa: PTH115
            except OSError:
                continue
            key = (kind, about.st_ino)
            sizes[key] = max(sizes.get(key, 0), 512 * about.st_blocks)
    except OSError:
        pass  # it has ended
    return sizes


def folder_bytes(folder: str, most_files: int = 10_000) -> int:
    """Bytes on disk below a folder; very many where it holds more files than that, or hides what it holds."""
    total = seen = 0
    hidden: list[OSError] = []
    for where, folders, names in os.walk(folder, onerror=hidden.append):
        seen += len(folders) + len(names)
        if seen > most_files:
            return 1 << 62
        for name in (*folders, *names):
            try:
                total += 512 * os.lstat(os.path.join(where, name)).st_blocks + _INODE_BYTES  # noqa: PTH118
            except OSError:
                continue  # removed meanwhile
    # a folder that was removed while we looked is none; one that cannot be read, or lies too deep, is hidden
    return 1 << 62 if any(not isinstance(error, FileNotFoundError) for error in hidden) else total


def stopped(pids: Collection[int]) -> bool:
    """True when no thread of these processes runs or could run: stopped by a signal, or ended."""
    try:
        for pid in pids:
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                with open(f"/proc/{pid}/task/{thread}/stat") as file:  # noqa: PTH123
                    if file.read().rsplit(")", 1)[1].split()[0] not in "TZXx":
                        return False
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended
    return True


def processor_ns(pids: Collection[int]) -> int:
    """Nanoseconds that all threads of these processes have run, ended threads left out."""
    total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                with open(f"/proc/{pid}/task/{thread}/schedstat") as file:  # noqa: PTH123
                    total += int(file.read().split()[0])
        except (OSError, IndexError, ValueError):
            continue
    return total
