"""The store's file: its schema, and how it is opened without ever harming a file that is not ours."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sassafras.core import StoreError
from sassafras.core.errors import file_limit, os_errors

#: written into the SQLite header, so that a foreign database is recognised ("SASF")
APPLICATION_ID = 0x53415346
#: SQLite's user_version; a file with a higher one was written by a newer Sassafras
SCHEMA_VERSION = 2
#: how long a writer waits for another process's transaction
BUSY_SECONDS = 30.0
_LEFT = "the file was left as it is; name another with --store or SASSAFRAS_STORE"

SCHEMA = """
CREATE TABLE cubins (
    digest TEXT PRIMARY KEY,                -- sha256 of the uncompressed bytes, checked on every read
    size INTEGER NOT NULL,
    data BLOB NOT NULL                      -- zlib
) WITHOUT ROWID;

CREATE TABLE kernels (                      -- originals: code, launch facts, what they were built from
    id INTEGER PRIMARY KEY,
    cubin TEXT NOT NULL REFERENCES cubins(digest),
    name TEXT NOT NULL,
    arch TEXT NOT NULL,
    launch TEXT NOT NULL,                   -- JSON, see Kernel.launch_facts
    source_hash TEXT NOT NULL,
    signature TEXT NOT NULL,                -- JSON
    constants TEXT NOT NULL,                -- JSON
    ptxas TEXT NOT NULL,
    options TEXT NOT NULL,                  -- JSON
    meta TEXT NOT NULL,                     -- JSON
    UNIQUE (cubin, name, arch, launch, source_hash, signature, constants, ptxas, options)
);
CREATE INDEX kernels_by_source ON kernels(source_hash, arch);

CREATE TABLE runs (                         -- one search; the same key means the same search
    id INTEGER PRIMARY KEY,
    key TEXT UNIQUE,                        -- NULL once superseded by a fresh start
    kernel INTEGER NOT NULL REFERENCES kernels(id),
    workload TEXT NOT NULL,
    case_name TEXT NOT NULL,
    device TEXT NOT NULL,
    modelled INTEGER NOT NULL CHECK (modelled IN (0, 1)),
    strategy TEXT NOT NULL,
    seed INTEGER NOT NULL,
    spec TEXT NOT NULL,                     -- JSON: everything the key is made of
    environment TEXT NOT NULL,              -- JSON
    created TEXT NOT NULL,                  -- UTC, ISO 8601
    origin TEXT NOT NULL DEFAULT 'local' CHECK (origin IN ('local', 'import')),
    uid TEXT NOT NULL UNIQUE,               -- stays the same through export and import
    finished_budget TEXT,                   -- the budget that `result` was found with; NULL while open
    result TEXT                             -- JSON
);

CREATE TABLE evaluations (                  -- one row appended per evaluation, never changed
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    digest TEXT NOT NULL,
    modelled INTEGER NOT NULL CHECK (modelled IN (0, 1)),
    verdict TEXT,
    time_us REAL, baseline_us REAL,
    speedup REAL, low REAL, high REAL,
    null_speedup REAL, null_low REAL, null_high REAL,
    samples INTEGER NOT NULL DEFAULT 0,
    cycles REAL, baseline_cycles REAL,
    detail TEXT NOT NULL, seconds REAL NOT NULL, facts TEXT NOT NULL,
    took REAL NOT NULL,                     -- seconds of the search's budget that it cost
    recipe BLOB NOT NULL,                   -- JSON, zlib
    recorded TEXT NOT NULL,
    UNIQUE (run, digest),
    CHECK (modelled = 0 OR (speedup IS NULL AND time_us IS NULL AND baseline_us IS NULL)),
    CHECK (modelled = 1 OR (cycles IS NULL AND baseline_cycles IS NULL)),
    CHECK (modelled = 1 OR verdict IS NOT NULL)
);

