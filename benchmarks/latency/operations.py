"""Operations of variable latency that `order` asks about: their texts in each role, their operands.

Registers are those of `order`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sassafras.sass.opcodes import base

#: of these B has windows of its own
_WINDOWS = {"R46": "R70", "R50": "R72", "R98": "R78", "R99": "R79", "R96": "R74"}
#: reads no general register late
_NO_OPERAND = frozenset(["S2R", "S2UR", "LDC"])


@dataclass(frozen=True)
class Op:
    """An operation.

    Attributes:
        name: as it is reported.
        text: with ``{d}`` for its result's first register, ``{s}`` for its operand's.
        source, poison: registers whose values the operand takes, and what overwrites it.
        width: registers of the result.
        file: of the result: ``R``, ``UR``, ``P``; ``""`` for none.
        reset, after: around every run of one without a result: what it wrote comes into R12.
    """

    name: str
    text: str
    source: tuple[str, ...] = ("R4", "R5")
    poison: tuple[str, ...] = ("R6", "R7")
    width: int = 1
    file: str = "R"
    reset: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def opcode(self) -> str:
        """Without operands."""
        return self.text.split()[0]

    @property
    def reads(self) -> bool:
        """Whether it has an operand that it reads late."""
        return "{s}" in self.text and base(self.opcode) not in _NO_OPERAND

    def at(self, role: str) -> str:
        """Its text as ``A``, ``B``, ``pressure``, or as ``B`` whose result is A's operand or result."""
        results = {
            "A": {"R": "R12", "UR": "UR8", "P": "P1"},
            "B": {"R": "R16", "UR": "UR12", "P": "P6"},
            "pressure": {"R": "R92", "UR": "UR20", "P": "P6"},
            "behind": {"R": "R88"},
            "over": {"R": "R12"},
        }[role]
        operand = {"A": "R88", "pressure": "R104"}.get(role, "R8")
        text = self.text.format(d=results.get(self.file, ""), s=operand)
        if role != "A":
            for name, other in _WINDOWS.items():
                text = text.replace(f"[{name}", f"[{other}")
        return text

    def operand(self, role: str) -> list[str]:
        """Instructions that give it its operand."""
        register = {"A": 88, "pressure": 104}.get(role, 8)
        sources = self.source if role == "A" else tuple(_WINDOWS.get(r, _high(r)) for r in self.source)
        return [f"MOV R{register + n}, {r}" for n, r in enumerate(sources)] if "{s}" in self.text else []


def _high(register: str) -> str:
    return {"R51": "R73", "R97": "R75"}.get(register, register)


def _plain(name: str, width: int = 1) -> Op:
    """A conversion or the like. What rounds gets random bits, or nearly everything would become 0."""
    random = name.startswith(("F2I", "FRND"))
    values = (("R49", "R48"), ("R4", "R5")) if random else (("R4", "R5"), ("R6", "R7"))
    return Op(name, f"{name} {{d}}, {{s}}", *values, width=width)


def _stored(name: str, text: str, load: str, width: int = 1) -> Op:
    """A store whose data is under test."""
    data = tuple(f"R{4 + n % 4}" for n in range(width)), tuple(f"R{4 + (n + 2) % 4}" for n in range(width))
    return Op(name, text, *data, width, "", (text.format(s="RZ" if width == 1 else "R76"),), (load,))


_LOCAL = ("R98",), ("R78",)
_CONFLICT = ("R99",), ("R79",)
_OWN, _GLOBAL, _FAR = (("R46",), ("R70",)), (("R50", "R51"), ("R72",)), (("R96", "R97"), ("R74",))

