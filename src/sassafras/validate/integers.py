"""Whole numbers of one block of threads: what addresses of shared memory are made of.

A register holds an int64 array (threads,) with values of 32 bits, or None where they are not known: whatever
comes from memory, parameters or floating point. A uniform register holds its warp's value in each thread.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sassafras.sass import Instruction

from .operands import Operand, Role

Value = np.ndarray | None
Values = Mapping[int, Value]

_WORD = np.int64(0xFFFFFFFF)
_IMMEDIATE = re.compile(r"-?0x[0-9a-f]+$|-?\d+$")
_PLAIN = re.compile(r"[-~|!]?U?(?:R|P)(?:\d+|Z|T)\|?(?:\.reuse)?$")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip
_COMBINE = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}


class Block:
    """The threads of one block, and what is known of them at launch.

    Args:
        shape: threads in x, y, z; None where the cubin does not say: one warp is taken then.
    """

    def __init__(self, shape: tuple[int, int, int] | None) -> None:
        x, y, z = shape or (32, 1, 1)
        thread = np.arange(x * y * z, dtype=np.int64)
        self.count = len(thread)
        self.warp = thread // 32
        self._first = 32 * self.warp
        self._special: dict[str, Value] = {
            "SR_TID.X": thread % x, "SR_TID.Y": thread // x % y, "SR_TID.Z": thread // (x * y),
            "SR_LANEID": thread % 32, "SRZ": 0 * thread, "SR_CgaCtaId": 0 * thread,
            "SR_CTAID.X": 0 * thread, "SR_CTAID.Y": 0 * thread, "SR_CTAID.Z": 0 * thread,
        }  # fmt: skip
        sizes = shape or (None, None, None)
        self._constants = {f"c[0x0][{4 * n:#x}]": size for n, size in enumerate(sizes)}

    def of_warp(self, value: Value) -> Value:
        """Each warp's first thread's value, in all its threads."""
        return None if value is None else value[self._first]

    def number(self, o: Operand, values: Values) -> Value:
        """An operand's value, sign and bitwise not applied."""
        text = o.text
        if _IMMEDIATE.match(text):
            return np.full(self.count, int(text, 0) & int(_WORD), dtype=np.int64)
        if o.role is Role.CONSTANT and (size := self._constants.get(text)) is not None:
            return np.full(self.count, size, dtype=np.int64)
        if text in self._special:
            return self._special[text]
        if o.role is not Role.REGISTER or not _PLAIN.match(text):
            return None
        value = values.get(o.named[0].register) if o.named else np.zeros(self.count, dtype=np.int64)
        if value is None or "|" in text:
            return None
        if text[0] in "-~":
            value = -value if text[0] == "-" else ~value
        return value & _WORD

    def truth(self, text: str, named: int | None, values: Values) -> Value:
        """A predicate operand's value, bool."""
        value = np.ones(self.count, dtype=bool) if named is None else values.get(named)
        return None if value is None else (~value if text.startswith("!") else value)


def _signed(value: np.ndarray) -> np.ndarray:
    return (value ^ 0x80000000) - 0x80000000


def _lut(table: int, inputs: list[np.ndarray], full: Any) -> np.ndarray:
    """A function of three inputs, bit by bit."""
    a, b, c = inputs
    out = a & ~a
    for k in range(8):
        if table >> k & 1:
            term = (a if k & 4 else ~a & full) & (b if k & 2 else ~b & full) & (c if k & 1 else ~c & full)
            out = out | term
    return out


def modelled(i: Instruction) -> bool:
    """Whether `results` may know a result of this instruction."""
    name = i.base.removeprefix("U") if i.base in _UNIFORM else i.base
    return name in ("ISETP", "PLOP3") or name in _RULES


