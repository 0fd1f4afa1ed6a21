"""The pairs that are measured: every producer of a value with every operand that takes one.

All of them are identities: what is made is the fresh value itself, and what is computed from it tells
every bit of it, so that a stale register shows. Where an instruction cannot hand a value through (it
converts, packs, counts), it is marked and used only where any value will do.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sassafras.sass.opcodes import OPCODES, Queue, base

from .frame import SKIP, Probe, opcode


@dataclass(frozen=True)
class Maker:
    """A producer: ``{}`` stands for the register under test.

    Attributes:
        text: the instruction.
        register: which register of what it writes is under test.
        before: what it needs.
        exact: it hands the value through; else only where any value will do.
        only: values that it can make, where these are few.
    """

    text: str
    register: str = "R12"
    before: tuple[str, ...] = ()
    exact: bool = True
    only: str = ""


@dataclass(frozen=True)
class Taker:
    """A consumer: the instruction with the register under test in one operand.

    Attributes:
        text, register, before: as for `Maker`.
        values: what may go through the register (`frame.VALUES`).
        after: brings its result into R24.
        loose: see `Probe`.
    """

    text: str
    register: str = "R12"
    values: str = "any"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    loose: bool = False


#: files of registers, in their order: general, predicates, uniform, uniform predicates
CASES = Path(__file__).with_name("cases.json")


def read(cases: dict[str, Any]) -> list[tuple[list[Maker], list[Taker]]]:
    """Producers and consumers of each file of registers.

    Producers of a general register make it from R4 (and R5), of a predicate from a bit in R4, of a uniform
    register from uniform values in R4 and R5, of a uniform predicate from a uniform bit in R4.
    """

    def made(kind: type, entry: dict[str, Any]) -> Any:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})

    return [
        ([made(Maker, e) for e in of["makers"]], [made(Taker, e) for e in of["takers"]])
        for of in cases.values()
        if "makers" in of
    ]


@lru_cache(maxsize=65536)
def _width(text: str) -> int:
    """Registers that an instruction's register under test is one of, from its opcode."""
    name = opcode(text)
    parts = name.split(".")
    if "128" in parts or parts[0] in ("HMMA", "IMMA"):
        return 4
    wide = parts[0].startswith("D") or "WIDE" in parts or "64" in parts or name == "CS2R"
    return 2 if wide else 1


def _number(register: str) -> int:
    return int(re.sub(r"\D", "", register))


def _rename(text: str, old: str, new: str) -> str:
    return text if old == new else re.sub(rf"\b{old}\b", new, text)


def _file(register: str) -> str:
    return re.sub(r"\d", "", register)


_FIRST = {"R": 12, "UR": 8, "P": 1, "UP": 1}


def _join(kind: str, maker: Maker, taker: Taker) -> Probe | None:
    """A producer and a consumer on one register, if the two fit together."""
    file = _file(taker.register)
    if file != _file(maker.register) or (maker.only and maker.only != taker.values):
        return None
    if not maker.exact and taker.values not in ("any", "uniform"):
        return None
    if maker.text.startswith("H") and taker.values.startswith("global"):
        return None  # half of an address may be no number, and would not come through
    made, taken, before = maker.text, taker.text, maker.before + taker.before
    register, high = taker.register, False
    if file in ("R", "UR"):
        first = _FIRST[file]
        part, place = _number(maker.register) - first, _number(taker.register) - first
        widths = _width(made), _taken_width(taker)
        if widths[1] == 1:  # the consumer takes any register
            taken = _rename(taken, f"{file}{first}", f"{file}{first + part}")
            register = f"{file}{first + part}"
            if part % 2:
                taken = _rename(_rename(taken, "R6", "R7"), "R4", "R5")
                before = maker.before + tuple(
                    _rename(_rename(t, "R6", "R7"), "R4", "R5") for t in taker.before
                )
            place = part
        elif widths[0] == 1:  # the producer makes any register
            made = _rename(made, f"{file}{first}", f"{file}{first + place}")
            if place % 2:
                made = _rename(_rename(made, "R4", "R5"), "UR12", "UR13")
                before = tuple(_odd(t) for t in maker.before) + taker.before
        else:
            start = place - part
            if start < 0 or start % widths[0]:
                return None
            made = _rename(made, f"{file}{first}", f"{file}{first + start}")
        high = place % 2 == 1
        if high and taker.values not in ("any", "uniform", "global high"):
            return None  # these values have nothing in their high words
    first_text, second_text = (taken, made) if kind == "war" else (made, taken)
    return Probe(
        "", kind, register, first_text, second_text, taker.values, high, before, taker.after, taker.loose
    )


