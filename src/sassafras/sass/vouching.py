"""Who vouches for whom: where a later operation's scoreboard says that an earlier one is done, too.

Within a queue results return in order, or operands are read in order, and ptxas leans on that: it sets a
scoreboard on the last operation alone. Which operations share a queue in that sense is not documented, and
the obvious reading (all that goes to memory) is wrong: on an H200 a shared-memory load's result came back
before a global load that had been issued ahead of it had read its address. So these are pairs, each seen
in ptxas's own code as the only thing that protects a register (`docs/sass.md`, "Queues").
"""

from __future__ import annotations

#: one unit, in order: transcendentals, conversions, bit counting; and FP64 where it is of variable latency
_XU, _FP64 = "MUFU I2F F2I F2F FRND FCHK POPC FLO BREV I2I", "DADD DMUL DFMA DSETP DMNMX DMMA"
_UNITS = {name: unit for unit in (_XU, _FP64) for name in unit.split()}
#: operation -> later ones whose result says that its own is there
RESULTS = _UNITS | {
    "LDS": "LDS LDSM SHFL", "LDSM": "LDSM", "SHFL": "LDS SHFL", "S2UR": "S2UR", "MOVM": "MOVM",
}  # fmt: skip
#: operation -> later ones whose scoreboard, of either kind, says that it has read its operands
READS = _UNITS | {
    "LDG": "LDG", "LDGSTS": "LDGSTS", "LDL": "LDL", "STL": "STG STL", "LDS": "LDS SHFL STG",
    "LDSM": "LDSM STG", "SHFL": "SHFL", "STG": "LDS SHFL STG STL", "STS": "LDL LDS LDSM SHFL STG STS",
    "STSM": "LDS LDSM STSM", "MOVM": "MOVM",
}  # fmt: skip
_RESULTS = {name: frozenset(others.split()) for name, others in RESULTS.items()}
_READS = {name: frozenset(others.split()) for name, others in READS.items()}
#: operations that vouch for others, by number
VOICES = {name: n for n, name in enumerate(sorted(
    frozenset().union(*_RESULTS.values(), *_READS.values())
))}  # fmt: skip


def vouches(later: str, earlier: str, result: bool) -> bool:
    """Whether the opcode `later` vouches for `earlier`: for its results, or else for its reads."""
    return later in (_RESULTS if result else _READS).get(earlier, ())


def vouchers(name: str, result: bool) -> int:
    """Bit mask of the `VOICES` that vouch for an opcode's results, or for its reads."""
    return sum(1 << VOICES[other] for other in (_RESULTS if result else _READS).get(name, ()))
