"""The first translation phases of C++, as far as a scan of text needs them ([lex.phases], 1 to 3).

A pattern that looks at the text as it is written is passed by whatever the compiler reads otherwise: a line
that goes on after a backslash (for GCC and NVCC also with blanks behind it), a trigraph, a raw string whose
quotes are not quotes. Here the text becomes what the preprocessor sees: physical lines joined, comments a
blank, strings whole. Where compilers or language versions differ, there is a reading for each.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

_TRIGRAPHS = {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}", "-": "~"}
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<raw>(?:u8|[uUL])?R(?="))
    |(?P<number>\.?[0-9](?:[eEpP][+-]|'(?=\w)|[\w.])*)
    |(?P<name>[\w$]+)
    |(?P<literal>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)
    |(?P<other>[^\w"'/$.]+|.)""",
    re.DOTALL | re.VERBOSE,
)
_DELIMITER = re.compile(r'"([^\s()\\"]{0,16})\(')
_DIRECTIVE = re.compile(r"^[ \t\f\v]*(?:#|%:)[ \t\f\v]*(\w*)[^\n]*", re.MULTILINE)


def readings(source: str) -> list[str]:
    """Every reading that a compiler may have of this source, without repetitions: lines joined, comments a
    blank each, line breaks inside raw strings blanks."""
    unified = source.replace("\r\n", "\n").replace("\r", "\n")
    found: dict[str, None] = {}
    for trigraphs in (False, True) if _TRIGRAPH.search(unified) else (False,):
        for blanks in (True, False):
            found[_without_comments(unified, *_joined(unified, blanks, trigraphs))] = None
    return list(found)


def directives(code: str) -> Iterator[tuple[str, str]]:
    """(name, whole line) of every preprocessing directive of a reading."""
    for found in _DIRECTIVE.finditer(code):
        yield found[1], found[0].strip()


def _joined(source: str, blanks: bool, trigraphs: bool) -> tuple[str, list[tuple[int, int]]]:
    """Phases 1 and 2: the text with lines joined, and how it lies in the source.

    The second is a list of (place in the text, place in the source), one for each piece that was copied.
    """
    slash = r"(?:\\|\?\?/)" if trigraphs else r"\\"
    joint = slash + (r"[ \t\f\v]*\n" if blanks else r"\n")
    changed = re.compile(joint + ("|" + _TRIGRAPH.pattern if trigraphs else ""))
    out: list[str] = []
    pieces: list[tuple[int, int]] = [(0, 0)]
    at = length = 0
    for found in changed.finditer(source):
        copied = source[at : found.start()]
        if not found[0].endswith("\n"):
            copied += _TRIGRAPHS[found[0][2]]
        out.append(copied)
        length += len(copied)
        at = found.end()
        pieces.append((length, at))
    out.append(source[at:])
    return "".join(out), pieces


def _without_comments(source: str, text: str, pieces: list[tuple[int, int]]) -> str:
    """Phase 3, as far as comments and literals go. Inside a raw string phases 1 and 2 are undone."""
    out: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None
        at = token.end()
        if token.lastgroup == "comment":
            out.append(" ")
            continue
        out.append(token[0])
        if token.lastgroup != "raw":
            continue
        begin, place = pieces[bisect_right(pieces, at, key=lambda piece: piece[0]) - 1]
        opened = _DELIMITER.match(source, place + at - begin)
        if opened is None:
            continue
        close = source.find(f"){opened[1]}" + '"', opened.end())
        end = len(source) if close < 0 else close + len(opened[1]) + 2
        inside = source[opened.end() : len(source) if close < 0 else close]
        out.append('"' + re.sub(r'[\n"\\]', " ", inside) + '"')
        begin, place = pieces[bisect_right(pieces, end, key=lambda piece: piece[1]) - 1]
        at = min(begin + end - place, len(text))
    return "".join(out)
