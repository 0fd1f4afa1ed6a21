"""Mutations of source text from a small grammar of alternatives: the control that needs no model.

Every edit keeps the text plausible, not correct: numbers are halved and doubled, statements change places,
loops are unrolled, intrinsics and cache hints are exchanged. Whether the result computes the same is for the
evaluator to say, exactly as for a model's proposals.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .answer import read_answer
from .holes import Language
from .proposer import Reply, Request


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of characters ``start`` to ``end`` of a hole's text.

    Attributes:
        hole: its name.
        start, end: the part that goes.
        text: what comes instead.
        what: the edit in words.
    """

    hole: str
    start: int
    end: int
    text: str
    what: str

    def apply(self, text: str) -> str:
        """The edited text."""
        return text[: self.start] + self.text + text[self.end :]


class Mutation:
    """A proposer that changes the shown parent by a few random edits: the control.

    Args:
        edits: most edits made at once.
    """

    name = "mutation"

    def __init__(self, edits: int = 3) -> None:
        self._most = edits

    def propose(self, request: Request) -> Reply:
        """The parent's code blocks with edits that the request's seed decides."""
        rng = np.random.default_rng(request.seed)
        blocks = read_answer(request.parent).blocks
        texts = {str(index): body for index, (_, body) in enumerate(blocks)}
        language: Language = "triton" if any(label == "python" for label, _ in blocks) else "cuda"
        said = []
        for _ in range(int(rng.integers(1, self._most + 1))):
            if (move := draw(texts, language, rng)) is None:
                break
            texts[move.hole] = move.apply(texts[move.hole])
            said.append(move.what)
        code = "\n".join(f"```{label}\n{texts[str(index)]}\n```" for index, (label, _) in enumerate(blocks))
        return Reply(f"## Design\n{'; '.join(said)}\n## Code\n{code}\n", self.name)


def draw(texts: Mapping[str, str], language: Language, rng: np.random.Generator) -> Edit | None:
    """One edit: a kind, evenly, then a place, so that numbers do not drown the rest; None for none."""
    kinds: dict[str, list[Edit]] = {}
    for name, text in texts.items():
        for edit in edits(name, text, language):
            kinds.setdefault("number" if " becomes " in edit.what else edit.what, []).append(edit)
    if not kinds:
        return None
    kind = sorted(kinds)[int(rng.integers(len(kinds)))]
    return kinds[kind][int(rng.integers(len(kinds[kind])))]


#: (pattern, replacement, what): `re` syntax; a pattern's match is replaced as `re.Match.expand` does
_Rule = tuple[str, str, str]

#: an element that is read, not written
_READ = r"(?<![\w.&])(\w+)\[([^\]\[]+)\](?!\s*(?:[-+*/|&^]?=[^=]|\[))"

_CUDA: tuple[_Rule, ...] = (
    (r"\b__expf\(", "expf(", "exact exponential"),
    (r"(?<!_)\bexpf\(", "__expf(", "fast exponential"),
    (r"\b1\.0?f\s*/\s*sqrtf\(", "rsqrtf(", "reciprocal square root"),
    (r"\b1\.0?f\s*/\s*(\w+)\b", r"__frcp_rn(\1)", "reciprocal intrinsic"),
    (r"(\b\w+\b)\s*/\s*(\b[a-z]\w*\b)", r"__fdividef(\1, \2)", "fast division"),
    (r"\b__ldg\(&(\w+)\[([^\]\[]+)\]\)", r"\1[\2]", "plain load"),
    (_READ, r"__ldg(&\1[\2])", "read-only load"),
    (_READ, r"__ldcs(&\1[\2])", "streaming load"),
    (r"^( *)(\w+)\[([^\]\[=;]+)\] = ([^;=]+);$", r"\1__stcs(&\2[\3], \4);", "streaming store"),
    (r"^( *)__stcs\(&(\w+)\[([^\]\[]+)\], (.+)\);$", r"\1\2[\3] = \4;", "plain store"),
    (r"^( *)#pragma unroll.*\n", "", "leave unrolling to the compiler"),
    (r"^( *)(?=for \()", r"\1#pragma unroll\n\1", "unroll"),
    (r"^( *)(?=for \()", r"\1#pragma unroll 1\n\1", "do not unroll"),
    (r"^( *)(?=for \()", r"\1#pragma unroll 4\n\1", "unroll by 4"),
    (r"\b__syncwarp\(\)", "__syncthreads()", "wider barrier"),
    (r"\b__syncthreads\(\)", "__syncwarp()", "narrower barrier"),
    (r"\bfmaf\(([^(),]+), ([^(),]+), ([^(),]+)\)", r"(\1 * \2 + \3)", "unfused"),
)

