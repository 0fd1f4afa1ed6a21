"""A plan on disk: kernels of probes, ready for a GPU machine that has neither ptxas nor nvdisasm."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.sass.opcodes import OPCODES, Queue, base

from . import cases, frame
from .build import ARCH, MOST, NAME, Catalogue, Container, batches, container
from .frame import Probe
from .words import Book

FORMAT, VERSION = "sassafras-latency-plan", 1
#: distances that every kernel is tried at, and those for the slow units
SHORT = tuple(range(1, 16))
LONGER = (16, 17, 18, 20, 22, 24, 27, 30)
SLOW = tuple(range(16, 41))


@dataclass(frozen=True)
class PlannedBatch:
    """One kernel: its probes' rows of the table, texts and registers, where they stand, and its code."""

    number: int
    rows: list[list[str]]
    texts: list[list[str]]
    slots: list[int]
    slow: bool
    words: np.ndarray


@dataclass(frozen=True)
class Plan:
    """A folder's content."""

    container: Container
    batches: list[PlannedBatch]
    refused: list[list[str]]
    digest: str
    date: str

    @property
    def pairs(self) -> int:
        """Probes in all."""
        return sum(len(b.rows) for b in self.batches)


def texts_of(probes: Sequence[Probe]) -> set[str]:
    """Every instruction that the kernels of these probes hold, but branches."""
    code = frame.Code()
    frame.prologue(code)
    for number, values in enumerate(frame.VALUES):
        frame.section(code, number, Probe("", "raw", "R12", "NOP", "NOP", values))
    for register in ("R12", "UR8", "P1", "UP1"):
        frame.section(code, 250, Probe("", "raw", register, "NOP", "NOP"))
    found = {line.text for line in code.lines if "`" not in line.text}
    for p in probes:
        found.update((p.first, p.second, *p.before, *p.after))
    return found


def choose(
    probes: Sequence[Probe], catalogue: Catalogue
) -> tuple[list[tuple[Probe, list[str]]], list[list[str]]]:
    """One probe a row of the table (exact ones first come first), and what cannot be measured with the
    reason."""
    chosen: list[tuple[Probe, list[str]]] = []
    refused, seen = [], set()
    for probe in probes:
        if why := catalogue.why_not(probe):
            refused.append([probe.kind, probe.first, probe.second, why])
            continue
        row = catalogue.key(probe).text()
        if tuple(row) not in seen:
            seen.add(tuple(row))
            chosen.append((probe, row))
    return chosen, refused


@lru_cache(maxsize=1)
def measurable() -> tuple[Book, Catalogue, list[tuple[Probe, list[str]]], list[list[str]]]:
    """The word book, every instruction disassembled, the pairs that can be measured, those that cannot."""
    book, probes = Book(), cases.probes()
    catalogue = Catalogue(texts_of(probes), book)
    return book, catalogue, *choose(probes, catalogue)


def slow(probe: Probe) -> bool:
    """Whether 15 cycles may not be enough."""
    bases = (base(frame.opcode(text)) for text in (probe.first, probe.second))
    return any(OPCODES[name].queue in (Queue.TENSOR, Queue.FP64) for name in bases)


def _part(probe: Probe) -> tuple[int, bool]:
    """Kernels hold probes of one kind, which need 15 cycles or more."""
    return ("raw", "war", "waw").index(probe.kind), slow(probe)


def make(
    folder: Path, most: int | None = None, only: Callable[[list[str]], bool] | None = None, date: str = ""
) -> Plan:
    """Write a plan.

    Args:
        folder: where to; made if missing.
        most: at most so many pairs, spread over the whole list.
        only: rows that are wanted.
        date: for the record.

    Raises:
        SassafrasError: the frame itself cannot be assembled (the book lacks a word).
    """
    book, catalogue, chosen, refused = measurable()
    if broken := sorted(texts_of([]) & set(catalogue.refused)):
        raise SassafrasError(
            f"the frame cannot be assembled: {broken[0]}", where=catalogue.refused[broken[0]]
        )
    chosen = [c for c in chosen if only is None or only(c[1])]
    if most is not None and len(chosen) > most:
        chosen = [chosen[n * len(chosen) // most] for n in range(most)]
    if not chosen:
        raise SassafrasError("no pair is left to measure", hint="give a wider --only")
    rows = {id(p): row for p, row in chosen}
    made = []
    for (_, late), group in groupby(sorted((p for p, _ in chosen), key=_part), _part):
        made += [
            PlannedBatch(
                len(made) + n,
                [rows[id(p)] for p in batch.probes],
                [[p.first, p.second, p.register, p.values] for p in batch.probes],
                batch.slots,
                late,
                batch.words,
            )
            for n, batch in enumerate(batches(list(group), book))
        ]
    return save(folder, container(MOST), made, refused, date)


def save(
    folder: Path, room: Container, made: list[PlannedBatch], refused: list[list[str]], date: str
) -> Plan:
    """Write what `load` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    code = np.stack([b.words for b in made]).astype("<u8").tobytes()
    digest = hashlib.sha256(room.cubin + code).hexdigest()
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "arch": ARCH,
        "digest": digest,
        "date": date,
        "offset": room.offset,
        "room": room.room,
        "refused": refused,
        "batches": [{"rows": b.rows, "texts": b.texts, "slots": b.slots, "slow": b.slow} for b in made],
    }
    (folder / "container.bin").write_bytes(room.cubin)
    (folder / "code.xz").write_bytes(lzma.compress(code, preset=2))
    (folder / "plan.json.xz").write_bytes(lzma.compress(json.dumps(head).encode(), preset=2))
    return Plan(room, made, refused, digest, date)


def load(folder: Path) -> Plan:
    """Read a plan.

    Raises:
        SassafrasError: there is none, or it is damaged or of another version.
    """
    try:
        head = json.loads(lzma.decompress((folder / "plan.json.xz").read_bytes()))
        code = lzma.decompress((folder / "code.xz").read_bytes())
        cubin = (folder / "container.bin").read_bytes()
    except FileNotFoundError as error:
        raise SassafrasError(
            "no plan here", where=str(error.filename), hint="benchmarks/latencies.py plan --folder ..."
        ) from None
    except (OSError, ValueError, lzma.LZMAError) as error:
        raise SassafrasError(f"the plan cannot be read: {error}", where=str(folder)) from None
    if head.get("format") != FORMAT or head.get("version") != VERSION:
        raise SassafrasError("not a plan of this version", where=str(folder), hint="make it again")
    if hashlib.sha256(cubin + code).hexdigest() != head["digest"]:
        raise SassafrasError(
            "the plan's files do not belong together", where=str(folder), hint="make it again"
        )
    words = np.frombuffer(code, dtype="<u8").reshape(len(head["batches"]), head["room"], 2)
    made = [
        PlannedBatch(n, b["rows"], b["texts"], b["slots"], b["slow"], words[n])
        for n, b in enumerate(head["batches"])
    ]
    return Plan(
        Container(cubin, head["offset"], head["room"]), made, head["refused"], head["digest"], head["date"]
    )


__all__ = ["ARCH", "NAME", "Plan", "PlannedBatch", "load", "make"]
