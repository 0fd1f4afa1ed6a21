"""Measured minimum distances: what a GPU did when pairs were brought closer, beside what ptxas emits.

The file is made from the result of ``benchmarks/latencies.py`` by `adopt` and lies beside the mined table. A
row says: at this distance and above no trial went wrong, and at that smaller one some did. It holds for the
exact pair of keys and slots only; no class is built of it. Pairs in which no fault was seen are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core.errors import LatencyTableError

from . import files
from .files import Key

FORMAT, VERSION = "sassafras-measured-latency", 1
_COLUMNS = "kind, producer, producer slot, consumer, consumer slot, cycles, trials, fault, wrong"
#: fewer trials (of whole warps) are no measurement
LEAST_TRIALS = 500


@dataclass(frozen=True, slots=True)
class Measured:
    """One pair.

    Attributes:
        cycles: the smallest distance at and above which no trial went wrong.
        trials: executions by a warp at that distance, in which a fault would have shown.
        fault: the largest distance at which results were wrong. Mostly `cycles` - 1; less where the hardware
            held the pair apart in between, so that those distances were never realised.
        wrong: lanes that were wrong there.
    """

    cycles: int
    trials: int
    fault: int
    wrong: int


@dataclass(frozen=True)
class MeasuredTable:
    """All measured pairs of an architecture, and what they were measured on."""

    arch: str
    rows: Mapping[Key, Measured]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: Path | str) -> None:
        """Write it, see `files`."""
        head = {"format": FORMAT, "version": VERSION, "arch": self.arch, "columns": _COLUMNS.split(", ")}
        rows = ([*key, *astuple(seen)] for key, seen in sorted(self.rows.items()))
        files.write(Path(path), {**head, "provenance": dict(self.provenance)}, {"rows": rows})

    @classmethod
    def load(cls, name: str = "sm_90", path: Path | str | None = None) -> MeasuredTable:
        """Read a table, from the package unless `path` is given.

        Raises:
            LatencyTableError: there is none, it is malformed, or it is for another architecture.
        """
        file = Path(path) if path is not None else place(name)
        if not file.exists():
            raise LatencyTableError(
                "no measured latencies",
                where=name if path is None else str(path),
                hint="benchmarks/latencies.py measures them, sassafras latency adopt makes the table",
            )
        data = files.read(file, FORMAT, VERSION, name)
        return cls(name, files.rows(data, "rows", "sssssiiii", file.name, _measured), data["provenance"])


def place(name: str) -> Path:
    """Where the package keeps an architecture's measured latencies."""
    return Path(__file__).parent / "data" / "measured" / f"{name}.json.xz"


def _measured(kind: str, cycles: int, trials: int, fault: int, wrong: int) -> Measured:
    if kind not in ("raw", "war", "waw") or not 1 <= fault < cycles or trials < LEAST_TRIALS or wrong < 0:
        raise ValueError
    return Measured(cycles, trials, fault, wrong)


def adopt(result: Mapping[str, Any], name: str = "sm_90") -> MeasuredTable:
    """The table of a result of ``benchmarks/latencies.py``.

    Args:
        result: the content of ``latencies.json``.
        name: the table's name.

    Raises:
        LatencyTableError: it is no such result, was not run on a GPU, missed a pair that is known to be too
            close, or holds no measured pair.
    """
    where = "latencies.json"
    summary, environment, rows = (result.get(k) for k in ("summary", "environment", "rows"))
    if result.get("benchmark") != "latencies" or not isinstance(summary, dict) or not isinstance(rows, list):
        raise LatencyTableError("not a result of benchmarks/latencies.py", where=where)
    if not isinstance(environment, dict) or environment.get("gpu") in (None, "pretended"):
        raise LatencyTableError("was not measured on a GPU", where=where, hint="run it without --pretend")
    if not summary.get("sound"):
        raise LatencyTableError(
            "the measurement did not see faults that are there for certain",
            where=where,
            hint=f"known_too_short_missed: {summary.get('known_too_short_missed')}",
        )
    found: dict[Key, Measured] = {}
    for row in rows:
        if row["status"] != "measured" or row["trials"] < LEAST_TRIALS:
            continue
        key: Key = (row["kind"], row["producer"], row["producer_slot"], row["consumer"], row["consumer_slot"])
        found[key] = Measured(row["cycles"], row["trials"], row["fault"], row["wrong"])
    if not found:
        raise LatencyTableError("no pair was measured", where=where, hint="run it for longer")
    provenance = {
        "how": "measured",
        "command": result.get("command"),
        "date": result.get("date"),
        "commit": result.get("commit"),
        "environment": environment,
        "pairs": len(rows),
        "measured": len(found),
        "least_trials": min(m.trials for m in found.values()),
    }
    return MeasuredTable(name, found, provenance)
