"""The cheat gallery: candidates that cheat on purpose, each with the verdict it must get, and honest odd ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
