"""Who searches what on call: at most one process a kernel, and one a GPU, over all processes of a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from .database import Database
from .rows import now

#: a claim of another host, whose processes cannot be looked at, ends after so long
_FOREIGN = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from a later one with the same id.

    Attributes:
        host: machine, boot and PID namespace.
        pid: process id.
        started: ticks between boot and its start; 0 where the system does not tell.
    """

    host: str
    pid: int
    started: int

    @classmethod
    def me(cls) -> Self:
        """This process."""
        return cls(_host(), os.getpid(), _started(os.getpid()))

    def alive(self, since: str) -> bool:
        """Whether it may still run; `since` (ISO 8601) is when it claimed."""
        if self.host != _host():
            return abs(datetime.now(UTC) - datetime.fromisoformat(since)) < _FOREIGN  # clocks jump, too
        return self.started == _started(self.pid) != 0


@dataclass(frozen=True, slots=True)
class Call:
    """What the store says of a key: ``running``, ``done`` or ``refused``, with what setting, and details."""

    state: str
    setting: str
    detail: str
    owner: Owner
    since: str


def claim(store: Database, keys: tuple[str, ...], setting: str, owner: Owner) -> Call | None:
    """Take all keys for `owner`, or none of them.

    The last key is the kernel's: where it was settled with this setting, it is not taken. Claims of processes
    that have ended are taken over.

    Returns:
        None where they are the owner's now, else the row that stands in the way.

    Raises:
        StoreError: the store cannot be written.
    """
    with store.transaction() as db:
        for key in keys:
            found = look(store, key)
            if found is None:
                continue
            if found.state == "running":
                if found.owner != owner and found.owner.alive(found.since):
                    return found
            elif found.setting == setting:
                return found
        for key in keys:
            _put(db, key, "running", setting, "", owner)
    return None


def take_turn(store: Database, key: str, ticket: str, owner: Owner) -> Owner | None:
    """`claim` one key in the order of tickets; asked again until it is the owner's.

    Args:
        ticket: sorts as text after those of earlier callers; unique.

    Returns:
        None where the key is the owner's now, else the process that comes before it.

    Raises:
        StoreError: the store cannot be written.
    """
    queue = f"{key} ticket "
    with store.transaction() as db:
        _put(db, queue + ticket, "running", "", "", owner)
        earlier = "SELECT key FROM calls WHERE substr(key, 1, ?) = ? AND key < ? ORDER BY key"
        for (other,) in db.execute(earlier, (len(queue), queue, queue + ticket)).fetchall():
            if (found := look(store, other)) is not None and found.owner.alive(found.since):
                return found.owner
            db.execute("DELETE FROM calls WHERE key = ?", (other,))
        if (row := claim(store, (key,), "", owner)) is not None:
            return row.owner
        db.execute("DELETE FROM calls WHERE key = ?", (queue + ticket,))
    return None


def settle(store: Database, key: str, state: str, setting: str, detail: str, owner: Owner) -> None:
    """Say how a claimed search ended: ``done`` or ``refused``. Raises StoreError."""
    with store.transaction() as db:
        _put(db, key, state, setting, detail, owner)


def release(store: Database, key: str, owner: Owner) -> None:
    """Give a key back, if it is the owner's. Raises StoreError."""
    with store.transaction() as db:
        db.execute(
            "DELETE FROM calls WHERE key = ? AND state = 'running' AND host = ? AND pid = ? AND started = ?",
            (key, owner.host, owner.pid, owner.started),
        )


def look(store: Database, key: str) -> Call | None:
    """The row of a key. Raises StoreError."""
    with store.transaction(write=False) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchone():
            return None  # a store of an earlier version, opened to read
        row = db.execute(
            "SELECT state, setting, detail, host, pid, started, since FROM calls WHERE key = ?", (key,)
        ).fetchone()
    if row is None:
        return None
    state, setting, detail, host, pid, started, since = row
    return Call(state, setting, detail, Owner(host, pid, started), since)


def _put(db: Any, key: str, state: str, setting: str, detail: str, owner: Owner) -> None:
    row: Mapping[str, Any] = {
        "key": key, "state": state, "setting": setting, "detail": detail[:1000],
        "host": owner.host, "pid": owner.pid, "started": owner.started, "since": now(),
    }  # fmt: skip
    marks = ", ".join("?" * len(row))
    db.execute(f"INSERT OR REPLACE INTO calls ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _host() -> str:
    """Machine, boot and PID namespace: within one of these a process id means something."""
    parts = [os.uname().nodename]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: str(Path("/proc/self/ns/pid").readlink()),
    ):
        try:
            parts.append(read())
        except OSError:
            parts.append("")
    return " ".join(parts)


def _started(pid: int) -> int:
    """Field 22 of ``/proc/PID/stat``; 0 where there is no such process, or only its exit status is left."""
    try:  # the second field may hold spaces and brackets
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0
