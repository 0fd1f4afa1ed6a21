"""The cheat gallery: candidates that cheat on purpose, each with the verdict it must get, and honest odd ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: exhibits that are text: a line ``=== group | name | title | verdicts | what catches it``, then the text
TEXTS = Path(__file__).with_name("exhibits.txt")


@dataclass(frozen=True)
class Exhibit:
    """One candidate.

    Attributes:
        name: short and unique.
        title: what it does, for the table.
        kind: ``cheat`` or ``honest``.
        how: ``cubin`` (patched machine code), ``source`` (refused while building), ``python`` (a host function)
            or ``gpu`` (device code that must run to be caught).
        expected: verdicts that are right.
        by: what catches it, for the table.
        make: the candidate (its type depends on `how`).
        most: a speed-up above which a trick that is let run has gained by it, and so is missed; None for any.
    """

    name: str
    title: str
    kind: str
    how: str
    expected: tuple[str, ...]
    by: str
    make: Callable[[], Any] = field(repr=False)
    most: float | None = None


def texts(*groups: str) -> list[tuple[str, str, str, tuple[str, ...], str, str]]:
    """(group, name, title, expected verdicts, what catches it, text) of the exhibits of these groups."""
    found = []
    for part in TEXTS.read_text(encoding="utf-8").split("=== ")[1:]:
        head, _, text = part.partition("\n")
        group, name, title, expected, by = (word.strip() for word in head.split("|"))
        if group in groups:
            found.append((group, name, title, tuple(expected.split("/")), by, "\n" + text))
    return found