CREATE TABLE winners (                      -- measured on a real GPU; the only table that deployment reads
    id INTEGER PRIMARY KEY,
    kernel INTEGER NOT NULL REFERENCES kernels(id),
    tuned TEXT NOT NULL REFERENCES cubins(digest),
    gpu TEXT NOT NULL,
    speedup REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
    null_speedup REAL NOT NULL, null_low REAL NOT NULL, null_high REAL NOT NULL,
    samples INTEGER NOT NULL,
    workload TEXT NOT NULL, case_name TEXT NOT NULL,
    run TEXT,                               -- uid of the run that found it
    facts TEXT NOT NULL,                    -- JSON: validator, environment, evaluation
    created TEXT NOT NULL,
    origin TEXT NOT NULL DEFAULT 'local' CHECK (origin IN ('local', 'import')),
    uid TEXT NOT NULL UNIQUE
);
CREATE INDEX winners_by_kernel ON winners(kernel, gpu);

CREATE TABLE calls (                         -- searches on call, a row a key; see claims.py
    key TEXT PRIMARY KEY,                   -- cubin and GPU model; or a GPU, whose turn the owner has
    state TEXT NOT NULL CHECK (state IN ('running', 'done', 'refused')),
    setting TEXT NOT NULL,                  -- what was asked for: budget, version
    detail TEXT NOT NULL,
    host TEXT NOT NULL, pid INTEGER NOT NULL, started INTEGER NOT NULL, -- the owner; see claims.Owner
    since TEXT NOT NULL
);