def results(i: Instruction, ops: tuple[Operand, ...], block: Block, values: Values) -> list[Value]:
    """The values of an instruction's written registers, in the order of its text; [] for all unknown.

    Only whole-number operations of 32 bits are known; of a wider result, the lower word.
    """
    name, mods = i.base.removeprefix("U") if i.base in _UNIFORM else i.base, i.opcode.split(".")[1:]
    data = [o for o in ops if o.role is not Role.PREDICATE]
    predicates = [o for o in ops if o.role is Role.PREDICATE]
    if name in ("ISETP", "PLOP3"):
        return _predicate(name, mods, data, predicates, block, values)
    if name == "IMAD" and ("WIDE" in mods or "HI" in mods):
        return _wide(mods, data, block, values)
    rule = _RULES.get(name)
    if rule is None or not data:
        return []
    given = [block.number(o, values) for o in data[1:]]
    if name in ("SEL", "VIMNMX", "IMNMX"):
        given.append(_truth(predicates[-1], block, values) if predicates else None)
    value = rule(mods, given, i, block)
    if value is None:
        return []
    if name == "LOP3" and ops[0].named and ops[0].role is Role.PREDICATE:
        more = _truth(predicates[-1], block, values)
        some = (value & _WORD) != 0
        both = None if more is None else some & more if "PAND" in mods else some | more
        return [both, value & _WORD]
    return [value & _WORD] * (2 if name == "CS2R" and data[1].text == "SRZ" else 1)


def _truth(o: Operand, block: Block, values: Values) -> Value:
    return block.truth(o.text, o.named[0].register if o.named else None, values)


def _predicate(
    name: str,
    mods: list[str],
    data: list[Operand],
    predicates: list[Operand],
    block: Block,
    values: Values,
) -> list[Value]:
    inputs = [_truth(o, block, values) for o in predicates[2:]]
    if name == "PLOP3":
        # an input that cannot matter need not be known
        table = int(data[0].text, 16)
        either = np.zeros(block.count, dtype=bool), np.ones(block.count, dtype=bool)
        given = itertools.product(*(either if x is None else (x,) for x in inputs))
        first, *others = (_lut(table, list(case), True) for case in given)
        return [first] if all((first == x).all() for x in others) else []
    compare = next((_COMPARE[m] for m in mods if m in _COMPARE), None)
    combine = next((m for m in mods if m in _COMBINE), None)
    a, b = (block.number(o, values) for o in data[:2])
    if compare is None or combine is None or "EX" in mods or not inputs:
        return []
    held: Value = None
    if a is not None and b is not None:
        held = compare(a, b) if "U32" in mods else compare(_signed(a), _signed(b))
    last = inputs[-1]
    if held is not None and last is not None:
        return [_COMBINE[combine](held, last)]
    only = held if held is not None else last
    # what is not known cannot matter
    settled = only is not None and (
        (combine == "AND" and not only.any()) or (combine == "OR" and bool(only.all()))
    )
    return [only] if settled else []


def _wide(mods: list[str], data: list[Operand], block: Block, values: Values) -> list[Value]:
    """Low and high word, or the high word alone, of a product and a sum of 64 bits."""
    a, b, low = (block.number(o, values) for o in data[1:4])
    zero = np.zeros(block.count, dtype=np.int64)
    if "X" in mods or low is None or data[3].role is not Role.REGISTER or data[3].text[0] in "-~":
        return []
    high = values.get(data[3].named[0].register + 1) if data[3].named else zero
    if any(x is not None and not x.any() for x in (a, b)):
        a = b = zero  # whatever the other one is
    if a is None or b is None:
        return []
    whole = a.astype(np.uint64) * b.astype(np.uint64) if "U32" in mods else _signed(a) * _signed(b)
    whole = whole.astype(np.uint64) + low.astype(np.uint64)
    if high is not None:
        high = ((whole >> np.uint64(32)).astype(np.int64) + high) & _WORD
    return [high] if "HI" in mods else [(whole & np.uint64(_WORD)).astype(np.int64), high]


