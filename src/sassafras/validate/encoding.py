"""The register fields of an encoding, to cross-check what the operand text names.

Fields of the 128-bit word (sm_70 to sm_90; read off ptxas output, see ``docs/concepts/validator.md``): guard
12-15, Rd 16-23, Ra 24-31, Rb 32-39, Rc 64-71, predicates 68-71, 77-80, 81-83, 84-86 and 87-90.
"""

from __future__ import annotations

from .operands import UP, UR, Operand, P, R

_BYTES = ((0, 16), (0, 24), (0, 32), (1, 0))
_PREDICATES = ((1, 4), (1, 13), (1, 17), (1, 20), (1, 23))


def disagreement(name: str, guard: str, ops: tuple[Operand, ...], low: int, high: int) -> str:
    """Why the text and the encoding cannot both be right, or ``""``.

    Every general and uniform register that the text names must stand in one of the register fields, every
    predicate in one of the predicate fields, and the guard must be the encoded one.
    """
    words = (low, high)
    index, negated = low >> 12 & 7, bool(low >> 15 & 1)
    text = guard.lstrip("!").lstrip("UP") or "T"
    expected = 7 if not guard or text == "T" else int(text)
    if index != expected or negated != guard.startswith("!"):
        return f"{name}: guard {guard or 'none'} in the text, {'!' * negated}P{index} in the encoding"
    numbers = {words[w] >> at & 0xFF for w, at in _BYTES}
    predicates = {words[w] >> at & 7 for w, at in _PREDICATES}
    for op in ops:
        for named in op.named:
            register = named.register
            if register < P and register - R not in numbers:
                return f"{name}: {op.text} is in no register field"
            if UR <= register < UP and register - UR not in {n & 0x3F for n in numbers}:
                return f"{name}: {op.text} is in no register field"
            if (P <= register < UR or UP <= register < UP + 7) and (
                register - (P if register < UR else UP)
            ) not in predicates:
                return f"{name}: {op.text} is in no predicate field"
    return ""
