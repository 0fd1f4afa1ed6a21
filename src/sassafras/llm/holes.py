"""Named holes in a kernel's source: the few lines that may be rewritten; all else stays byte for byte.

In CUDA C++ a hole is what stands between ``// hole: NAME: what it must do`` and ``// end hole``, in Python
(Triton) the same after ``#``. Marker lines belong to the file and stay.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sassafras.core import SassafrasError

from .answer import AnswerError

Language = Literal["cuda", "triton"]

#: longest filling, characters: some 200 tokens are meant, this allows several times as much
LONGEST = 4000

_BEGIN = re.compile(r"^(?P<indent>[ \t]*)(?://|#)\s*hole:\s*(?P<name>\w+)\s*(?::\s*(?P<note>.*))?$")
_END = re.compile(r"^[ \t]*(?://|#)\s*end hole\b.*$")


@dataclass(frozen=True, slots=True)
class Hole:
    """One hole.

    Attributes:
        name: unique within the source.
        note: what its text must do, for whoever fills it.
        text: what stands there now, without the indentation that all of its lines share.
        indent: that indentation.
    """

    name: str
    note: str
    text: str
    indent: str


@dataclass(frozen=True, slots=True)
class Template:
    """A source cut at its holes.

    Attributes:
        language: ``cuda`` or ``triton``.
        pieces: the fixed text; one more than there are holes.
        holes: in order.
    """

    language: Language
    pieces: tuple[str, ...]
    holes: tuple[Hole, ...]

    @classmethod
    def parse(cls, source: str, language: Language) -> Template:
        """Cut a source at its markers; without markers it has no hole.

        Raises:
            SassafrasError: markers nest, do not match, or two holes share a name.
        """
        pieces: list[str] = []
        holes: list[Hole] = []
        fixed: list[str] = []
        inside: tuple[str, str, str] | None = None
        body: list[str] = []
        for number, line in enumerate(source.splitlines(keepends=True), 1):
            bare = line.rstrip("\n")
            if begin := _BEGIN.match(bare):
                if inside:
                    raise SassafrasError(f"hole {inside[0]!r} is still open", where=f"line {number}")
                inside = (begin["name"], begin["note"] or "", begin["indent"])
                fixed.append(line)
                pieces.append("".join(fixed))
                fixed, body = [], []
            elif _END.match(bare):
                if not inside:
                    raise SassafrasError("'end hole' without a hole", where=f"line {number}")
                text = textwrap.dedent("".join(body)).rstrip("\n")
                first = next((b for b in body if b.strip()), "")
                indent = first[: len(first) - len(first.lstrip())] if first else inside[2]
                holes.append(Hole(inside[0], inside[1], text, indent))
                inside, fixed = None, [line]
            elif inside:
                body.append(line)
            else:
                fixed.append(line)
        if inside:
            raise SassafrasError(f"hole {inside[0]!r} has no end", hint="close it with 'end hole'")
        names = [hole.name for hole in holes]
        if len(set(names)) != len(names):
            raise SassafrasError(f"holes need different names, got {', '.join(names)}")
        pieces.append("".join(fixed))
        return cls(language, tuple(pieces), tuple(holes))

    def hole(self, name: str) -> Hole:
        """The hole of this name. Raises AnswerError."""
        for hole in self.holes:
            if hole.name == name:
                return hole
        raise AnswerError(f"there is no hole {name!r}", hint="the holes are " + ", ".join(self.texts()))

    def texts(self) -> dict[str, str]:
        """name -> what stands there now."""
        return {hole.name: hole.text for hole in self.holes}

    def fill(self, texts: Mapping[str, str]) -> str:
        """The source with other texts in some of its holes.

        Raises:
            AnswerError: a text that is too long, holds markers, or does not stay within its hole.
        """
        for name in texts:
            self.hole(name)
        out = [self.pieces[0]]
        for hole, after in zip(self.holes, self.pieces[1:], strict=True):
            text = tidy(texts.get(hole.name, hole.text))
            if text != hole.text:
                self._check(hole, text)
            if text:
                out.append(textwrap.indent(text, hole.indent) + "\n")
            out.append(after)
        return "".join(out)

    def _check(self, hole: Hole, text: str) -> None:
        where = f"hole {hole.name}"
        if len(text) > LONGEST:
            raise AnswerError(f"{len(text)} characters, {LONGEST} are the most", where=where)
        for line in text.split("\n"):
            if _BEGIN.match(line) or _END.match(line):
                raise AnswerError("a hole's text may not hold hole markers", where=where)
        if self.language == "cuda":
            _balanced(text, where)


def tidy(text: str) -> str:
    """One way of writing a filling: dedented, tabs as spaces, no trailing space, no empty lines around."""
    lines = [line.rstrip() for line in text.expandtabs(4).replace("\r\n", "\n").split("\n")]
    return textwrap.dedent("\n".join(lines)).strip("\n")


_PAIRS = {")": "(", "]": "[", "}": "{"}


def _balanced(text: str, where: str) -> None:
    """Brackets close within the hole, so that its text cannot end the function it stands in."""
    open_: list[str] = []
    for char in without_comments(text):
        if char in "([{":
            open_.append(char)
        elif char in _PAIRS and (not open_ or open_.pop() != _PAIRS[char]):
            raise AnswerError(f"a {char!r} closes what was opened outside of the hole", where=where)
    if open_:
        raise AnswerError(f"a {open_[-1]!r} is never closed", where=where)


def without_comments(text: str) -> str:
    """C++ without comments; strings and characters emptied. For looking at, not for compiling."""
    pattern = r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: '""' if m[0][0] in "\"'" else " ", text, flags=re.DOTALL)
