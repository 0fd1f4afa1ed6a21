"""Printing: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: exit status of a search that Ctrl-C or SIGTERM ended; the best so far is kept
INTERRUPTED = 130


def stdout() -> Console:
    """A console for results."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    """A console for progress, notes and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str, style: str = "dim") -> None:
    """One line on stderr."""
    stderr().print(text, style=style, markup=False)


def error(problem: Exception | str) -> None:
    """One red line: ``error: where: what (hint)``."""
    from rich.text import Text

    stderr().print(Text(f"error: {problem}", style="red"))


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2, sort_keys=True, default=str)
    sys.stdout.write("\n")


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table on stdout; plain aligned columns where stdout is no terminal."""
    console = stdout()
    if not console.is_terminal:
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        if title:
            sys.stdout.write(f"{title}\n")
        for row in [columns, *rows]:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            sys.stdout.write("  ".join(cells).rstrip() + "\n")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
