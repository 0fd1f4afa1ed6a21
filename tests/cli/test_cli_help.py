"""Every command's help ends with an example that the program takes; version and completion are offered."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sassafras import __version__
from sassafras.cli.app import app


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


LEAVES = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_the_help_has_an_example_that_parses(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"])
    text = " ".join(done.stdout.split())
    example = text.rpartition("Example: sassafras ")[2]
    given = shlex.split(example)
    assert done.exit_code == 0 and tuple(given[: len(words)]) == words, text
    LEAVES[words].make_context(words[-1], given[len(words) :])  # raises for what it does not take


def test_version_and_completion() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == __version__
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