CREATE TABLE modelled_winners (             -- what the timing model liked best; never a measurement
    id INTEGER PRIMARY KEY,
    kernel INTEGER NOT NULL REFERENCES kernels(id),
    tuned TEXT NOT NULL REFERENCES cubins(digest),
    model TEXT NOT NULL,
    modelled_ratio REAL NOT NULL,
    workload TEXT NOT NULL, case_name TEXT NOT NULL,
    run TEXT,
    facts TEXT NOT NULL,
    created TEXT NOT NULL,
    origin TEXT NOT NULL DEFAULT 'local' CHECK (origin IN ('local', 'import')),
    uid TEXT NOT NULL UNIQUE
);
"""


#: schema version -> tables that the next one adds
_ADDED = {1: ("calls",)}
#: from this version on SQLite can refuse a value that is not of its column's type
_STRICT_SINCE = (3, 37)


def schema() -> str:
    """`SCHEMA`, with typed columns where this SQLite knows them. Readers check types all the same."""
    if sqlite3.sqlite_version_info < _STRICT_SINCE:
        return SCHEMA
    tables = re.sub(r"^\) WITHOUT ROWID;", ") WITHOUT ROWID, STRICT;", SCHEMA, flags=re.MULTILINE)
    return re.sub(r"^\);", ") STRICT;", tables, flags=re.MULTILINE)


def default_path() -> Path:
    """``$SASSAFRAS_STORE``, or ``sassafras/store.sqlite`` in the user's data directory (XDG).

    Raises:
        StoreError: the user has no home directory.
    """
    named, base = os.environ.get("SASSAFRAS_STORE"), os.environ.get("XDG_DATA_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path.home() / ".local" / "share") / "sassafras" / "store.sqlite"
    except RuntimeError as error:  # a container's user may have none
        what = "there is no home directory to keep the store in"
        raise StoreError(what, where=named, hint="set HOME, or name a file with SASSAFRAS_STORE") from error


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open the store at `path`, creating it (and its folder) where there is none.

    Raises:
        StoreError: the file is corrupt, belongs to another program, was written by a newer Sassafras,
            or cannot be opened. The file is left exactly as it was.
    """
    where, elsewhere = str(path), "name another place with --store or SASSAFRAS_STORE"
    if not readonly:
        with os_errors("cannot create the store's folder", where, StoreError, hint=elsewhere):
            path.parent.mkdir(parents=True, exist_ok=True)
    if not _refuse_foreign(path) and readonly:
        raise StoreError("there is no store here", where=where, hint="run `sassafras optimize` first")
    try:
        if readonly:
            return _connect_readonly(path)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    except sqlite3.OperationalError as error:
        raise StoreError(f"cannot open the store: {error}", where=where, hint=elsewhere) from error
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        _prepare(connection, where)
        _use_wal(connection)
        # kill -9 loses nothing under NORMAL; only a power cut can lose the latest rows (never the file)
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StoreError(
            f"cannot use the store: {error}{file_limit()}", where=where, hint=hint(error)
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def hint(error: sqlite3.Error) -> str:
    """What to do where SQLite refuses a store."""
    if "locked" in str(error):
        return "another process has been writing for long; try again"
    if "readonly" in str(error):
        return "the file or its folder is read-only"
    if "I/O" in str(error) or "full" in str(error):
        return "its disk may be full: a reader, too, needs 32 KiB there"
    return "the file was left as it is; move it away, or name another with --store or SASSAFRAS_STORE"


def _foreign(where: str, application: int) -> StoreError:
    what = f"this database belongs to another program (application id {application:#x})"
    return StoreError(what, where=where, hint=_LEFT)


def _refuse_foreign(path: Path) -> bool:
    """Read the header without SQLite, which would roll back a foreign file's journal on opening it.

    Returns:
        Whether there is a file.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"cannot read the store: {error.strerror}", where=str(path)) from error
    if not header:
        return True  # an empty file: created, or about to be filled, by another process of ours
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise StoreError("this file is not a Sassafras store", where=str(path), hint=_LEFT)
    if (found := int.from_bytes(header[68:72], "big")) not in (APPLICATION_ID, 0):
        raise _foreign(str(path), found)
    return True


def _connect_readonly(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    # A reader of a WAL database needs its -shm file; in a folder that cannot be written there may be none,
    # and then no other process can be writing either.
    shm = Path(f"{path}-shm")
    immutable = not os.access(path.parent, os.W_OK) and not shm.exists()
    connection = sqlite3.connect(
        f"{uri}?mode=ro" + ("&immutable=1" if immutable else ""),
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
    )
    try:
        _check(connection, str(path))
    except sqlite3.DatabaseError as error:
        connection.close()
        what = f"cannot read the store: {error}{file_limit()}"
        raise StoreError(what, where=str(path), hint=hint(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def whole(connection: sqlite3.Connection, *, write: bool = True) -> Iterator[None]:
    """All or nothing, or one consistent view where `write` is False. Raises sqlite3.DatabaseError."""
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk makes SQLite roll back by itself
            connection.execute("ROLLBACK")
        raise


def _prepare(connection: sqlite3.Connection, where: str) -> None:
    """Create the schema in an empty file, else check that the file is ours."""
    if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
        with whole(connection):  # one creator; the others find it done
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                for statement in schema().split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    _check(connection, where)
    _upgrade(connection)


def _upgrade(connection: sqlite3.Connection) -> None:
    """Add the tables that later versions brought; rows stay."""
    while connection.execute("PRAGMA user_version").fetchone()[0] < SCHEMA_VERSION:
        with whole(connection):
            version = connection.execute("PRAGMA user_version").fetchone()[0]  # another process may be first
            for table in _ADDED.get(version, ()):
                (statement,) = (s for s in schema().split(";\n") if f"CREATE TABLE {table} " in s)
                connection.execute(statement)
            if version < SCHEMA_VERSION:
                connection.execute(f"PRAGMA user_version = {version + 1}")


def _check(connection: sqlite3.Connection, where: str) -> None:
    with whole(connection, write=False):  # one view of the file, which another process may be creating
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == version == tables == 0:
        raise StoreError("there is no store here: the file is empty", where=where)
    if application != APPLICATION_ID:
        raise _foreign(where, application)
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the store has schema version {version}, this Sassafras knows {SCHEMA_VERSION}",
            where=where,
            hint="upgrade Sassafras, or name another store",
        )
    if version < 1:
        raise StoreError(f"the store has the impossible schema version {version}", where=where)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; the switch itself does not honour the busy timeout."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
