"""Pages, comments and help texts avoid indefinite persons and archaic adverbs."""

from __future__ import annotations

import re

import pytest

from .pages import NAMES, ROOT
from .test_docs_commands import program

#: the word, not a part of a name such as off-grid-anew
UNWANTED = re.compile(r"(?<![\w-])(whoever|nobody|somebody|anybody|everybody|anew)\b", re.I)
#: words in src/ that remain; the number may only fall
REMAINING = 38
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".hpp"}


def helps(command: object) -> str:
    """The help texts of a command, its parameters and the commands below it."""
    texts = [str(getattr(command, "help", "")), *(str(getattr(p, "help", "")) for p in command.params)]  # type: ignore[attr-defined]
    return "\n".join(texts + [helps(below) for below in getattr(command, "commands", {}).values()])


@pytest.mark.parametrize("page", [name for name in NAMES if name != "CHANGELOG.md"])
def test_pages_avoid_them(page: str) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", (ROOT / page).read_text(encoding="utf-8"))
    assert not UNWANTED.findall(text)


def test_help_texts_avoid_them() -> None:
    text = helps(program())
    assert "Search for a faster schedule" in text  # the texts were found
    assert not UNWANTED.findall(text)


def test_sources_avoid_them() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in sorted((ROOT / "src").rglob("*"))
        if path.suffix in SOURCES
        for word in UNWANTED.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(found) <= REMAINING, found