def _odd(text: str) -> str:
    """What prepares a source, for the value's high word; pairs and quads have both words anyway."""
    return text if text.startswith("R2UR") or "R17, R5" in text else re.sub(r", R4\b", ", R5", text)


def _taken_width(taker: Taker) -> int:
    """Registers in the operand under test."""
    text = taker.text
    if _file(taker.register) == "R" and f"[{'R12'}.64" in text:
        return 2
    if _file(taker.register) in ("P", "UP"):
        return 1
    name = opcode(text)
    if name.startswith(("LDS", "LDG", "SHFL", "LDC")) or "R12]" in text or "UR8]" in text:
        return 1  # the address, not the data
    if "WIDE" in name:
        return 2 if re.search(r", (R12|UR8)$", text) else 1
    return _width(text)


def _fixed(text: str) -> bool:
    """Whether an instruction reads its operands at once."""
    name = opcode(text)
    op = OPCODES[base(name)]
    return not op.variable or op.queue is Queue.FP64


def probes() -> list[Probe]:
    """Every pair, named and in a fixed order: first ``raw``, then ``war`` and ``waw``."""
    cases = json.loads(CASES.read_text())
    files = read(cases)
    #: what writes behind a reader, beside the producers, though its result comes late
    late = [Maker(**{**e, "before": tuple(e.get("before", ()))}) for e in cases["late writers"]]
    found: list[Probe] = []
    for makers, takers in files:
        found += [p for m in makers for t in takers if (p := _join("raw", m, t))]
    for makers, takers in files:
        writers = [m for m in makers if base(m.text.split()[0]) in cases["writers"]]
        if _file(makers[0].register) == "R":
            writers += late
        for t in takers:
            # a late reader takes predicates and uniform registers at issue, general registers later
            if (_file(t.register) == "R" and not _fixed(t.text)) or t.text.endswith(SKIP):
                continue
            found += [p for m in writers if (p := _join("war", m, t))]
        found += [p for a in makers for b in writers if (p := _overwrite(a, b))]
    return found


_SHOW = {
    "R": ("any", ("MOV R24, {}",)),
    "UR": ("uniform", ("MOV R24, {}",)),
    "P": ("uniform bit", ("SEL R24, R58, RZ, {}",)),
    "UP": ("uniform bit", ("USEL UR16, UR14, URZ, {}", "MOV R24, UR16")),
}


def _overwrite(a: Maker, b: Maker) -> Probe | None:
    """Two writers of one register, with different values of which the second must stay. Either may write a
    pair: R4's value into its low half, R5's into its high one, or in both a product."""
    file, widths = _file(a.register), (_width(a.text), _width(b.text))
    if file != _file(b.register) or max(widths) > 2:
        return None
    # who writes one register takes the half of the other one's pair
    register = a.register if widths[1] == 1 else b.register
    if widths == (2, 2) and (a.register != b.register or a.exact == b.exact):
        return None  # different halves, or the same value
    values, after = _SHOW[file]
    before = ("R2UR UR14, R58",) if file == "UP" else ()
    first, second = (_rename(m.text, m.register, register) for m in (a, b))
    own, others = a.before, b.before
    if file not in ("R", "UR"):
        # the other value: what made P1 from R4 makes it from its complement in R6
        first, own = _rename(first, "R4", "R6"), tuple(_rename(t, "R4", "R6") for t in own)
        if set(_writes(own)) & set(_writes(others)):
            return None
    elif widths[0] == 1 and (widths[1] == 1 or _number(register) % 2 == 0):
        first, own = _from_r5(first, own)
    elif widths[1] == 1 and _number(register) % 2 == 0:
        second, others = _from_r5(second, others)
    return Probe(
        "",
        "waw",
        register,
        first,
        second,
        values,
        False,
        own + others + before,
        tuple(t.format(register) for t in after),
    )


def _from_r5(text: str, before: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A writer that makes its value from R5 instead of R4."""
    return _rename(_rename(text, "R4", "R5"), "UR12", "UR13"), tuple(_odd(t) for t in before)


def _writes(texts: tuple[str, ...]) -> list[str]:
    return [t.split()[1].rstrip(",") for t in texts if not t.startswith(("STS", "STG"))]
