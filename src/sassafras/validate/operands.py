"""Operand texts taken apart: which register stands where, and in which role.

This is the validator's own reader. It shares nothing with `sass.effects`, on purpose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

#: number bases of the register files; equal to those of `sass.registers` so that the two readings compare
R, P, UR, UP, B = 0, 256, 264, 520, 528

_FILES = {"R": (R, 254), "P": (P, 6), "UR": (UR, 254), "UP": (UP, 6), "B": (B, 15)}
_NAME = r"(UR|UP|R|P|B)(\d+)"
_PREDICATE = re.compile(r"!?(U?P)(\d+|T)$")
#: sign, bars, bitwise not around; suffixes such as .reuse, .H0_H0, .B1, .ROW, .64, .X4, .tnspB after
_PLAIN = re.compile(rf"[-~!]?\|?{_NAME}\|?((?:\.\w+)*)(?:\s|$)")
_INSIDE = re.compile(rf"(?<![\w.]){_NAME}(?!\w)((?:\.\w+)*)")
_ZERO = re.compile(r"[-~!]?\|?U?RZ\|?((?:\.\w+)*)(?:\s|$)")


class Role(StrEnum):
    """What an operand is."""

    PREDICATE = "predicate"
    REGISTER = "register"
    BANK = "bank"  # PR, UPR: all predicates, selected by a mask
    ADDRESS = "address"  # [..], desc[..][..]
    MATRIX = "matrix"  # gdesc[..]
    CONSTANT = "constant"  # c[..][..]
    OTHER = "other"  # immediates, labels, special registers, scoreboards


@dataclass(frozen=True, slots=True)
class Named:
    """A register named in an operand: number, its part of the slot's name, suffixes (``("64",)``)."""

    register: int
    part: str
    suffixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand.

    Attributes:
        role: what it is.
        text: as printed.
        position: how many operands that are no predicates stand before it.
        run: for predicates, how many predicates stand directly before it.
        named: the registers in it; RZ, PT, URZ and UPT are constants and not among them.
    """

    role: Role
    text: str
    position: int
    run: int
    named: tuple[Named, ...]

    @property
    def slot(self) -> str:
        """Its slot's name (`sassafras.sass.latency` defines them)."""
        return f"{self.position}p{self.run}" if self.role is Role.PREDICATE else str(self.position)


def number(prefix: str, index: int) -> int | None:
    """The number of a register, None if its file has no such register."""
    base, last = _FILES[prefix]
    return base + index if index <= last else None


def spell(register: int) -> str:
    """``R12`` of 12, ``UP1`` of 521, ..."""
    for prefix, (base, _) in sorted(_FILES.items(), key=lambda x: -x[1][0]):
        if register >= base:
            return f"{prefix}{register - base}"
    return f"register {register}"


def guard_register(guard: str) -> int | None:
    """The predicate of a guard (``!P0``), None for no guard and for PT.

    Raises:
        ValueError: the guard cannot be read.
    """
    if not guard:
        return None
    found = _PREDICATE.match(guard)
    if not found:
        raise ValueError(f"guard {guard!r}")
    return None if found[2] == "T" else number(found[1], int(found[2]))


@lru_cache(1 << 14)
def read(operands: tuple[str, ...]) -> tuple[Operand, ...]:
    """Take operand texts apart.

    Raises:
        ValueError: a register that does not exist.
    """
    found: list[Operand] = []
    position = run = 0
    for text in operands:
        predicate = _PREDICATE.match(text)
        if predicate:
            named = () if predicate[2] == "T" else (_named(predicate[1], predicate[2], "", ""),)
            found.append(Operand(Role.PREDICATE, text, position, run, named))
            run += 1
            continue
        role, registers = _data(text)
        found.append(Operand(role, text, position, 0, registers))
        position += 1
        run = 0
    return tuple(found)


def _data(text: str) -> tuple[Role, tuple[Named, ...]]:
    if text in ("PR", "UPR"):
        return Role.BANK, ()
    if text.startswith("gdesc["):
        return Role.MATRIX, _inside(text, "d")
    if text.startswith("desc["):
        descriptor, _, address = text.partition("][")
        return Role.ADDRESS, _inside(descriptor, "d") + _inside(address)
    if text.startswith("["):
        return Role.ADDRESS, _inside(text)
    if re.match(r"[-~|]*cx?\[", text):
        bank, _, offset = text.replace("] [", "][").partition("][")
        return Role.CONSTANT, _inside(bank, "d") + _inside(offset)
    if plain := _PLAIN.match(text):
        return Role.REGISTER, (_named(plain[1], plain[2], "", plain[3]),)
    if _ZERO.match(text):
        return Role.REGISTER, ()
    return Role.OTHER, ()


def _inside(text: str, part: str = "") -> tuple[Named, ...]:
    """Registers inside brackets: ``a`` address, ``u`` uniform part of an address, ``d`` descriptor."""
    return tuple(
        _named(m[1], m[2], part or ("u" if m[1] == "UR" else "a"), m[3]) for m in _INSIDE.finditer(text)
    )


def _named(prefix: str, index: str, part: str, suffixes: str) -> Named:
    register = number(prefix, int(index))
    if register is None:
        raise ValueError(f"there is no register {prefix}{index}")
    return Named(register, part, tuple(suffixes.strip(".").split(".")) if suffixes else ())
