"""Reading what a language model writes, however untidy: its design, code fences, holes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sassafras.core import SassafrasError


class AnswerError(SassafrasError):
    """An answer cannot be used. The message goes back to its author."""


class NothingChanged(AnswerError):
    """An answer is the variant that it was to change."""


# each pattern reads a line in one way only: what models write must not make it try many
#: a section's heading: its words in any case, with #, *, digits and colons around them
_HEADING = re.compile(r"\s*(?:#|\*\*|\d+[.)])[#*\d.)\s]*([A-Za-z]+(?: +[A-Za-z]+)*)[\s*:]*")
_DESIGN = ("algorithm design", "design", "plan")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n`]*)\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.M | re.S)
_HOLE_ALONE = re.compile(r"^\s*(?:(?://|#)\s*)?hole\s*:\s*`?[A-Za-z_]\w*`?\s*(?::.*)?$", re.IGNORECASE)
_HOLE_LINE = re.compile(r"^\s*(?:(?://|#|\*\*)\s*)?hole(?:\s*[:=])?\s*`?([A-Za-z_]\w*)`?", re.IGNORECASE)
_MARKER = re.compile(r"^\s*(//|#)\s*(end hole\b|hole\s*:)")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's parts.

    Attributes:
        design: prose, empty where the section is missing.
        blocks: (label, text) of every code block, in order: the label is the rest of the fence's line.
    """

    design: str = ""
    blocks: tuple[tuple[str, str], ...] = ()


def read_answer(text: str) -> Answer:
    """Split an answer. Never raises: what is missing stays empty."""
    text = _without_thoughts(text).replace("\r\n", "\n")
    # the last block may have been cut off before its fence was closed
    blocks = tuple((m[2].strip(), m[3].rstrip("\n")) for m in _FENCE.finditer(text))
    design: list[str] = []
    inside = False
    for line in _FENCE.sub("", text).split("\n"):
        if heading := _HEADING.fullmatch(line):
            inside = heading[1].strip().lower() in _DESIGN
        elif inside:
            design.append(line)
    return Answer("\n".join(design).strip(), blocks)


def hole_texts(answer: Answer, holes: Mapping[str, str]) -> dict[str, str]:
    """The text for each hole that the answer fills, by name.

    A block belongs to a hole when its fence or its first line names it (``hole: epilogue``). With one hole
    only, the last unnamed block is taken for it.

    Args:
        answer: from `read_answer`.
        holes: the holes that there are, name -> their present text.

    Raises:
        AnswerError: no block for any hole, or a hole that does not exist.
    """
    found: dict[str, str] = {}
    unnamed: list[str] = []
    for label, body in (part for block in answer.blocks for part in _split(*block)):
        named = re.search(r"hole\s*[:=]\s*([A-Za-z_]\w*)", label)
        lines = body.split("\n")
        if named is None and (named := _HOLE_LINE.match(lines[0])):
            lines = lines[1:]
        inside = "\n".join(line for line in lines if not _MARKER.match(line))
        if named is None:
            unnamed.append(inside)
        elif named[1] not in holes:
            raise AnswerError(f"there is no hole {named[1]!r}", hint="the holes are " + ", ".join(holes))
        else:
            found[named[1]] = inside
    if not found and unnamed and len(holes) == 1:
        found[next(iter(holes))] = unnamed[-1]
    if not found:
        raise AnswerError(
            "the answer fills no hole",
            hint="after a heading 'Code', give one fenced block for each hole that changes, its first line "
            f"'// hole: NAME'; the holes are {', '.join(holes)}",
        )
    return found


def _split(label: str, body: str) -> list[tuple[str, str]]:
    """A block cut before each line that says ``hole: NAME``: small models put all holes into one."""
    parts: list[list[str]] = [[]]
    for line in body.split("\n"):
        if _HOLE_ALONE.match(line) and any(text.strip() for text in parts[-1]):
            parts.append([])
        parts[-1].append(line)
    return [(label if i == 0 else "", "\n".join(lines).strip("\n")) for i, lines in enumerate(parts)]


def whole_source(answer: Answer) -> str:
    """The longest code block: the whole file. Raises AnswerError when there is none."""
    if not answer.blocks:
        raise AnswerError("the answer has no code block", hint="give the whole file in one fenced block")
    return max((body for _, body in answer.blocks), key=len) + "\n"


def _without_thoughts(text: str) -> str:
    """Without what reasoning models think aloud between <think> tags (the first may be missing)."""
    thought, end, said = text.rpartition("</think>")
    text = re.sub(r"<think>.*?</think>", "", thought + end, flags=re.DOTALL) + said
    return text.rsplit("</think>", 1)[-1]
