"""Tables of latencies as files: JSON with one row a line, so that two versions can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sassafras.core.errors import LatencyTableError, os_errors, reason

Row = TypeVar("Row")
Key = tuple[str, str, str, str, str]
"""(kind, producer key, producer slot, consumer key, consumer slot)"""


def write(path: Path, head: Mapping[str, Any], lists: Mapping[str, Iterable[list[Any]]]) -> None:
    """Write a table.

    Args:
        path: the file.
        head: what stands before the rows.
        lists: rows by name.

    Raises:
        LatencyTableError: the file cannot be written.
    """
    text = json.dumps(head, indent=1)[:-2]
    for name, lines in lists.items():
        body = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
        text += f',\n "{name}": [\n{body}\n]'
    with os_errors("cannot write the table", path, LatencyTableError):
        path.write_text(text + "\n}\n", encoding="utf-8")


def read(file: Path, form: str, version: int, arch: str) -> dict[str, Any]:
    """A table's content, its provenance a dict.

    Raises:
        LatencyTableError: it cannot be read, is of another format or version, or for another architecture.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, ValueError, RecursionError) as error:
        raise LatencyTableError(f"cannot be read: {reason(error)}", where=file.name) from None
    if not isinstance(data, dict) or data.get("format") != form:
        raise LatencyTableError("not a latency table", where=file.name)
    if data.get("version") != version:
        raise LatencyTableError(
            f"latency table of version {data.get('version')!r}; this program reads {version}",
            where=file.name,
            hint="mine it again: sassafras latency mine",
        )
    if data.get("arch") != arch:
        raise LatencyTableError(
            f"latency table for {data.get('arch')!r} where {arch!r} is needed", where=file.name
        )
    if not isinstance(data.get("provenance"), dict):
        data["provenance"] = {}
    return data


def rows(
    data: Mapping[str, Any], name: str, columns: str, where: str, make: Callable[..., Row]
) -> dict[Any, Row]:
    """Rows of one list, by their leading texts.

    Args:
        data: the table.
        name: the list, ``rows`` or ``classes``.
        columns: a letter each, ``s`` for a text and ``i`` for an integer.
        where: the file's name, for messages.
        make: makes the value of the kind and what follows the leading texts, or raises ValueError.

    Raises:
        LatencyTableError: a row is malformed, impossible, or there twice; names it.
    """
    lines = data.get(name)
    if not isinstance(lines, list) or (name == "rows" and not lines):
        raise LatencyTableError(f"has no {name}", where=where)
    one = {"rows": "row", "classes": "class"}[name]
    types = [{"s": str, "i": int}[c] for c in columns]
    texts = columns.index("i")
    found: dict[Any, Row] = {}
    for number, line in enumerate(lines):
        place = f"{where}, {one} {number}"
        if not isinstance(line, list) or len(line) != len(columns):
            raise LatencyTableError(f"a {one} needs {len(columns)} columns", where=place)
        if [type(value) for value in line] != types:
            raise LatencyTableError("a column has the wrong type", where=place)
        key = tuple(line[:texts])
        if key in found:
            raise LatencyTableError(f"{one} given twice", where=place)
        try:
            found[key] = make(line[0], *line[texts:])
        except ValueError:
            raise LatencyTableError("impossible kind or numbers", where=place) from None
    return found
