"""The table of smallest issue distances of one architecture, and its file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from sassafras.core.errors import LatencyTableError

from ..opcodes import OPCODES, base
from . import files
from .classes import pair_class, result_class, unit_of
from .files import Key

FORMAT, VERSION = "sassafras-latency", 2
KINDS = ("raw", "waw", "war", "issue")
#: a class's floor is trusted with so many samples in the class, and when met in so many kernels
THRESHOLDS = {"samples": 20, "kernels": 6}
ClassKey = tuple[str, str, str]
_COLUMNS = "kind, producer, producer slot, consumer, consumer slot, cycles, samples, attained, kernels, where"
_CLASS_COLUMNS = "kind, first, second, floor, samples, kernels, highest"


@dataclass(frozen=True, slots=True)
class Distance:
    """The smallest number of cycles that ptxas leaves between the issue of two instructions.

    Attributes:
        cycles: the minimum over all samples.
        samples: how many pairs were seen.
        attained: how many of them had the minimum.
        kernels: in how many kernels (by name) the minimum was met.
        where: the first pair seen at the minimum: ``cubin:kernel+offset`` of the consumer.
    """

    cycles: int
    samples: int
    attained: int
    kernels: int
    where: str


@dataclass(frozen=True, slots=True)
class Support:
    """What is known of all rows of a class (`classes.pair_class`).

    Attributes:
        floor: the smallest of their minima.
        samples: how many pairs were seen.
        kernels: in how many kernels (by name) the floor was met.
        highest: the largest minimum among the rows that met theirs in two kernels or more; 0 if none did.
    """

    floor: int
    samples: int
    kernels: int
    highest: int


class LatencyTable:
    """Smallest issue distances by kind, opcode keys and slots.

    Every distance that was seen is safe, because ptxas emitted it; a minimum of few samples may be larger
    than need be. So there are two questions. `distance` answers what ptxas never goes below: a row is
    trusted for that when its minimum is the floor of its class (`classes.pair_class`) and that floor was
    met in enough different kernels. `bound` answers what is certainly enough. A checker requires
    ``distance`` where it is known, and where it is not, the original distance or ``bound``, whichever is
    smaller: `needed`.

    Attributes:
        arch: the table's name: ``sm_80``, ``sm_86``, ``sm_89`` or ``sm_90`` (which serves sm_90a too).
        provenance: what it was mined from and with which tools.
        rows: everything that was seen, however rarely.
        classes: how well the classes of the rows are supported.
    """

    def __init__(
        self,
        arch: str,
        rows: Mapping[Key, Distance] | None = None,
        classes: Mapping[ClassKey, Support] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.arch = arch
        self.rows: dict[Key, Distance] = dict(rows or {})
        self.classes: dict[ClassKey, Support] = dict(classes or {})
        self.provenance: dict[str, Any] = dict(provenance or {})

    def __len__(self) -> int:
        return len(self.rows)

    def _supported(self, key: Key) -> Support | None:
        found = self.classes.get(pair_class(key))
        return found if found is not None and self._enough(found) else None

    def _enough(self, found: Support) -> bool:
        return found.samples >= THRESHOLDS["samples"] and found.kernels >= THRESHOLDS["kernels"]

    def distance(
        self, kind: str, producer: str, producer_slot: str, consumer: str, consumer_slot: str
    ) -> Distance | None:
        """The distance that ptxas never goes below, or None when it is unknown.

        Args:
            kind: ``raw``, ``waw``, ``war`` or ``issue``. For ``war`` the producer is the reader
                that comes first and the consumer is the writer that comes after it.
            producer, consumer: keys (`opcode_key`); for ``issue`` also the classes of `spacing`.
            producer_slot, consumer_slot: slots (`slots`); ``""`` for ``issue``.

        Returns:
            The distance in cycles, or None: callers then keep the original distance, or `bound`.
        """
        key = (kind, producer, producer_slot, consumer, consumer_slot)
        seen = self.rows.get(key)
        if seen is None or seen.cycles <= 1:
            return seen  # there is nothing below one cycle
        known = self._supported(key)
        return seen if known is not None and seen.cycles == known.floor else None

    def bound(
        self, kind: str, producer: str, producer_slot: str, consumer: str, consumer_slot: str
    ) -> int | None:
        """Cycles that are enough, though perhaps not needed; None when nothing is known.

        The row's own minimum when it was met in two kernels or its class is well supported; for a pair that
        was never seen, the largest minimum in its class; for a ``waw`` pair of fixed latencies also the time
        at which the first result is there for every kind of reader. Arguments as for `distance`.
        """
        key = (kind, producer, producer_slot, consumer, consumer_slot)
        seen, known = self.rows.get(key), self._supported(key)
        if seen is not None and (known is not None or seen.kernels >= 2):
            return seen.cycles
        if seen is None and known is not None and known.highest and kind != "issue":
            return known.highest
        second = OPCODES.get(base(consumer))
        if kind == "waw" and second is not None and not second.variable:
            return self._landed.get(result_class(producer, producer_slot))
        return None

    def floor(
        self, kind: str, producer: str, producer_slot: str, consumer: str, consumer_slot: str
    ) -> int | None:
        """The distance below which nothing of the pair's class was ever seen, None for a class that is not
        well supported. Less than the pair needs, perhaps; never more. Arguments as for `distance`."""
        known = self._supported((kind, producer, producer_slot, consumer, consumer_slot))
        return None if known is None else known.floor

    @cached_property
    def _landed(self) -> dict[str, int]:
        """Cycles after which a class's results are there for every reader that was seen.

        A reader in the producer's own unit takes a result before it is written (UIMAD.WIDE's after 4 cycles,
        when a ULDC over it is lost): a class that no other unit is known to read is not here.
        """
        found: dict[str, int] = {}
        outside: set[str] = set()
        for (kind, producer, consumer), known in self.classes.items():
            if kind == "raw" and self._enough(known):
                found[producer] = max(known.floor, found.get(producer, 0))
                if unit_of(consumer) != unit_of(producer):
                    outside.add(producer)
        return {producer: found[producer] for producer in outside}

    def needed(
        self, kind: str, producer: str, producer_slot: str, consumer: str, consumer_slot: str, original: int
    ) -> int:
        """Cycles that a pair needs, given its distance in code that ptxas emitted.

        `distance` where it is known, else the smaller one of `original` and `bound`. Arguments as for
        `distance`.
        """
        key = (kind, producer, producer_slot, consumer, consumer_slot)
        known = self.distance(*key)
        if known is not None:
            return known.cycles
        enough = self.bound(*key)
        return original if enough is None else min(original, enough)

    def own_stall(self, opcode: str) -> Distance | None:
        """The smallest stall count that ptxas gives an opcode key itself (EXIT 5, DEPBAR 4, ...)."""
        return self.distance("issue", opcode, "", "*", "")

    def spacing(self, first: str, second: str) -> Distance | None:
        """The smallest issue distance between two classes of instructions, whatever registers they use.

        Args:
            first, second: an opcode key (``"BAR.SYNC"``), ``"@"`` and a queue (``"@lsu"``), ``"@memory"``,
                ``"@setter"`` (sets a scoreboard) or ``"@waiter"`` (waits for that one).
        """
        return self.distance("issue", first, "", second, "")

    def save(self, path: Path | str) -> None:
        """Write it, see `files`.

        Raises:
            LatencyTableError: the file cannot be written.
        """
        head = {
            "format": FORMAT,
            "version": VERSION,
            "arch": self.arch,
            "thresholds": THRESHOLDS,
            "columns": _COLUMNS.split(", "),
            "class columns": _CLASS_COLUMNS.split(", "),
            "provenance": self.provenance,
        }
        rows = ([*key, *astuple(seen)] for key, seen in sorted(self.rows.items()))
        classes = ([*name, *astuple(known)] for name, known in sorted(self.classes.items()))
        files.write(Path(path), head, {"classes": classes, "rows": rows})

    @classmethod
    def load(cls, name: str = "sm_90", path: Path | str | None = None) -> LatencyTable:
        """Read a table.

        Args:
            name: the table's name (`Arch.table`), read from the package unless `path` is given.
            path: another file, which must be for `name`.

        Raises:
            LatencyTableError: there is no such table, it is malformed, or it is for another architecture.
        """
        file = Path(path) if path is not None else Path(__file__).parent / "data" / f"{name}.json"
        try:
            now = file.stat()
        except OSError:
            raise LatencyTableError(
                "no latency table", where=name if path is None else str(path), hint=_available()
            ) from None
        read = _read(file, name, now.st_mtime_ns, now.st_size)
        return cls(name, read.rows, read.classes, read.provenance)


# every validator and every space asks for its table, and copies what is found here
@lru_cache(maxsize=8)
def _read(file: Path, name: str, changed: int, size: int) -> LatencyTable:
    """The mined rows of a file, as it was at `changed`. Read only."""
    data = files.read(file, FORMAT, VERSION, name)
    if data.get("thresholds") != THRESHOLDS:
        raise LatencyTableError(f"other thresholds than {THRESHOLDS}", where=file.name)
    return LatencyTable(
        name,
        files.rows(data, "rows", "sssssiiiis", file.name, _distance),
        files.rows(data, "classes", "sssiiii", file.name, _support),
        data["provenance"],
    )


def _distance(kind: str, cycles: int, samples: int, attained: int, kernels: int, where: str) -> Distance:
    if kind not in KINDS or cycles < 0 or not 1 <= kernels <= attained <= samples:
        raise ValueError
    return Distance(cycles, samples, attained, kernels, where)


def _support(kind: str, floor: int, samples: int, kernels: int, highest: int) -> Support:
    if kind not in KINDS or floor < 0 or samples < 1 or kernels < 1:
        raise ValueError
    return Support(floor, samples, kernels, highest)


def _available() -> str:
    names: Iterable[Path] = sorted((Path(__file__).parent / "data").glob("*.json"))
    return "tables: " + (", ".join(p.stem for p in names) or "none")
