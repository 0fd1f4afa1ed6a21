"""What leaves of a compiler's output: messages about the candidate's own file, and nothing else.

A compiler quotes the line that a message is about, of whatever file it was led to. The quoted lines are left
out; the candidate's line is quoted from the candidate's text.
"""

from __future__ import annotations

import re

_OWN = r"^(?:\./)?kernel\.cu"
_LEVEL = r"(?P<level>(?:fatal |catastrophic )?error|warning|remark|note)"
#: nvcc's front end and NVRTC, then gcc
_FORMS = (
    re.compile(_OWN + r"\((?P<line>\d+)\): " + _LEVEL + r"(?: #[\w-]+)?: (?P<words>.*)$"),
    re.compile(_OWN + r":(?P<line>\d+)(?::\d+)?: " + _LEVEL + r": (?P<words>.*)$"),
)
#: of tools that read no source: their words are their own
_TOOL = re.compile(r"^(?:ptxas|nvcc|nvlink|cicc)\s+(?:[^\s:]*, line \d+; )?(?:fatal|error|warning)\s*: .*$")
#: what a front end adds to a message of types
_MORE = re.compile(r"^\s+(?:argument types are|object type is|operand types are|operand type is): .*$")


def own_messages(output: str, text: str) -> str:
    """The messages of a compiler about ``kernel.cu``.

    Args:
        output: what it printed, paths inside the scratch folder written as ``./``.
        text: the file.

    Returns: each message with the line of `text` that it is about; a word where others were left out.
    """
    lines = text.split("\n")  # as compilers count: a form feed ends none
    kept: list[str] = []
    foreign = False
    added = False
    for line in output.splitlines():
        found = next((match for form in _FORMS if (match := form.match(line))), None)
        if found:
            number = int(found["line"])
            kept.append(f"line {number}: {found['level']}: {found['words']}")
            if 0 < number <= len(lines):
                kept.append(f"    {lines[number - 1].strip()[:200]}")
            added = True
        elif _TOOL.match(line):
            kept.append(line)
            added = False
        elif added and _MORE.match(line):
            kept.insert(len(kept) - 1, f"    {line.strip()}")
        elif re.search(r"\b(?:error|fatal)\b", line) and not re.match(r"^\d+ errors? detected", line):
            foreign = True
            added = False
    if foreign:
        kept.append("(messages about other files are left out)")
    return "\n".join(kept)
