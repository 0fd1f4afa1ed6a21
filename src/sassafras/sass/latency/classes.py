"""Which pairs of operands share one latency: producer and consumer classes.

A result's latency depends on the unit that makes it and on the unit, and the kind of operand, that takes
it. The classes were found by pooling the mined rows: within a class every row with enough samples has the
same minimum (rows above it are explained by chains: an IADD3 that feeds an address's low half waits for the
carry that feeds its high half). They decide only how much a row can be trusted, see `LatencyTable`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ..opcodes import OPCODES, Queue, base

_KIND = re.compile(r"^\d+([paud])?")
#: queues whose operations have little in common: each opcode key and slot is a class of its own
_SINGLE = frozenset([Queue.TMA, Queue.WGMMA, Queue.CONTROL, Queue.SPECIAL, Queue.TENSOR])
#: opcodes that take or give results unlike the rest of their queue
_OWN = frozenset(["CS2R", "R2UR", "VOTE", "VOTEU", "P2R", "R2P", "MATCH", "REDUX"])


def _kind(slot: str) -> str:
    """``p`` predicate, ``a`` and ``u`` address, ``d`` descriptor, ``r`` register."""
    found = _KIND.match(slot)
    return (found and found[1]) or "r"


def _unit(key: str) -> str:
    name = base(key)
    if name == "VIADD":
        return Queue.FMA  # it takes FP32's latencies towards and from both FMA and ALU
    if key.startswith("HFMA2.MMA"):
        return "HFMA2.MMA"
    if name in ("ULDC", "UMOV"):
        return "uniform-load"
    return name if name in _OWN else OPCODES[name].queue


@lru_cache(maxsize=16384)
def result_class(key: str, slot: str) -> str:
    """The class of a written slot."""
    name, kind = base(key), _kind(slot)
    if name not in OPCODES:
        return f"{key} {slot}"
    if name in ("IMAD", "UIMAD") and kind == "r":
        for wide in ("WIDE", "HI"):
            if wide in key.split("."):
                return f"{name}.{wide}{'+1' if slot.endswith('+1') else ''}"
    if OPCODES[name].queue in _SINGLE:
        return f"{key} {slot}" if OPCODES[name].queue != Queue.TENSOR else key
    return f"{_unit(key)} {kind}"


@lru_cache(maxsize=16384)
def operand_class(key: str, slot: str) -> str:
    """The class of a read slot."""
    name, kind = base(key), _kind(slot)
    if name not in OPCODES:
        return f"{key} {slot}"
    queue = OPCODES[name].queue
    if slot == "G":
        return f"{key} G" if queue == Queue.CONTROL else "G"
    if name == "IMAD" and slot in ("3", "3+1") and "WIDE" in key.split("."):
        return f"IMAD.WIDE {slot}"  # the addend is needed late
    if name == "LEA" and slot == "3":
        return "LEA 3"  # the high half of the shifted operand
    if queue in _SINGLE:
        return f"{key} {slot}"
    unit = "uniform" if name in ("ULDC", "UMOV") else _unit(key)
    return f"{unit} {kind}"


def unit_of(name: str) -> str:
    """The unit that a class of results or operands belongs to."""
    first = name.split()[0]
    unit = OPCODES[base(first)].queue if base(first) in OPCODES else first
    return Queue.UNIFORM if unit == "uniform-load" else unit


def pair_class(key: tuple[str, str, str, str, str]) -> tuple[str, str, str]:
    """The class of a row: kind, class of the first slot, class of the second."""
    kind, first, first_slot, second, second_slot = key
    if kind == "issue":
        return kind, first, second
    before = operand_class if kind == "war" else result_class
    after = operand_class if kind == "raw" else result_class
    return kind, before(first, first_slot), after(second, second_slot)
