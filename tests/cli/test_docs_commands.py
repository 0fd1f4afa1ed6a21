"""Every ``sassafras`` command line that these pages print is one that the program takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[list[str]]:
    """The command lines of a page's code blocks, without ``sassafras`` itself and comments."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S):
        for line in block.splitlines():
            if line.startswith("sassafras "):
                found.append(shlex.split(line, comments=True)[1:])
    return found


@pytest.mark.parametrize("page", ["walkthrough.md", "explain.md", "report.md", "capture.md", "deploy.md"])
def test_commands_of_a_page_parse(page: str) -> None:
    from sassafras.cli.app import app

    lines = commands(page)
    assert lines
    for line in lines:
        command, arguments, name = typer.main.get_command(app), line, "sassafras"
        while hasattr(command, "commands"):
            name, arguments = arguments[0], arguments[1:]
            assert name in command.commands, line
            command = command.commands[name]
        command.make_context(name, list(arguments))  # raises on an unknown option or a missing argument


def test_links_of_the_walk_through_lead_somewhere() -> None:
    text = (DOCS / "walkthrough.md").read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (DOCS / link).exists(), link
