"""The pages that the repository publishes, taken apart for the tests of this folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: pages by the name that a failing test shows
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_FENCE = re.compile(r"^(?P<indent> *)```\w*\n(?P<text>.*?)^(?P=indent)```", re.M | re.S)


def blocks(page: str) -> list[str]:
    """The code blocks of a page."""
    return [match["text"] for match in _FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))]


def prose(page: str) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def lines(page: str) -> list[list[str]]:
    """The shell commands of a page's code blocks, as words; several on a line are several commands."""
    found = []
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # no command: a program's output, or Python
                continue
            command: list[str] = []
            for word in [*words, "&&"]:
                if word in ("&&", "|", ";"):
                    if command:
                        found.append(command)
                    command = []
                else:
                    command.append(word)
    return found


def spans(page: str) -> list[str]:
    """The code spans of a page's prose."""
    return [" ".join(match.split()) for match in re.findall(r"`([^`]+)`", prose(page))]
