"""Which register each slot of the operand cache may hold, from the instruction's text.

A reuse flag keeps the operand of one of three slots. The slot is the operand's place among the sources, not a
field of the encoding: a field that an opcode does not use is 0, as R0's is.
"""

from __future__ import annotations

import re

from .reading import NO_OUTPUT, PREDICATE, Op

_SINGLE = re.compile(r"[-~|!]*R(\d+)[|.\w]*$")
_NAMED = re.compile(r"(?<![\w.])R\d+")
_IMMEDIATE = re.compile(r"[-+]?(\d|\.\d|INF|QNAN)")
#: sums and comparisons of sums: the second operand is the third of a multiplication and addition
_SUMS = frozenset(["FADD", "HADD2", "HSET2", "HSETP2"])
_COMPARISONS = ("SETP", "SETP2")


def slots(op: Op) -> tuple[int, int, int]:
    """The general register of each slot, -1 for none."""
    texts = [text for text in op.operands if not PREDICATE.match(text) and text != "PR"]
    if op.base not in NO_OUTPUT and not op.base.endswith(_COMPARISONS):
        texts = texts[1:]
    if op.base.startswith("H"):  # an immediate of two halves is printed as two operands
        pairs = zip(texts, ["", *texts], strict=False)
        texts = [t for t, before in pairs if not (_IMMEDIATE.match(t) and _IMMEDIATE.match(before))]
    if op.address is not None:  # registers of the address, then of what is stored
        texts = [name for text in texts for name in _NAMED.findall(text)]
    places = (0, 1, 2)
    if len(texts) == 1 and op.address is None:
        places = (1,)
    elif op.base in _SUMS:
        places = (0, 2)
    found = [-1, -1, -1]
    for slot, text in zip(places, texts, strict=False):
        if single := _SINGLE.match(text):
            found[slot] = int(single[1])
    return found[0], found[1], found[2]