#: transcendentals, conversions and bit counting
_XU = json.loads(Path(__file__).with_name("cases.json").read_text())["conversions"]
XU = (
    *(_plain(name) for name in _XU["one register"]),
    *(_plain(name, 2) for name in _XU["two registers"]),
    Op("FCHK", "FCHK {d}, {s}, R49", ("R48",), ("R4",), file="P"),
)
DOUBLE = (Op("DMMA.8x8x4", "DMMA.8x8x4 {d}, {s}, R52, RZ", width=4),)
SHARED_MEMORY = (
    Op("LDS", "LDS {d}, [{s}]", *_OWN),
    Op("LDS.128", "LDS.128 {d}, [{s}]", *_OWN, width=4),
    Op("LDS conflict", "LDS {d}, [{s}]", *_CONFLICT),
    Op("LDSM.16.M88", "LDSM.16.M88 {d}, [{s}]", *_OWN),
    Op("LDSM.16.M88.4", "LDSM.16.M88.4 {d}, [{s}]", *_OWN, width=4),
    Op("SHFL.BFLY", "SHFL.BFLY PT, {d}, {s}, 0x1, 0x1f"),
    Op("SHFL.IDX", "SHFL.IDX PT, {d}, {s}, R46, 0x1f"),
    Op("MATCH.ANY", "MATCH.ANY {d}, {s}", ("R49",), ("R6",)),
    Op("MATCH.ALL", "MATCH.ALL PT, {d}, {s}", ("R49",), ("R6",)),
    Op("REDUX.SUM", "REDUX.SUM {d}, {s}", file="UR"),
    Op("REDUX.OR", "REDUX.OR {d}, {s}", file="UR"),
    Op("MOVM.16.MT88", "MOVM.16.MT88 {d}, {s}"),
    Op("ATOMS.ADD", "ATOMS.ADD {d}, [{s}], RZ", *_OWN),
    Op("ATOMS.MAX", "ATOMS.MAX {d}, [{s}], RZ", *_OWN),
    Op("ATOMS.CAS", "ATOMS.CAS {d}, [{s}], RZ, RZ", *_OWN),
)
SPECIAL = (
    Op("S2R", "S2R {d}, SR_TID.X"),
    Op("S2UR", "S2UR {d}, SR_CTAID.X", file="UR"),
    Op("LDC", "LDC {d}, c[0x0][{s}]", ("R119",), ("R119",)),
)
GLOBAL = (
    Op("LDG", "LDG.E {d}, desc[UR4][{s}.64]", *_GLOBAL),
    Op("LDG.128", "LDG.E.128 {d}, desc[UR4][{s}.64]", *_GLOBAL, width=4),
    Op("LDG scattered", "LDG.E {d}, desc[UR4][{s}.64]", *_FAR),
    Op("LDL", "LDL {d}, [{s}]", *_LOCAL),
)
STORES = (
    _stored("STS", "STS [R46], {s}", "LDS R12, [R46]"),
    _stored("STS.128", "STS.128 [R46], {s}", "LDS.128 R12, [R46]", 4),
    _stored("STS conflict", "STS [R99], {s}", "LDS R12, [R99]"),
    _stored("STSM.16.M88.4", "STSM.16.M88.4 [R46], {s}", "LDS.128 R12, [R46]", 4),
    _stored("STG", "STG.E desc[UR4][R50.64], {s}", "LDG.E R12, desc[UR4][R50.64]"),
    _stored("STG.128", "STG.E.128 desc[UR4][R50.64], {s}", "LDG.E.128 R12, desc[UR4][R50.64]", 4),
    _stored("STG scattered", "STG.E desc[UR4][R96.64], {s}", "LDG.E R12, desc[UR4][R96.64]"),
    _stored("STL", "STL [R98], {s}", "LDL R12, [R98]"),
    Op("STS address", "STS [{s}], R4", *_OWN, 1, "", ("STS [R46], RZ",), ("LDS R12, [R46]",)),
    Op(
        "STG address",
        "STG.E desc[UR4][{s}.64], R4",
        *_GLOBAL,
        1,
        "",
        ("STG.E desc[UR4][R50.64], RZ",),
        ("LDG.E R12, desc[UR4][R50.64]",),
    ),
    Op(
        "LDGSTS",
        "LDGSTS.E [R46], desc[UR4][{s}.64], !P4",
        *_GLOBAL,
        1,
        "",
        ("STS [R46], RZ",),
        ("LDS R12, [R46]",),
    ),
)
OPS = {op.name: op for op in (*XU, *DOUBLE, *SHARED_MEMORY, *SPECIAL, *GLOBAL, *STORES)}
