"""Commands in the tests' own process: a process of its own takes a second to begin."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import typer.testing
from typer.testing import CliRunner

from sassafras.cli.app import app

# typer builds its commands anew for each call, which takes longer than most calls
typer.testing._get_command = cache(typer.testing._get_command)


def invoke(words: list[str]) -> typer.testing.Result:
    """What one call gives."""
    return CliRunner().invoke(app, words)


def sassafras(*arguments: str | Path, store: Path | None = None) -> tuple[int, str, str]:
    """What the command line gives: exit status, stdout, stderr. An exception that leaves it is raised."""
    environment = {"SASSAFRAS_DEBUG": None, "SASSAFRAS_STORE": str(store) if store else None}
    ran = CliRunner().invoke(app, [*map(str, arguments)], env=environment)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, ran.stdout, ran.stderr
