"""A word book: encodings of instructions, read off compiled cubins, and an assembler that fills in registers.

words.json has one word for each *form* (opcode, kinds of operands, modifiers) and the bit positions of its
registers: those at which every example in a corpus of compiled cubins shows the number that its text prints.
`Book.assemble` takes text, finds the form and fills in the registers. What it made is checked by
disassembling it again (`build.Catalogue`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from sassafras.core import SassafrasError
from sassafras.sass.control import Control
from sassafras.sass.instruction import split_text

BOOK = Path(__file__).with_name("words.json")
_REGISTER = re.compile(r"(?<![A-Za-z0-9_.`(])(UR|UP|R|P)(\d+|Z|T)(?![A-Za-z0-9_])")
_IMMEDIATE = re.compile(r"^-?0x[0-9a-f]+$")
_OFFSET = re.compile(r"\[([^\[\]]*?)\+?(-?0x[0-9a-f]+)\]|\[\]")
_CONSTANT = re.compile(r"c\[(0x[0-9a-f]+)\]\[(0x[0-9a-f]+)\]")
#: bits of a register of each file
_BITS = {"R": 8, "UR": 6, "P": 3, "UP": 3}
_REGISTER_KIND = re.compile(r"(?<![A-Za-z0-9_.`(])(UR|UP|R|P)(?![A-Za-z0-9_])")
_PREDICATES = re.compile(r", (!?)(U?P)(?![A-Za-z0-9_])")
_NONE = {"R": 255, "UR": 63, "P": 7, "UP": 7}
#: where LOP3 has its truth table
_LUT = 72


class NoSuchForm(SassafrasError):
    """The book has no word of this form."""


@dataclass(frozen=True)
class Parsed:
    """An instruction's text, taken apart: form, register tokens, and the immediate, offset or constant in
    it."""

    guard: str
    form: str
    registers: tuple[tuple[str, int], ...]
    immediate: int | None
    offset: int
    constant: tuple[int, int] | None
    lut: int | None = None


def parse(text: str) -> Parsed:
    """Take an instruction's text apart.

    >>> parse("@!P1 IADD3 R4, R2, 0x10, RZ").form
    'IADD3 R, R, #, R'
    """
    guard, opcode, operands = split_text(text.replace(".reuse", ""))
    shapes: list[str] = []
    registers: list[tuple[str, int]] = []
    immediate: int | None = None
    offset, constant, lut = 0, None, None
    table = next((n for n in range(len(operands) - 1, 0, -1) if _IMMEDIATE.match(operands[n].strip())), -1)
    for position, operand in enumerate(operands):
        operand = operand.strip()
        if operand.startswith("`("):
            operand = "LABEL"
        elif found := _CONSTANT.search(operand):
            constant = (int(found[1], 16), int(found[2], 16))
            operand = _CONSTANT.sub("c[]", operand)
        elif "[" in operand and (found := re.search(r"\+?(-?0x[0-9a-f]+)\]$", operand)):
            offset = int(found[1], 16)
            operand = operand[: found.start()] + "]"
        elif position == table and opcode in ("LOP3.LUT", "ULOP3.LUT"):
            lut = int(operand, 16)
            operand = "@"
        elif _IMMEDIATE.match(operand) and immediate is None:
            immediate = int(operand, 16)
            operand = "#"
        for file, number in _REGISTER.findall(operand):
            registers.append((file, _NONE[file] if number in "ZT" else int(number)))
        shapes.append(_REGISTER.sub(lambda m: m[1], operand))
    return Parsed(
        guard, f"{opcode} {', '.join(shapes)}".strip(), tuple(registers), immediate, offset, constant, lut
    )


@dataclass(frozen=True)
class Form:
    """A word whose registers can be filled in.

    Attributes:
        word: 128 bits, registers and control code zero.
        places: bit position of each register, in the order of the text.
        immediate: what the form's first immediate was, and whether it fills bits 32 to 63 (and can be
        changed).
    """

    word: int
    places: tuple[int, ...]
    immediate: tuple[int, bool] | None


class Book:
    """Assembles text with the words of a file."""

    def __init__(self, path: Path = BOOK) -> None:
        self.forms: dict[str, list[Form]] = {}
        self._made: dict[tuple[str, Control], tuple[int, int]] = {}
        for form, word, places, immediate in json.loads(path.read_text()):
            self.forms.setdefault(form, []).append(
                Form(int(word, 16), tuple(places), tuple(immediate) if immediate else None)
            )

    def assemble(self, text: str, control: Control, jump: int = 0) -> tuple[int, int]:
        """The two words of an instruction.

        Args:
            text: as nvdisasm prints it; a branch's target is "`(LABEL)".
            control: its control code.
            jump: bytes from the end of a branch to its target.

        Raises:
            NoSuchForm: the book has no word of this form (or not with this immediate).
        """
        if not jump and (made := self._made.get((text, control))):
            return made
        p = parse(text)
        found = next((f for f in self.forms.get(p.form, ()) if self._fits(f, p)), None) or self._derived(p)
        if found is None:
            raise NoSuchForm(f"no word of the form {p.form}", where=text)
        word = found.word
        for (file, number), place in zip(p.registers, found.places, strict=True):
            word |= (number & (1 << _BITS[file]) - 1) << place
        if found.immediate and found.immediate[1] and p.immediate is not None:
            word |= (p.immediate & 0xFFFFFFFF) << 32
        if p.offset:
            word |= (p.offset & 0xFFFFFF) << 40
        if "LABEL" in p.form:
            word |= _target(jump // 4)
        if p.lut is not None:
            word |= p.lut << _LUT
        if p.constant:
            word |= (p.constant[1] // 4) << 40 | p.constant[0] << 54
        word |= _guard(p.guard) << 12
        words = word & (1 << 64) - 1, control.encode(word >> 64)
        if not jump:
            self._made[text, control] = words
        return words

    def _derived(self, p: Parsed) -> Form | None:
        """A form made from a near one: another sense of an input predicate, or UR for the second register."""
        for found in _PREDICATES.finditer(p.form):
            negated = bool(found[1])
            other = p.form[: found.start()] + (", " if negated else ", !") + found[2] + p.form[found.end() :]
            index = len(_REGISTER_KIND.findall(p.form[: found.start()]))
            for near in self.forms.get(other, ()):
                place = near.places[index]
                if place in (87, 77, 68) and self._fits(near, p):
                    return Form(near.word ^ 1 << place + 3, near.places, near.immediate)
        for n, (file, _) in enumerate(p.registers):
            spans = list(_REGISTER_KIND.finditer(p.form))
            if p.immediate is not None or file not in ("R", "UR") or len(spans) != len(p.registers):
                continue
            for near in self.forms.get(p.form[: spans[n].start()] + "#" + p.form[spans[n].end() :], ()):
                # register, immediate, register to three registers
                if near.immediate and near.immediate[1] and near.word >> 8 & 0xE == 8:
                    places = (*near.places[:n], 32, *near.places[n:])
                    return Form(near.word & ~0xE00 | 0x200, places, None)
        if len(uniform := [n for n, (f, _) in enumerate(p.registers) if f == "UR"]) == 1:
            plain = re.sub(r"\bUR\b", "R", p.form)
            for near in self.forms.get(plain, ()):
                # register, register, register to register, uniform, register
                if near.places[uniform[0]] == 32 and near.word >> 8 & 0xE == 2 and self._fits(near, p):
                    return Form(near.word & ~0xE00 | 0xC00 | 1 << 91, near.places, near.immediate)
                if near.places[uniform[0]] == 64 and 32 in near.places and near.word >> 8 & 0xE == 2:
                    places = tuple({64: 32, 32: 64}.get(x, x) for x in near.places)
                    return Form(near.word & ~0xE00 | 0xE00 | 1 << 91, places, near.immediate)
        return None

    @staticmethod
    def _fits(form: Form, p: Parsed) -> bool:
        if p.immediate is None:
            return form.immediate is None
        return form.immediate is not None and (form.immediate[1] or form.immediate[0] == p.immediate)


def _target(words: int) -> int:
    """A branch's distance from the next instruction, in units of four bytes: 8 bits at 16, 48 more at 34."""
    return (words & 0xFF) << 16 | (words >> 8 & (1 << 48) - 1) << 34


def _guard(text: str) -> int:
    if not text:
        return 7
    number = text.lstrip("!UPT")
    return (int(number) if number else 7) | (8 if text[0] == "!" else 0)
