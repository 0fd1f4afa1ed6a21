"""Least distances in cycles as an H200 has them: the pairs of ``latencies-pairs.json.xz``, nothing mined.

`benchmarks/latencies.py` brought 20,776 pairs together until their result went wrong. A pair that was
measured has its smallest right distance; one that never went wrong needs 1. For a pair that was not measured
the largest distance among its like that did go wrong is taken, or the compiler's own distance in the
kernel at hand if that is less. Where none of its like went wrong, a result is there when it is there for
every reader that was asked, if those were many and the reader's opcode among them in another form; and for
any reader behind the longest distance that a measured pair of the table needs.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

#: cycles behind which everything of fixed latency is there
HORIZON = 64
#: distances in unmodified kernels of our own corpus, as `mutants_run.py CORPUS --learn` writes them
_SEEN = Path(__file__).with_name("seen.json")
_PAIRS = Path(__file__).resolve().parents[1] / "results" / "latencies-pairs.json.xz"
_UNITS = {
    "alu": "FMNMX FSEL FSET FSETP IABS LOP3 SHF SHL SHR PRMT SEL SGXT IADD3 LEA ISETP PLOP3 MOV MOV32I "
    "LOP32I BMSK "
    "VIMNMX VIADDMNMX IMNMX I2FP F2FP I2IP F2IP VABSDIFF VABSDIFF4 PSETP",
    "fma": "FADD FFMA FMUL FADD32I FFMA32I FMUL32I IMAD IDP IDP4A VIADD FSWZADD",
    "half": "HADD2 HFMA2 HMUL2 HMNMX2 HSET2 HSETP2 HADD2_32I HFMA2_32I HMUL2_32I",
    "uniform": "UIADD3 UIMAD ULOP3 USHF ULEA USEL UPRMT UISETP UPLOP3 UBMSK UBREV UFLO UPOPC USGXT UP2UR "
    "UPSETP "
    "VOTEU",
    "uload": "ULDC UMOV S2UR",
    "double": "DADD DMUL DFMA DSETP DMNMX",
    "xu": "MUFU I2F F2I F2F FRND POPC FLO BREV FCHK",
    "memory": "LDG LD LDL LDS LDSM STG ST STL STS STSM ATOM ATOMG ATOMS RED REDG LDGSTS SHFL",
    "control": "BRA EXIT BAR BSYNC BSSY RET CALL BRX WARPSYNC",
    "tensor": "HMMA IMMA BMMA DMMA",
}
_UNIT = {name: unit for unit, names in _UNITS.items() for name in names.split()}

Side = tuple[str, str]
"""(normal name of the opcode, slot)"""
Seen = dict[tuple[str, Side, Side], tuple[int, int]]
"""(kind, first, second) -> (least cycles, kernels in which it was that)"""
#: kernels that have to show a distance before it is believed of another operand of the same kind
WELL_MET = 4
#: readers that have to be asked before a result is believed to be there for all
WELL_ASKED = 16
#: units of the uniform datapath
_UNIFORM = ("uniform", "uload")
#: opcodes whose plain operands are read at different times
_LATE = frozenset("IMAD UIMAD LEA ULEA HMMA IMMA HFMA2 IADD3".split())  # noqa: SIM905


@lru_cache(maxsize=4096)
def _kind(slot: str) -> str:
    """``G`` guard, ``p`` predicate, ``a``, ``u`` address, ``d`` descriptor, ``r`` register."""
    if slot == "G":
        return "G"
    found = re.match(r"\d+([paud])?", slot)
    return (found and found[1]) or "r"


def _base(side: Side) -> str:
    return side[0].partition(".")[0]


class Latencies:
    """Least distances by pair of opcode and slot."""

    def __init__(self, path: Path = _PAIRS) -> None:
        self._rows: dict[tuple[str, Side, Side], int] = {}
        #: longest and shortest way of a result to a register operand, by opcode
        self._slow: dict[str, int] = {}
        self._quick: dict[str, int] = {}
        #: opcodes that were asked as readers of a result in a register operand, by the producer's opcode
        self._readers: dict[str, set[str]] = {}
        #: what any result needs towards any operand
        self._longest = 1
        self._like: dict[tuple[str, str, str, str, str], int] = {}
        names: dict[str, dict[frozenset[str], str]] = {}
        for row in json.loads(lzma.decompress(path.read_bytes()))["rows"]:
            for which in ("producer", "consumer"):
                base, *mods = row[which].split(".")
                names.setdefault(base, {})[frozenset(mods)] = row[which]
            if row["status"] not in ("measured", "never failed"):
                continue
            # where the hardware itself holds a pair apart, distances between `fault` and `cycles` were asked
            # for and right, but never realised
            cycles = int(row["fault"]) + 1 if row["status"] == "measured" else 1
            first, second = (row["producer"], row["producer_slot"]), (row["consumer"], row["consumer_slot"])
            self._rows[row["kind"], first, second] = cycles
            if row["kind"] == "raw" and _kind(second[1]) == "r":
                self._readers.setdefault(_base(first), set()).add(_base(second))
            if row["status"] != "measured":
                continue  # of itself alone: that it never went wrong tells nothing of another pair
            if row["kind"] == "raw":
                self._longest = max(self._longest, cycles)
            if row["kind"] == "raw" and cycles > 1 and _kind(second[1]) == "r":
                base = _base(first)
                self._slow[base] = max(cycles, self._slow.get(base, 0))
                self._quick[base] = min(cycles, self._quick.get(base, HORIZON))
            for a in self._levels(first):
                for b in self._levels(second):
                    key = (row["kind"], *a, *b)
                    self._like[key] = max(cycles, self._like.get(key, 0))
        self._names = {
            base: sorted(found.items(), key=lambda item: -len(item[0])) for base, found in names.items()
        }
        self._asked: dict[tuple[str, Side, Side], tuple[int, bool]] = {}
        self._seen: Seen = {}
        self._near: Seen = {}
        if _SEEN.exists():
            self.learn(unpacked(json.loads(_SEEN.read_text())["rows"]))

    def queued(self, kind: str, later: str, earlier: str) -> bool:
        """Whether unmodified kernels rely on the order of a queue between two opcodes (`Kernel.seen`)."""
        return self._seen.get((kind, (later, ""), (earlier, "")), (0, 0))[1] >= 2

    def measured(self, key: tuple[str, Side, Side]) -> bool:
        """Whether this very pair was measured."""
        return key in self._rows

    def learn(self, seen: Seen) -> None:
        """Take distances that the compiler left elsewhere, for pairs that were not measured."""
        for key, (cycles, kernels) in seen.items():
            _pool(self._seen, key, cycles, kernels)
            if not key[0].startswith("queued"):
                for like in self._alike(key):
                    _pool(self._near, like, cycles, kernels)
        self._asked.clear()

    @staticmethod
    @lru_cache(maxsize=16384)
    def _like_slots(side: Side) -> list[Side | None]:
        """What an operand is taken for where its own pair was never seen: the same opcode's operand of this
        kind; then any operand of its unit."""
        base, kind = side[0].partition(".")[0], _kind(side[1])
        half = side[1].partition("+")[2]
        own = kind == "r" and base in _LATE
        unit = _UNIT.get(base, base)
        plain = unit in (*_UNIFORM, "alu", "fma") and base not in ("IMAD", "UIMAD")
        return [(base, side[1] if own else f"{kind}+{half}"), (unit, f"{kind}+{half}") if plain else None]

    def _alike(self, key: tuple[str, Side, Side]) -> list[tuple[str, Side, Side]]:
        """The pairs that a pair is taken for: of opcodes, and of units where one is the uniform datapath."""
        kind, first, second = key
        both = list(zip(self._like_slots(first), self._like_slots(second), strict=True))
        found = [(kind, both[0][0], both[0][1])]
        a, b = both[1]
        if a is not None and b is not None and (a[0] in _UNIFORM or b[0] in _UNIFORM):
            found.append((kind, a, b))
        return found  # type: ignore[return-value]

    @staticmethod
    @lru_cache(maxsize=16384)
    def _levels(side: Side) -> list[tuple[str, str]]:
        base, kind = side[0].partition(".")[0], _kind(side[1])
        return [(base, kind), (_UNIT.get(base, base), kind)]

    @lru_cache(maxsize=4096)  # noqa: B019 (one object a process)
    def name(self, base: str, mods: tuple[str, ...]) -> str:
        """The opcode as the file names it: with most of its modifiers."""
        for found, text in self._names.get(base, ()):
            if found <= set(mods):
                return text
        return base

    def need(self, kind: str, first: Side, second: Side) -> tuple[int, bool]:
        """(least cycles, whether this very pair was measured)."""
        key = (kind, first, second)
        if key not in self._asked:
            self._asked[key] = self._need(key)
        return self._asked[key]

    def _need(self, key: tuple[str, Side, Side]) -> tuple[int, bool]:
        kind, first, second = key
        if key in self._rows:
            return self._rows[key], True
        (a, unit_a), (b, unit_b) = self._levels(first), self._levels(second)
        most = self._seen.get(key, (HORIZON, 0))[0]
        for like in self._alike(key):
            near, kernels = self._near.get(like, (HORIZON, 0))
            most = min(most, near) if kernels >= WELL_MET else most
        for one, two in ((a, b), (unit_a, b), (a, unit_b), (unit_a, unit_b)):
            found = self._like.get((kind, *one, *two))
            if found is not None:
                return min(found, most), False
        asked = self._readers.get(_base(first), set())
        if kind == "raw" and len(asked) >= WELL_ASKED:
            same = _kind(second[1]) == "r" and _base(second) in asked
            most = min(most, self._slow.get(_base(first), 1) if same else self._longest)
        if kind == "waw":  # the second result has to land behind the first one
            slow, quick = self._slow.get(_base(first)), self._quick.get(_base(second), 1)
            return (most if slow is None else min(most, max(1, slow - quick + 1))), False
        return (1 if kind == "war" else most), False


@lru_cache(maxsize=1)
def latencies() -> Latencies:
    """The table, read once a process."""
    return Latencies()


def _pool(into: Seen, key: tuple[str, Side, Side], cycles: int, kernels: int) -> None:
    """Keep the least distance, and how many kernels have it."""
    least, met = into.get(key, (HORIZON, 0))
    if cycles < least:
        into[key] = (cycles, kernels)
    elif cycles == least:
        into[key] = (least, met + kernels)


def pooled(kernels: Iterable[dict[tuple[str, Side, Side], int]]) -> Seen:
    """The least distances of several kernels (`Kernel.seen`)."""
    found: Seen = {}
    for kernel in kernels:
        for key, cycles in kernel.items():
            _pool(found, key, cycles, 1)
    return found


def packed(seen: Seen) -> list[list[Any]]:
    """Rows for a JSON file, sorted."""
    return [[kind, *first, *second, *value] for (kind, first, second), value in sorted(seen.items())]


def unpacked(rows: list[list[Any]]) -> Seen:
    """The inverse of `packed`."""
    return {(k, (a, s), (b, t)): (n, kernels) for k, a, s, b, t, n, kernels in rows}
