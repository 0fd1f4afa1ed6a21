"""The store's connection: transactions, clear errors, cubins by content, kernels by what they are."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sassafras.core import Kernel, StoreError
from sassafras.core.errors import file_limit, reason

from .rows import KEY_COLUMNS, dumps, kernel_columns
from .schema import connect, default_path, hint, whole

#: a cubin larger than this is refused (the largest of CUTLASS's are a few MB)
MAX_CUBIN_BYTES = 256 << 20
#: what `kernel_of` needs, after the cubin
KERNEL_COLUMNS = "k.cubin, k.name, k.arch, k.launch, k.meta"


class Database:
    """What every part of the store stands on."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._place = path.absolute()  # the program may change its folder
        self._file = _file(self._place)

    @classmethod
    def open(cls, path: str | Path | None = None, *, readonly: bool = False) -> Self:
        """Open (and create, unless `readonly`) the store at `path`, by default at `default_path()`.

        Raises:
            StoreError: corrupt, foreign, newer, locked, or not there.
        """
        path = default_path() if path is None else Path(path)
        return cls(path, connect(path, readonly=readonly))

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put_cubin(self, cubin: bytes) -> str:
        """Keep these bytes; returns their digest. Storing the same bytes again changes nothing."""
        if len(cubin) > MAX_CUBIN_BYTES:
            raise StoreError(
                f"a cubin of {len(cubin)} bytes is larger than the store takes", where=self._where
            )
        digest = hashlib.sha256(cubin).hexdigest()
        with self.transaction() as db:
            db.execute(
                "INSERT INTO cubins VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (digest, len(cubin), zlib.compress(cubin)),
            )
        return digest

    def cubin(self, digest: str) -> bytes:
        """The bytes with this sha256.

        Raises:
            StoreError: there are none, or they were damaged.
        """
        row = self._one("SELECT size, data FROM cubins WHERE digest = ?", (digest,))
        if row is None:
            raise StoreError(f"the store holds no cubin {digest[:16]}", where=self._where)
        return inflate(row[1], row[0], digest, self._where)

    @property
    def _where(self) -> str:
        return str(self.path)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise StoreError(f"the store refused a row: {error}", where=self._where) from error
        except sqlite3.Error as error:
            what = f"the store failed: {error}{file_limit()}"
            raise StoreError(what, where=self._where, hint=hint(error)) from error
        except (OverflowError, UnicodeEncodeError) as error:  # 2^63, half of a surrogate pair
            raise StoreError(f"the store cannot hold this: {error}", where=self._where) from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What rows hold is read in here.

        Raises:
            StoreError: it is damaged, or a later version's.
        """
        try:
            yield
        except StoreError as error:
            error.where = error.where or self._where
            raise
        except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            what = f"the store is damaged, or a later Sassafras wrote to it: {reason(error)}"
            raise StoreError(what, where=self._where, hint="name another with --store") from error

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """All or nothing, or one consistent view where `write` is False; nested uses join the outer one.

        Raises:
            StoreError: the file is damaged, locked for long, or refuses a row.
        """
        with self._guard():
            if self._connection.in_transaction:
                yield self._connection
                return
            if write and _file(self._place) != self._file:  # SQLite would go on writing what nothing reads
                what = "the store was moved or replaced while it was open"
                raise StoreError(
                    what, where=self._where, hint="put it back and run the command again: it resumes"
                )
            with whole(self._connection, write=write):
                yield self._connection

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        with self._guard():
            return self._connection.execute(query, values).fetchone()

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._guard():
            return self._connection.execute(query, values).fetchall()

    def insert(self, table: str, values: Mapping[str, Any], otherwise: str = "") -> int:
        """Add a row, its values by column; `otherwise` is SQL after them. Returns the row's number."""
        marks = ", ".join("?" * len(values))
        query = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks}) {otherwise}"
        with self.transaction() as db:
            return int(db.execute(query, tuple(values.values())).lastrowid or 0)

    def kernel_id(self, kernel: Kernel, columns: Mapping[str, str] | None = None) -> int:
        """The row of this kernel, added if need be.

        Args:
            kernel: code, launch facts and provenance.
            columns: values of `KEY_COLUMNS` to use instead of those read from `kernel` (imports).
        """
        key = columns or kernel_columns(kernel)
        values = tuple(key[column] for column in KEY_COLUMNS)
        where = " AND ".join(f"{column} = ?" for column in KEY_COLUMNS)
        with self.transaction() as db:
            if columns is None:
                self.put_cubin(kernel.cubin)
            row = {column: key[column] for column in KEY_COLUMNS} | {"meta": dumps(kernel.meta)}
            self.insert("kernels", row, "ON CONFLICT DO NOTHING")
            return int(db.execute(f"SELECT id FROM kernels WHERE {where}", values).fetchone()[0])


def _file(path: Path) -> tuple[int, int] | None:
    """Which file lies at a path; None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def inflate(data: bytes, size: int, digest: str, where: str) -> bytes:
    """Uncompress `data`, never to more than `size` bytes, and check its sha256.

    Raises:
        StoreError: the data is damaged, or larger than it claims to be.
    """
    problem = "is damaged"
    if isinstance(data, bytes) and isinstance(size, int) and 0 <= size <= MAX_CUBIN_BYTES:
        try:
            engine = zlib.decompressobj()
            cubin = engine.decompress(data, size + 1)  # never more: a small blob can unpack into gigabytes
        except zlib.error as error:
            problem = f"is damaged ({error})"
        else:
            if len(cubin) == size and hashlib.sha256(cubin).hexdigest() == digest:
                return cubin
    raise StoreError(f"cubin {str(digest)[:16]} {problem}", where=where)
