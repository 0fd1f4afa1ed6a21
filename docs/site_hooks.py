"""Hook of the site's build: reference/cli.md ends with the help text of every command."""

from __future__ import annotations

import os
from typing import Any

import typer

from sassafras.cli.app import app


def commands() -> str:
    """A section with the help text of each command, in Markdown."""
    os.environ["COLUMNS"] = "96"  # help is folded to the terminal's width
    return "\n".join(_sections(typer.main.get_command(app), "sassafras", None))


def _sections(command: Any, name: str, parent: Any) -> list[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    below = getattr(command, "commands", {})
    if parent is None:
        found = []
    else:
        title = context.command_path
        found = [f"## `{title}`", "", "```text", command.get_help(context).rstrip(), "```", ""]
    for key in below:
        found += _sections(below[key], key, context)
    return found


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs' event: complete reference/cli.md."""
    if page.file.src_uri == "reference/cli.md":
        return markdown + "\n" + commands()
    return markdown
