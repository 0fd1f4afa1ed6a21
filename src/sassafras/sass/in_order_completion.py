"""Which operations cover which: where a later operation's scoreboard says that an earlier one is done, too.

Within a queue results return in order, or operands are read in order, and ptxas leans on that: it sets a
scoreboard on the last operation alone. Which operations share a queue in that sense is not documented, and
the obvious reading (all that goes to memory, all of FP64) is wrong: on an H200 a shared-memory load's
result came back before a global load that had been issued ahead of it had read its address, and DMMA's comes
after those of operations behind it. So these are pairs, each seen in ptxas's own code as the only
thing that protects a register (`docs/concepts/hopper-schedules.md`, "Queues").
"""

from __future__ import annotations

_FP64 = "DADD DMUL DFMA"
#: operation -> later ones whose result says that its own is there; conversions by `unit`
RESULTS = {
    "MUFU": "MUFU MUFU64 I2F F2I F2F FRND FLO POPC BREV", "MUFU64": "MUFU MUFU64 F2I F2F FRND FLO POPC BREV",
    "I2F": "I2F F2I F2F MUFU MUFU64 FLO BREV", "F2I": "F2I I2F F2F FRND FLO POPC MUFU MUFU64",
    "F2F": "F2F F2I I2F FRND FLO POPC BREV MUFU MUFU64", "FRND": "FRND F2I F2F FLO BREV MUFU",
    "FLO": "FLO F2F POPC BREV MUFU", "POPC": "POPC FLO F2I F2F MUFU", "BREV": "FLO F2F MUFU",
    "F2F64": "F2F64 F2I64 FRND64 I2F64", "F2I64": "F2I64 F2F64 I2F64",
    "I2F64": "I2F64 F2F64 F2I64 FRND64", "FRND64": "FRND64 F2F64 I2F64",
    "DADD": _FP64, "DMUL": _FP64, "DFMA": _FP64,
    "LDS": "LDS LDSM SHFL", "LDSM": "LDSM", "SHFL": "LDS SHFL", "S2UR": "S2UR", "MOVM": "MOVM",
    "ATOMS": "ATOMS",
}  # fmt: skip
#: operation -> later ones whose scoreboard, of either kind, says that it has read its operands
READS = {
    "MUFU": "MUFU I2F F2I FLO", "MUFU64": "MUFU BREV", "I2F": "I2F F2I MUFU", "F2I": "F2I MUFU", "F2F": "F2F",
    "FLO": "BREV", "POPC": "MUFU MUFU64", "BREV": "FLO MUFU64", "F2F64": "F2F64", "I2F64": "I2F64 F2I64",
    "DADD": _FP64, "DMUL": _FP64, "DFMA": "DADD DMUL", "DMMA": "DMMA",
    "LDG": "LDG", "LDGSTS": "LDGSTS", "LDL": "LDL", "STL": "STG STL", "LDS": "LDS SHFL STG",
    "LDSM": "LDSM STG", "SHFL": "SHFL", "STG": "LDS SHFL STG STL", "STS": "LDL LDS LDSM SHFL STG STS",
    "STSM": "LDS LDSM STSM", "MOVM": "MOVM", "ATOMS": "ATOMS LDS",
}  # fmt: skip
_RESULTS = {name: frozenset(others.split()) for name, others in RESULTS.items()}
_READS = {name: frozenset(others.split()) for name, others in READS.items()}
#: operations that cover others, by number
COVERING = {name: n for n, name in enumerate(sorted(frozenset().union(*_RESULTS.values(), *_READS.values())))}


def unit(opcode: str) -> str:
    """The name of an operation in these tables, from its whole opcode.

    >>> unit("F2I.S64.TRUNC"), unit("I2F.U32.RP"), unit("MUFU.RSQ64H"), unit("LDS.128")
    ('F2I64', 'I2F', 'MUFU64', 'LDS')
    """
    name, *rest = opcode.split(".")
    if name == "MUFU":
        return "MUFU64" if rest and rest[0] in ("RCP64H", "RSQ64H") else name
    if name in ("F2F", "F2I", "I2F", "FRND") and any(part in ("F64", "S64", "U64") for part in rest):
        return f"{name}64"
    return name


def covers(later: str, earlier: str, result: bool) -> bool:
    """Whether the operation `later` covers `earlier` (by `unit`): for its results, or for its reads."""
    return later in (_RESULTS if result else _READS).get(earlier, ())


def covered_by(name: str, result: bool) -> int:
    """Bit mask of the `COVERING` that cover an operation's results, or for its reads; `name` by `unit`."""
    return sum(1 << COVERING[other] for other in (_RESULTS if result else _READS).get(name, ()))