def _sum(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    if "X" in mods or any(x is None for x in given):
        return None
    return sum(given)  # type: ignore[arg-type, return-value]


def _product(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    a, b, c = (*given, None, None, None)[:3]
    if c is None or "X" in mods:
        return None
    zero = np.zeros(block.count, dtype=np.int64)
    if any(x is not None and not x.any() for x in (a, b)):
        return zero + c  # whatever the other one is
    return None if a is None or b is None else a * b + c


def _shifted(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    a, b, *_ = (*given, None, None)
    high, by = (given[2] if "HI" in mods and len(given) > 3 else None), given[-1]
    if a is None or b is None or by is None or "X" in mods:
        return None
    if "HI" not in mods:
        return (a << by) + b
    if "SX32" in mods:
        return (_signed(a) >> (32 - by)) + b
    return None if high is None or high.any() else (a >> (32 - by)) + b


def _funnel(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    low, by, high = (*given, None, None, None)[:3]
    if by is None or "U64" in mods or "S64" in mods:
        return None
    if "R" in mods and "HI" in mods and high is not None:
        return _signed(high) >> by if "S32" in mods else high >> by
    return low << by if "L" in mods and "HI" not in mods and low is not None else None


def _logic(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    if len(given) < 4 or any(x is None for x in given[:4]):
        return None
    table = int(given[3][0])  # type: ignore[index]
    return _lut(table, given[:3], _WORD)  # type: ignore[arg-type]


def _extended(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    if len(given) < 2 or given[0] is None or given[1] is None:
        return None
    bits = int(given[1][0])
    if not 0 < bits <= 32:
        return None
    part = given[0] & ((1 << bits) - 1)
    return part if "U32" in mods else (part ^ 1 << bits - 1) - (1 << bits - 1)


def _chosen(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    a, b, p = given[0], given[1], given[-1]
    if p is None:
        return a if a is not None and b is not None and (a == b).all() else None
    if a is None or b is None:
        return a if a is not None and p.all() else b if b is not None and not p.any() else None
    return np.where(p, a, b)


def _halves(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    """``HFMA2.MMA R, -RZ, RZ, x, y`` loads a constant."""
    if i.operands[1:3] != ("-RZ", "RZ") or i.operands[3][:1] in ("R", "c"):
        return None
    return np.full(block.count, i.low >> 32, dtype=np.int64)


def _permuted(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    a, by, b = (*given, None, None, None)[:3]
    if a is None and by is not None and by[0] == 0x654:  # an address in another block of the cluster
        a = np.zeros(block.count, dtype=np.int64)
    if mods or a is None or b is None or by is None:
        return None
    both, out = a | b << 32, np.zeros(block.count, dtype=np.int64)
    both = both.astype(np.uint64)
    for k in range(4):
        select = int(by[0]) >> 4 * k & 0xF
        if select > 7:
            return None
        out |= (both >> np.uint64(8 * select) & np.uint64(0xFF)).astype(np.int64) << 8 * k
    return out


def _least(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    a, b, least = (*given, None, None, None)[:3]
    if a is None or b is None or least is None or "RELU" in mods:
        return None
    x, y = (a, b) if "U32" in mods else (_signed(a), _signed(b))
    return np.where(least, np.minimum(x, y), np.maximum(x, y))


def _absolute(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    return None if given[0] is None else np.abs(_signed(given[0]))


def _first(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    return given[0] if given else None


def _broadcast(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    return block.of_warp(given[0])


def _shuffled(mods: list[str], given: list[Value], i: Instruction, block: Block) -> Value:
    lane = given[1] if len(given) > 1 else None
    return block.of_warp(given[0]) if "IDX" in mods and lane is not None and not lane.any() else None


_UNIFORM = frozenset(
    ["UMOV", "UIADD3", "UIMAD", "ULEA", "USHF", "ULOP3", "USEL", "USGXT", "UISETP", "UPLOP3", "UPRMT", "ULDC"]
)  # fmt: skip
_RULES: dict[str, Callable[[list[str], list[Value], Instruction, Block], Value]] = {
    **dict.fromkeys(("MOV", "S2R", "S2UR", "CS2R", "LDC"), _first),
    **dict.fromkeys(("IADD3", "VIADD"), _sum),
    "IMAD": _product, "LEA": _shifted, "SHF": _funnel, "LOP3": _logic, "SGXT": _extended, "SEL": _chosen,
    "IABS": _absolute, **dict.fromkeys(("VIMNMX", "IMNMX"), _least),
    "HFMA2": _halves, "PRMT": _permuted, "R2UR": _broadcast, "SHFL": _shuffled,
}  # fmt: skip
