"""A word book: encodings of instructions, read off compiled cubins, and an assembler that fills in registers.

No encoding is written by hand. `harvest` looks at every instruction of a folder of cubins and keeps one
word for each *form* (opcode, kinds of operands, modifiers) together with the bit positions of its
registers: those at which every example of the form shows the number that its text prints. `Book.assemble`
takes text, finds the form and fills in the registers. What it made is checked by disassembling it again
(`kernels.Catalogue`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sassafras.core import SassafrasError
from sassafras.sass import Program
from sassafras.sass.control import CONTROL_MASK, Control
from sassafras.sass.instruction import split_text

BOOK = Path(__file__).with_name("words.json")
_REGISTER = re.compile(r"(?<![A-Za-z0-9_.`(])(UR|UP|R|P)(\d+|Z|T)(?![A-Za-z0-9_])")
_IMMEDIATE = re.compile(r"^-?0x[0-9a-f]+$")
_OFFSET = re.compile(r"\[([^\[\]]*?)\+?(-?0x[0-9a-f]+)\]|\[\]")
_CONSTANT = re.compile(r"c\[(0x[0-9a-f]+)\]\[(0x[0-9a-f]+)\]")
#: where a register of each file may stand in the 128 bits, in the usual order of operands, and its width
_PLACES = {
    "R": ((16, 24, 32, 64), 8),
    "UR": ((16, 24, 32, 64), 6),
    "P": ((), 3),
    "UP": ((), 3),
}
_REGISTER_KIND = re.compile(r"(?<![A-Za-z0-9_.`(])(UR|UP|R|P)(?![A-Za-z0-9_])")
_PREDICATES = re.compile(r", (!?)(U?P)(?![A-Za-z0-9_])")
_NONE = {"R": 255, "UR": 63, "P": 7, "UP": 7}
#: of what no compiler's output at hand has an example (as tests/validate/test_effects.py knows it)
_EXTRA: tuple[tuple[str, int, tuple[int, ...], tuple[int, bool]], ...] = (
    ("R2P PR, R, #", 0x804, (24,), (0, True)),
)
_MOST_EXAMPLES = 60
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


def harvest(folders: Iterable[Path], arch: str = "sm_90a") -> dict[str, list[Form]]:
    """Read the forms off every cubin of an architecture.

    Args:
        folders: searched for ``*.cubin``.
        arch: cubins for this one, with or without its ``a``.

    Returns:
        form -> words, one for each immediate that does not fill its field.

    Raises:
        SassafrasError: there is no cubin for it.
    """
    folders = list(folders)
    examples: dict[tuple[str, int | None], set[tuple[tuple[tuple[str, int], ...], int]]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.cubin")):
            try:
                program = Program.parse(path.read_bytes())
            except SassafrasError:
                continue
            if program.arch.rstrip("a") != arch.rstrip("a"):
                continue
            for function in program.functions.values():
                for i in function.instructions:
                    text = parse(i.text)
                    word = i.low | (i.high & ~CONTROL_MASK) << 64
                    # the guard is not part of a form
                    word &= ~(0xF << 12)
                    if text.offset:
                        word &= ~(0xFFFFFF << 40)
                    if text.constant:
                        word &= ~(0xFFFF << 40 | 3 << 54)
                    if "LABEL" in text.form:
                        word &= ~_target(-1)
                    if text.lut is not None:
                        word &= ~(0xFF << _LUT)
                    free = (
                        text.immediate is not None and word >> 32 & 0xFFFFFFFF == text.immediate & 0xFFFFFFFF
                    )
                    key = (text.form, None if free else text.immediate)
                    if free:
                        word &= ~(0xFFFFFFFF << 32)
                    seen = examples.setdefault(key, set())
                    if len(seen) < _MOST_EXAMPLES:
                        seen.add((text.registers, word))
    if not examples:  # or the book would lose what it holds
        raise SassafrasError(f"no cubin of {arch} in {', '.join(map(str, folders)) or 'no folder'}")
    book: dict[str, list[Form]] = {}
    for (form, immediate), seen in sorted(examples.items(), key=str):
        found = _places(form, seen, "#" in form and immediate is None)
        if found is not None:
            word, places = found
            had = None if "#" not in form else (immediate or 0, immediate is None)
            book.setdefault(form, []).append(Form(word, places, had))
    for form, word, places, immediate in _EXTRA:
        book.setdefault(form, [Form(word, places, immediate)])
    return book


def _order(form: str) -> list[tuple[int, ...]]:
    """Where each register is looked for, the likely places first: predicates in front are results."""
    opcode, _, rest = form.partition(" ")
    found: list[tuple[int, ...]] = []
    results, open_ = 0, True
    most = 1 if opcode.startswith(("VOTE", "SHFL", "LEA", "BRA")) else 2
    for position, operand in enumerate(rest.split(", ")):
        for file in _REGISTER_KIND.findall(operand):
            if file in ("P", "UP"):
                result = open_ and results < most
                results += result
                found.append((81, 84, 87, 77, 68) if result else (87, 77, 68, 81, 84))
            else:
                open_ = open_ and position == 0
                found.append(_PLACES[file][0])
    return found


def _places(
    form: str, seen: set[tuple[tuple[tuple[str, int], ...], int]], busy: bool
) -> tuple[int, tuple[int, ...]] | None:
    """The positions of the registers that agree with every example, and the word without them."""
    candidates = [[p for p in places if not (busy and p == 32)] for places in _order(form)]
    most = max(1, len(seen) - len(seen) // 10)
    for places in itertools.product(*candidates):
        if len(set(places)) < len(places):
            continue
        rests: Counter[int] = Counter()
        for registers, word in seen:
            for (file, number), place in zip(registers, places, strict=True):
                mask = (1 << _PLACES[file][1]) - 1
                if word >> place & mask != number:
                    break
                word &= ~(mask << place)
            else:
                rests[word] += 1
        # what compilers fill differently (branches have such a field) is told by the majority
        if rests and sum(rests.values()) >= most:
            return rests.most_common(1)[0][0], places
    return None


def save(book: dict[str, list[Form]], path: Path = BOOK) -> None:
    """Write the book, one word a line."""
    lines = [
        json.dumps([form, f"{f.word:x}", list(f.places), list(f.immediate) if f.immediate else None])
        for form, words in sorted(book.items())
        for f in words
    ]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


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
            raise NoSuchForm(f"no word of the form {p.form}", where=text, hint="harvest a cubin that has it")
        word = found.word
        for (file, number), place in zip(p.registers, found.places, strict=True):
            word |= (number & (1 << _PLACES[file][1]) - 1) << place
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
