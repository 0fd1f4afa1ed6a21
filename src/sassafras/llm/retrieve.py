"""Passages for prompts from folders that the user names, by BM25; each is cited by file and line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError, ToolMissing
from sassafras.core.errors import reason

#: files that are read
SUFFIXES = (".md", ".rst", ".txt", ".cu", ".cuh", ".h", ".hpp", ".py")
#: characters of a passage, about; and of a file at most
PASSAGE, LONGEST_FILE = 1200, 2_000_000


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a file.

    Attributes:
        source: ``folder/file:line``, where folder is the last part of the user's folder.
        text: the piece.
    """

    source: str
    text: str


class Passages:
    """An index of folders.

    Args:
        folders: searched through, hidden files left out.
        keep: whether a file is read; by default all are whose ending is known.

    Raises:
        SassafrasError: a folder is not there, or holds nothing that can be read.
        ToolMissing: the ``bm25s`` package is not installed.
    """

    def __init__(
        self, folders: Sequence[str | Path], keep: Callable[[Path], bool] = lambda path: True
    ) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise ToolMissing("retrieval needs bm25s", hint="pip install 'sassafras[llm-context]'") from error
        self._bm25s: Any = bm25s
        self._passages = [
            passage
            for folder in folders
            for name, path in readable(folder)
            if keep(path)
            for passage in _cut(name, text_of(path))
        ]
        self._index: Any = bm25s.BM25()
        self._index.index(self._tokens([passage.text for passage in self._passages]), show_progress=False)

    def _tokens(self, texts: list[str]) -> Any:
        return self._bm25s.tokenize(texts, stopwords="en", show_progress=False)

    def find(self, query: str, count: int = 3) -> list[Passage]:
        """The passages that fit a query best; ties in the order of files."""
        many = min(len(self._passages), 4 * count)
        places, scores = self._index.retrieve(self._tokens([query]), k=many, show_progress=False)
        ranked = sorted(zip(scores[0].tolist(), places[0].tolist(), strict=True), key=lambda p: (-p[0], p[1]))
        return [self._passages[place] for score, place in ranked[:count] if score > 0]


def readable(folder: str | Path) -> list[tuple[str, Path]]:
    """(``folder/file``, path) of the files that can be read, in order.

    Raises:
        SassafrasError: the folder is not there, or holds none.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise SassafrasError("there is no such folder", where=str(folder))
    found: list[tuple[str, Path]] = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if path.suffix in SUFFIXES and not hidden and path.is_file() and path.stat().st_size < LONGEST_FILE:
            found.append((f"{folder.resolve().name}/{inside.as_posix()}", path))
    if not found:
        raise SassafrasError(
            "nothing in this folder can be read",
            where=str(folder),
            hint="it needs files that end in " + ", ".join(SUFFIXES),
        )
    return found


def text_of(path: Path) -> str:
    """A file's text. Raises SassafrasError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SassafrasError(reason(error), where=str(path)) from error


def _cut(name: str, text: str) -> list[Passage]:
    """Pieces of about `PASSAGE` characters, cut at empty lines where there are any."""
    pieces: list[Passage] = []
    held: list[str] = []
    begin = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        size = sum(len(part) + 1 for part in held)
        if held and ((not line.strip() and size > PASSAGE // 2) or size > PASSAGE):
            pieces.append(Passage(f"{name}:{begin}", "\n".join(held).strip("\n")))
            held = []
        if not held:
            begin = number
        if held or line.strip():
            held.append(line[:PASSAGE])
    if any(line.strip() for line in held):
        pieces.append(Passage(f"{name}:{begin}", "\n".join(held).strip("\n")))
    return pieces
