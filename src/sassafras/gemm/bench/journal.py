"""Append-only JSON Lines: what was found of each shape, so that a kill loses one shape at most."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.core.errors import os_errors

#: of records: configurations are fields (2), they were names
FORMAT = 2
_AFRESH = "start over with --fresh, or choose another output folder"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder of journals, which is made; a process that dies lets it go.

    Raises:
        SassafrasError: another process of this machine, or this one, holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:  # else the file system has no locks
            os.close(held)
            hint = "let it end, or choose another output folder"
            raise SassafrasError("another process works here", where=str(folder), hint=hint) from None
    try:
        yield
    finally:
        with suppress(OSError):  # a child that was forked meanwhile has it, too
            fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)


class Journal:
    """A file whose first line says under which conditions the others were written.

    Args:
        path: created if absent.
        header: conditions (versions, kernels, options). An existing file with another header is refused.

    Raises:
        SassafrasError: foreign or malformed file.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not has_begun(path):
            path.unlink(missing_ok=True)
            self.add({"header": header})
            return
        belongs(path, header, whole=True)
        if not path.read_bytes().endswith(b"\n"):  # the line of a writer that was killed
            with path.open("a") as file:
                file.write("\n")

    def done(self) -> dict[str, dict[str, Any]]:
        """shape -> its record; a failure counts as done and carries ``error``."""
        return records_of(self.path)

    def add(self, record: dict[str, Any]) -> None:
        """Write a shape's record (it carries ``shape``) or another note; on disk when it returns."""
        with self.path.open("a") as file:
            file.write(json.dumps(record, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())


def has_begun(path: Path) -> bool:
    """Whether a journal has more than a first line that its writer was killed in."""
    if not path.is_file():
        return path.exists()  # a folder is no journal: it is refused
    data = path.read_bytes()
    return b"\n" in data or not b'{"header": '.startswith(data[:11])


def belongs(path: Path, wanted: dict[str, Any], *, whole: bool = False) -> None:
    """Check these conditions of a journal, also when nothing is left to be added to it.

    Args:
        whole: there may be no others.

    Raises:
        SassafrasError: one is another, or the file is no journal.
    """
    header, wanted = read(path)[0]["header"], json.loads(json.dumps(wanted))
    if any(header.get(key) != value for key, value in wanted.items()) or (
        whole and set(header) - set(wanted)
    ):
        raise _other(path)


def _other(path: Path) -> SassafrasError:
    what = "this file was written under other conditions (GPU, kernels, library versions or options)"
    return SassafrasError(what, where=path.name, hint=_AFRESH)


def read(path: Path) -> list[dict[str, Any]]:
    """Every complete line of a journal, its conditions first.

    Raises:
        SassafrasError: the first line is none of ours, or the conditions change on the way.
    """
    with os_errors("a journal cannot be read", path):
        data = path.read_bytes()
    records = []
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    if not records or not isinstance(records[0].get("header"), dict):
        raise SassafrasError("not a benchmark journal", where=path.name, hint=_AFRESH)
    if any(record.get("header", records[0]["header"]) != records[0]["header"] for record in records):
        raise _other(path)
    return records


def records_of(*paths: Path) -> dict[str, dict[str, Any]]:
    """shape -> its record, from these journals. Raises SassafrasError: their conditions differ."""
    every = {path: read(path) for path in paths}
    for path, lines in every.items():
        if lines[0] != every[paths[0]][0]:
            raise _other(path)
    found = (r for lines in every.values() for r in lines[1:])
    return {r["shape"]: r for r in found if isinstance(r.get("shape"), str)}


def damaged(shape: str, error: Exception) -> SassafrasError:
    """What to raise where a shape's record is."""
    hint = "remove its line from the journal: the same command times it once more"
    return SassafrasError(f"a damaged record: {error!r}", where=shape, hint=hint)


def journals(folder: Path, stem: str) -> list[Path]:
    """The journals of a stem (``hgemm-select``) that have begun: one for each GPU or cluster."""
    return sorted(filter(has_begun, folder.glob(f"{stem}.gpu*.jsonl")))


def records(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    """shape -> its record, from all journals of a stem."""
    return records_of(*journals(folder, stem))


def faulty(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    """Notes of configurations at fault (`faults.FaultyConfig`), by their fields as text."""
    notes = (r for path in journals(folder, stem) for r in read(path)[1:] if "faulty" in r)
    return {json.dumps(note["faulty"]): note for note in notes}
