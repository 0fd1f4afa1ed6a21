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
        note: what its text must do.
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
        free: the texts are not checked: the only hole is the whole source.
    """

    language: Language
    pieces: tuple[str, ...]
    holes: tuple[Hole, ...]
    free: bool = False

    @classmethod
    def whole(cls, source: str, language: Language) -> Template:
        """All of a source as one hole, called ``source``."""
        return cls(language, ("", ""), (Hole("source", "", source, ""),), free=True)

    @classmethod
    def parse(cls, source: str, language: Language) -> Template:
        """Cut a source at its markers; without markers it has no hole.

        Raises:
            SassafrasError: markers nest, do not match, or two holes share a name.
        """
        pieces: list[str] = [""]
        holes: list[Hole] = []
        inside: re.Match[str] | None = None
        body = ""
        for number, line in enumerate(re.split(r"(?<=\n)", source), 1):
            bare = line.rstrip("\n")
            if begin := _BEGIN.match(bare):
                if inside:
                    raise SassafrasError(f"hole {inside['name']!r} is still open", where=f"line {number}")
                inside, body = begin, ""
                pieces[-1] += line
            elif _END.match(bare):
                if not inside:
                    raise SassafrasError("'end hole' without a hole", where=f"line {number}")
                text = textwrap.dedent(body).rstrip("\n")
                first = next((part for part in body.split("\n") if part.strip()), inside["indent"] + "x")
                indent = first[: len(first) - len(first.lstrip())]
                holes.append(Hole(inside["name"], inside["note"] or "", text, indent))
                inside = None
                pieces.append(line)
            elif inside:
                body += line
            else:
                pieces[-1] += line
        if inside:
            raise SassafrasError(f"hole {inside['name']!r} has no end", hint="close it with 'end hole'")
        names = [hole.name for hole in holes]
        if len(set(names)) != len(names):
            raise SassafrasError(f"holes need different names, got {', '.join(names)}")
        return cls(language, tuple(pieces), tuple(holes))

    def texts(self) -> dict[str, str]:
        """name -> what stands there now."""
        return {hole.name: hole.text for hole in self.holes}

    def fill(self, texts: Mapping[str, str]) -> str:
        """The source with other texts in some of its holes.

        Raises:
            AnswerError: no such hole, or a text that is too long, holds markers, or leaves its hole.
        """
        now = self.texts()
        for name in texts:
            if name not in now:
                raise AnswerError(f"there is no hole {name!r}", hint="the holes are " + ", ".join(now))
        if self.free:
            return texts.get("source", self.holes[0].text)
        out = [self.pieces[0]]
        for hole, after in zip(self.holes, self.pieces[1:], strict=True):
            text = tidy(texts.get(hole.name, hole.text))
            if text != hole.text:
                self._check(hole, text)
            if text:
                lines = text.split("\n")  # `textwrap.indent` takes a form feed for a line's end
                out += [(hole.indent + line if line.strip() else line) + "\n" for line in lines]
            out.append(after)
        return "".join(out)

    def written(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The texts that differ from the present ones, as the filled source has them. Raises as `fill`."""
        source = self.fill(texts)
        filled = {"source": source} if self.free else Template.parse(source, self.language).texts()
        return {name: text for name, text in filled.items() if text != self.texts()[name]}

    def _check(self, hole: Hole, text: str) -> None:
        where = f"hole {hole.name}"
        if len(text) > LONGEST:
            raise AnswerError(f"{len(text)} characters, {LONGEST} are the most", where=where)
        if any(_BEGIN.match(line) or _END.match(line) for line in text.split("\n")):
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
