"""One native instruction: its words, its text, and its effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from .control import Control
from .opcodes import Op, base


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a `Function`, at its original position.

    Attributes:
        index: position in the function's original order, from 0.
        offset: byte offset in the text section (16 * index).
        low, high: the two 64-bit words of the encoding.
        text: the disassembly, guard included, without the semicolon.
        guard: ``"P0"``, ``"!P0"``, ``"UP1"``, ... or ``""`` when unguarded (``@!PT`` is ``"!PT"``).
        opcode: the full mnemonic, ``LDG.E.128``.
        operands: operand texts in order, as printed.
        control: the decoded control code.
        op: facts about the opcode.
        reads, writes: registers (`sass.registers` numbers) by the disassembler's liveness oracle, with
            its known gaps closed (see `sass.effects`). A guarded write is in `writes` too.
        unexplained: why the oracle and the operand text disagree, or ``""``: such an instruction is pinned.
    """

    index: int
    offset: int
    low: int
    high: int
    text: str
    guard: str
    opcode: str
    operands: tuple[str, ...]
    control: Control
    op: Op
    reads: frozenset[int]
    writes: frozenset[int]
    unexplained: str = ""
    #: the opcode before its first dot; asked for some thirty times when a kernel is analysed
    base: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", base(self.opcode))

    def __str__(self) -> str:
        return f"{self.control}  /*{self.offset:04x}*/  {self.text}"


@lru_cache(maxsize=16384)  # candidates of one kernel have most of their lines in common
def split_text(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Split ``@!P0 LDG.E R8, desc[UR6][R6.64+0x600]`` into guard, opcode and operands.

    Commas inside brackets or parentheses do not split. Flags printed after the operands without a
    comma (``RZ  ``) are stripped of spaces only.
    """
    text = text.strip().rstrip(";").strip()
    guard = ""
    if text.startswith("@"):
        head, _, text = text.partition(" ")
        guard = head[1:]
        text = text.strip()
    opcode, _, rest = text.partition(" ")
    operands, depth, current = [], 0, ""
    for char in rest:
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        if char == "," and depth == 0:
            operands.append(current.strip())
            current = ""
        else:
            current += char
    if current.strip():
        operands.append(current.strip())
    return guard, opcode, tuple(operands)
