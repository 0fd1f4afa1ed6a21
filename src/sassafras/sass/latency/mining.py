"""Mining: the smallest issue distances that ptxas emitted, from a corpus of cubins."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sassafras.core.errors import LatencyTableError, SassafrasError

from .. import archs
from ..instruction import Instruction
from ..opcodes import Queue
from ..program import Function, Program
from .classes import pair_class
from .files import Key
from .flow import Flow
from .keys import opcode_key
from .spacing import spacing
from .table import ClassKey, Distance, LatencyTable, Support

#: write-after-read and write-after-write distances of interest are below this
_SHORT = 16
#: here FP64 has fixed latencies: no FP64 instruction of the corpus sets a write barrier
_FIXED_FP64 = frozenset(["sm_90"])


def mine(sources: Iterable[Path | str | Program] | Path | str, arch: str) -> LatencyTable:
    """Mine a table.

    Args:
        sources: cubins, folders of cubins (searched recursively), or parsed programs. Those for other
            architectures are left out.
        arch: ``sm_90``, ``sm_90a``, ... or a table's name.

    Returns:
        The table; what was left out, and why, is in its provenance.

    Raises:
        LatencyTableError: nothing could be mined.
        UnsupportedArch: the architecture is not known.
    """
    name = archs.get(arch).table
    if not name:
        raise LatencyTableError(f"{arch} has no latency table", hint="it is parsed only")
    miner = Miner(name)
    for label, source in _programs(sources):
        miner.add(label, source)
    return miner.table()


class DistanceSample(NamedTuple):
    """One pair: the key of its row, its distance in cycles, its kernel's name, and where it is."""

    key: Key
    cycles: int
    kernel: str
    where: str


@dataclass(slots=True)
class _Row:
    """A row in the making."""

    cycles: int
    samples: int = 0
    attained: int = 0
    kernels: set[str] = field(default_factory=set)
    where: str = ""


class Miner:
    """Collects distances from programs; `table` gives the result so far.

    Args:
        name: the table's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows: dict[Key, _Row] = {}
        self._skipped: dict[str, str] = {}
        self._tools: set[str] = set()
        self._cubins = self._functions = self._instructions = 0

    def add(self, label: str, source: Path | Program) -> None:
        """Mine one cubin, unless it is for another architecture or cannot be read."""
        if isinstance(source, Path):
            try:
                source = Program.parse(source.read_bytes())
            except (OSError, SassafrasError) as error:
                self._skipped[label] = str(error)
                return
        if source.arch not in archs.ARCHS or archs.ARCHS[source.arch].table != self.name:
            return
        self._cubins += 1
        self._tools.add(f"nvdisasm {source.nvdisasm}")
        for function in source.functions.values():
            self._functions += 1
            self._instructions += len(function)
            where = label if len(source.functions) == 1 else f"{label}:{function.name[:48]}"
            for sample in self.samples(function, where):
                self.count(sample)

    def samples(self, function: Function, where: str) -> Iterator[DistanceSample]:
        """Every pair of one function that tells of a latency, at its shortest path.

        Args:
            function: a kernel.
            where: its name in the table.
        """
        flow = Flow(function)
        found: dict[tuple[str, int, str, int, str], int] = {}

        def keep(kind: str, first: int, slot: str, second: int, other: str, cycles: int) -> None:
            if not self._evidence(kind, flow.instructions[first], cycles):
                return
            pair = (kind, first, slot, second, other)
            if found.get(pair, cycles + 1) > cycles:
                found[pair] = cycles

        flow.walk(keep)
        code = function.instructions
        for (kind, first, slot, second, other), cycles in found.items():
            key = (kind, opcode_key(code[first].opcode), slot, opcode_key(code[second].opcode), other)
            yield DistanceSample(key, cycles, function.name, f"{where}+{code[second].offset:#x}")
        for key, cycles, at in spacing(function, flow.reachable):
            yield DistanceSample(key, cycles, function.name, f"{where}+{code[at].offset:#x}")

    def _evidence(self, kind: str, first: Instruction, cycles: int) -> bool:
        """Whether a pair's distance is kept by stall counts, so that it tells of a latency."""
        if kind == "war":
            return cycles < _SHORT
        if first.op.queue == Queue.WGMMA or first.control.write_barrier is not None:
            return False  # asynchronous, or waited for
        if first.op.variable and not (first.op.queue == Queue.FP64 and self.name in _FIXED_FP64):
            return False  # leans on a later operation of its queue
        return kind == "raw" or cycles < 3 * _SHORT

    def count(self, sample: DistanceSample) -> None:
        """Take in one pair."""
        row = self._rows.get(sample.key)
        if row is None:
            row = self._rows[sample.key] = _Row(sample.cycles)
        row.samples += 1
        if sample.cycles > row.cycles:
            return
        if sample.cycles < row.cycles or not row.attained:
            row.cycles, row.attained, row.where = sample.cycles, 0, sample.where
            row.kernels.clear()
        row.attained += 1
        row.kernels.add(sample.kernel)

    def table(self) -> LatencyTable:
        """The table of everything added.

        Raises:
            LatencyTableError: nothing was.
        """
        if not self._rows:
            first = next(iter(self._skipped.items()), None)
            raise LatencyTableError(
                f"no cubin for {self.name} could be mined",
                where=first[0] if first else None,
                hint=first[1] if first else "give cubins, or folders that hold some",
            )
        provenance = {
            "command": f"sassafras latency mine CORPUS --arch {self.name}",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "tools": sorted(self._tools),
            "cubins": self._cubins,
            "functions": self._functions,
            "instructions": self._instructions,
            "skipped": len(self._skipped),
        }
        rows = {
            key: Distance(r.cycles, r.samples, r.attained, len(r.kernels), r.where)
            for key, r in self._rows.items()
        }
        return LatencyTable(self.name, rows, self._classes(), provenance)

    def _classes(self) -> dict[ClassKey, Support]:
        pooled: dict[ClassKey, list[_Row]] = {}
        for key, row in self._rows.items():
            pooled.setdefault(pair_class(key), []).append(row)
        found = {}
        for name, members in pooled.items():
            floor = min(r.cycles for r in members)
            met = {kernel for r in members if r.cycles == floor for kernel in r.kernels}
            highest = max((r.cycles for r in members if len(r.kernels) >= 2), default=0)
            found[name] = Support(floor, sum(r.samples for r in members), len(met), highest)
        return found


def _programs(
    sources: Iterable[Path | str | Program] | Path | str,
) -> Iterator[tuple[str, Path | Program]]:
    for source in [sources] if isinstance(sources, (str, Path)) else sources:
        if isinstance(source, Program):
            yield next(iter(source.functions), "?")[:48], source
            continue
        path = Path(source)
        if path.is_dir():
            for file in sorted(path.rglob("*.cubin")):
                yield file.stem, file
        elif path.exists():
            yield path.stem, path
        else:
            raise LatencyTableError("no such file or folder", where=str(path))
