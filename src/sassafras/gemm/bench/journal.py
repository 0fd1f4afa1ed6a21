"""Append-only JSON Lines: what a worker did, shape by shape, so that a kill loses one shape at most."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError


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
        if not path.exists() or path.stat().st_size == 0:
            self._append({"header": header})
            return
        if set(self.records()[0]["header"]) != set(header):
            raise _foreign(path)
        belongs(path, header)

    def records(self) -> list[dict[str, Any]]:
        """All lines, the header first. A last line cut short by a kill is dropped."""
        return read(self.path)

    def done(self) -> dict[str, dict[str, Any]]:
        """shape -> its record; a failure counts as done and carries ``error``."""
        return {r["shape"]: r for r in self.records()[1:] if "begun" not in r}

    def interrupted(self) -> list[str]:
        """Shapes that were begun and never finished: the worker died in them."""
        done = self.done()
        return list(
            dict.fromkeys(r["begun"] for r in self.records()[1:] if r.get("begun", "") not in ("", *done))
        )

    def begin(self, shape: str) -> None:
        """Note that work on a shape begins."""
        self._append({"begun": shape})

    def note(self, shape: str, **what: str) -> None:
        """Note something of a shape that is being worked on: ``trying``, ``lost``, ``guilty`` (`trials`)."""
        self._append({"begun": shape, **what})

    def last(self, shape: str, what: str) -> str:
        """The latest such note since work on the shape last began; "" when there is none."""
        for record in reversed(self.records()[1:]):
            if record.get("begun") == shape:
                if what in record:
                    return str(record[what])
                if len(record) == 1:
                    break
        return ""

    def finish(self, record: dict[str, Any]) -> None:
        """Note a shape's record (it carries ``shape``)."""
        self._append(record)

    def _append(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, default=str) + "\n"
        with self.path.open("rb+" if self.path.exists() else "wb+") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # the line of a writer that was killed
                    text = "\n" + text
            file.seek(0, os.SEEK_END)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def _foreign(path: Path) -> SassafrasError:
    return SassafrasError(
        "this file was written under other conditions (kernels, library versions or options)",
        where=path.name,
        hint="start over with --fresh, or choose another output folder",
    )


def belongs(path: Path, wanted: dict[str, Any]) -> None:
    """Check these conditions of a journal, also when nothing is left to be added to it.

    Raises:
        SassafrasError: one is another, or the file is no journal.
    """
    header = read(path)[0]["header"]
    if any(header.get(key) != value for key, value in json.loads(json.dumps(wanted)).items()):
        raise _foreign(path)


def read(path: Path) -> list[dict[str, Any]]:
    """Every complete line of a journal. Raises SassafrasError when the first is none of ours."""
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    if not records or "header" not in records[0]:
        raise SassafrasError("not a benchmark journal", where=path.name)
    return records