_TRITON: tuple[_Rule, ...] = (
    (r"\btl\.exp\(([^()]*)\)", r"tl.exp2((\1) * 1.4426950408889634)", "base-2 exponential"),
    (r"(\btl\.load\([^\n]*?)\)$", r'\1, eviction_policy="evict_first")', "load, evict first"),
    (r"(\btl\.load\([^\n]*?)\)$", r'\1, eviction_policy="evict_last")', "load, evict last"),
    (r"(\btl\.load\([^\n]*?)\)$", r'\1, cache_modifier=".cg")', "load past the L1"),
    (r"(\btl\.store\([^\n]*?)\)$", r'\1, eviction_policy="evict_first")', "store, evict first"),
    (r"(\btl\.store\([^\n]*?)\)$", r'\1, cache_modifier=".cs")', "streaming store"),
    (r', eviction_policy="\w+"', "", "no eviction policy"),
    (r', cache_modifier="\.\w+"', "", "no cache modifier"),
    (r"\bin range\(([^()]*)\)", r"in tl.range(\1, num_stages=1)", "loop without stages"),
    (r"\bin range\(([^()]*)\)", r"in tl.range(\1, num_stages=3)", "loop of 3 stages"),
    (r"\bin range\(([^()]*)\)", r"in tl.range(\1, loop_unroll_factor=2)", "unroll by 2"),
    (r"\bin tl\.range\(([^()]*?), \w+=\d+\)", r"in range(\1)", "plain loop"),
    (r"\btl\.rsqrt\(", "1.0 / tl.sqrt(", "divide by the root"),
    (r"(\b[a-z]\w*) / (\b[a-z]\w*\b)(?!\()", r"\1 * (1.0 / \2)", "multiply by the reciprocal"),
    (r"\.to\(tl\.int64\)", "", "32-bit offsets"),
)
_RULES: dict[str, tuple[_Rule, ...]] = {"cuda": _CUDA, "triton": _TRITON}
_NUMBER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")


@lru_cache(maxsize=1024)
def edits(hole: str, text: str, language: Language) -> tuple[Edit, ...]:
    """Every edit of a hole's text that the grammar knows, in a fixed order."""
    found: list[Edit] = []
    for pattern, replacement, what in _RULES[language]:
        for match in re.finditer(pattern, text, re.MULTILINE):
            new = match.expand(replacement)
            if new != match[0]:
                found.append(Edit(hole, match.start(), match.end(), new, what))
    for match in _NUMBER.finditer(text):
        value = int(match[1])
        for new_value in dict.fromkeys((value * 2, value // 2, value + 1, value - 1)):
            if new_value >= 0 and new_value != value:
                what = f"{value} becomes {new_value}"
                found.append(Edit(hole, match.start(), match.end(), str(new_value), what))
    found += _swaps(hole, text)
    return tuple(edit for edit in found if edit.apply(text) != text)


def _swaps(hole: str, text: str) -> list[Edit]:
    """Neighbouring lines of the same indentation that are statements of one line each, exchanged."""
    found: list[Edit] = []
    position = 0
    lines = text.split("\n")
    for first, second in itertools.pairwise(lines):
        if _simple(first) and _simple(second) and _indent(first) == _indent(second):
            end = position + len(first) + 1 + len(second)
            what = "exchange " + first.strip()[:40]
            found.append(Edit(hole, position, end, f"{second}\n{first}", what))
        position += len(first) + 1
    return found


def _simple(line: str) -> bool:
    bare = line.strip()
    if not bare or bare.startswith(("#", "//", "for ", "if ", "while ", "else", "}", "return")):
        return False
    return not bare.endswith(("{", ":", ",", "\\"))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
