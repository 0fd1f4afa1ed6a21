"""Append-only JSON Lines: what was found of each shape, so that a kill loses one shape at most."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.core.errors import os_errors

#: of records: configurations are fields (2), they were names
FORMAT = 2


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
        raise SassafrasError(
            "this file was written under other conditions (kernels, library versions or options)",
            where=path.name,
            hint="start over with --fresh, or choose another output folder",
        )


def read(path: Path) -> list[dict[str, Any]]:
    """Every complete line of a journal. Raises SassafrasError when the first is none of ours."""
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
        raise SassafrasError(
            "not a benchmark journal", where=path.name, hint="remove it, or start with --fresh"
        )
    return records


def records_of(*paths: Path) -> dict[str, dict[str, Any]]:
    """shape -> its record, from these journals."""
    return {r["shape"]: r for path in paths for r in read(path)[1:] if "shape" in r}


def journals(folder: Path, stem: str) -> list[Path]:
    """The journals of a stem (``hgemm-select``), one for each GPU or cluster that worked on it."""
    return sorted(folder.glob(f"{stem}.gpu*.jsonl"))


def records(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    """shape -> its record, from all journals of a stem."""
    return records_of(*journals(folder, stem))


def faulty(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    """Notes of configurations at fault (`faults.FaultyConfig`), by their fields as text."""
    notes = (r for path in journals(folder, stem) for r in read(path)[1:] if "faulty" in r)
    return {json.dumps(note["faulty"]): note for note in notes}
