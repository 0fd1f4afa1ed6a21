"""Tuned schedules of our kernels: which instruction stands where, with which control code, as data.

Kernels are compiled where they run. A row says of one compiler's cubin (by its `digest`), on one GPU, in
which order its instructions are faster; any other compiler's output runs unchanged. A row, of JSON Lines:

    {"gpu": "NVIDIA H200", "entry": "lean_tn_m1n2s2", "parent": DIGEST, "tuned": DIGEST, "offset": 1792,
     "slots": 320, "moves": TEXT, "records": [[912, 160]], "release": "13.0", "rules": 6, ...}

`offset` (bytes) and `slots` (of 16 bytes) are the code's place in the file. `moves` has three int32 a changed
slot: slots since the last one, how far away its instruction stood, and what changes of its control code.
`records` are words of the kernel's ``.nv.info``, by offset in the file: places of instructions. Other fields
say when and by what it was measured (`benchmarks/gemm_schedules.py`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import VALIDATOR_RULES, SassafrasError

#: first line of the file
HEADER = {"sassafras_gemm_schedules": 1}
SHIPPED = Path(__file__).resolve().parents[1] / "select" / "data" / "schedules.jsonl"
#: ``off``, or a file instead of `SHIPPED`
VARIABLE = "SASSAFRAS_GEMM_SCHEDULES"
#: of the upper word of an instruction: where its control code begins, and what is none
_CONTROL_SHIFT = np.uint64(41)
_INSTRUCTION = (1 << 41) - 1

#: the compiler's release in ``.note.nv.tkinfo``: NVRTC 13.0.48 and 13.0.88 differ in nothing else
_RELEASE = re.compile(rb"release (\d+\.\d+), V[\d.]+")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A kernel as it is loaded.

    Attributes:
        cubin: the tuned one, or what was compiled.
        tuned: which of the two.
        why: why a schedule of this kernel is not used; empty where there is none.
    """

    cubin: bytes
    tuned: bool = False
    why: str = ""


def digest(cubin: bytes) -> str:
    """SHA-256 of a cubin less its compiler's release."""
    return hashlib.sha256(_RELEASE.sub(lambda found: b"\0" * len(found[0]), cubin)).hexdigest()


def release(cubin: bytes) -> str:
    """CUDA's, of the compiler that made a cubin: ``13.0``; empty of CUDA 12, which does not say."""
    found = _RELEASE.search(cubin)
    return found[1].decode() if found else ""


def difference(parent: bytes, tuned: bytes, entry: str) -> dict[str, Any]:
    """The fields of a row that `applied` needs of two cubins.

    Raises:
        SassafrasError: they differ in more than the entry's code and the places of its instructions, or an
            instruction is not the parent's.
    """
    from sassafras.sass import Cubin  # programs that only multiply matrices read no cubins

    read = Cubin.parse(parent)
    text = read.entries[entry].text
    spans = [(s.offset, s.offset + s.size) for s in read.sections if s.name == f".nv.info.{entry}"]
    kept = np.ones(len(parent), bool)
    for start, end in ((text.offset, text.offset + text.size), *spans):
        kept[start:end] = False
    old, new = (np.frombuffer(one, np.uint8) for one in (parent, tuned))
    if old.size != new.size or (old != new)[kept].any():
        raise SassafrasError("the cubins differ outside of the kernel's code", where=entry)
    words_of = ((at, parent[at : at + 4], tuned[at : at + 4]) for s in spans for at in range(*s, 4))
    records = [[at, int.from_bytes(word, "little")] for at, was, word in words_of if was != word]
    before, after = (_slots(one, text.offset, text.size // 16) for one in (parent, tuned))
    places: dict[tuple[int, int], list[int]] = {}
    for slot, (low, high) in enumerate(before.tolist()):
        places.setdefault((low, high & _INSTRUCTION), []).append(slot)
    moves, last = [], 0
    for slot in np.flatnonzero((before != after).any(axis=1)).tolist():
        low, high = after[slot].tolist()
        if not (found := places.get((low, high & _INSTRUCTION))):
            raise SassafrasError("an instruction is not one of the parent's", where=f"{entry}, slot {slot}")
        source = min(found, key=lambda at: abs(at - slot))
        flipped = (high ^ int(before[source, 1])) >> int(_CONTROL_SHIFT)
        moves.append((slot - last, source - slot, flipped))
        last = slot
    packed = zlib.compress(np.array(moves, "<i4").reshape(-1, 3).T.tobytes(), 9)
    return {
        "entry": entry,
        "release": release(parent),
        "parent": digest(parent),
        "tuned": digest(tuned),
        "offset": text.offset,
        "slots": text.size // 16,
        "moves": base64.b64encode(packed).decode(),
        "records": records,
    }


def _slots(cubin: bytes, offset: int, count: int) -> np.ndarray:
    """uint64 (count, 2): lower and upper words."""
    return np.frombuffer(cubin, "<u8", 2 * count, offset).reshape(-1, 2)


def _rewritten(cubin: bytes, row: Row) -> bytes:
    offset, count = row["offset"], row["slots"]
    raw = zlib.decompress(base64.b64decode(row["moves"], validate=True))
    gaps, away, flips = np.frombuffer(raw, "<i4").reshape(3, -1)
    before, at = _slots(cubin, offset, count), np.cumsum(gaps)
    after = before.copy()
    after[at] = before[at + away]
    after[at, 1] ^= flips.astype(np.uint64) << _CONTROL_SHIFT
    made = bytearray(cubin[:offset] + after.tobytes() + cubin[offset + 16 * count :])
    for place, word in row["records"]:
        struct.pack_into("<I", made, place, word)
    return bytes(made)


def applied(cubin: bytes, entry: str, gpu: str, rows: Iterable[Row]) -> Scheduled:
    """The kernel by the row of its digest and GPU; what was compiled where anything does not fit.

    Args:
        cubin: as it was compiled.
        entry: its kernel.
        gpu: as the driver names it.
    """
    known = [row for row in rows if row.get("entry") == entry and row.get("gpu") == gpu]
    if not known:
        return Scheduled(cubin)
    mine = digest(cubin)
    row = next((row for row in known if row.get("parent") == mine), None)
    if row is None:
        by, releases = release(cubin), sorted({str(row.get("release")) for row in known})
        if by in releases:
            return Scheduled(cubin, why="tuned for another source")
        by = f"CUDA {by}" if by else "another release"
        return Scheduled(cubin, why=f"compiled by {by}, tuned for CUDA {' and '.join(releases)}")
    if row.get("rules") != VALIDATOR_RULES:
        return Scheduled(cubin, why="validated by rules of another version")
    try:
        tuned = _rewritten(cubin, row)
    except (ValueError, LookupError, TypeError, struct.error, zlib.error):
        tuned = b""
    if digest(tuned) != row.get("tuned"):
        return Scheduled(cubin, why="damaged data")
    return Scheduled(tuned, True)


def scheduled(cubin: bytes, entry: str, gpu: str) -> Scheduled:
    """`applied` with the schedules that this process uses: the package's, or what the environment says."""
    rows, unread = _used()
    found = Scheduled(cubin, why=unread) if unread else applied(cubin, entry, gpu, rows)
    if os.environ.get(VARIABLE) == "off" and found.tuned:
        return Scheduled(cubin, why=f"{VARIABLE}=off")
    return found


def _used() -> tuple[Sequence[Row], str]:
    """The rows, and what is wrong with the file."""
    given = os.environ.get(VARIABLE, "")
    return _read(str(SHIPPED) if given in ("", "off") else given)


@lru_cache(maxsize=4)
def _read(path: str) -> tuple[Sequence[Row], str]:
    try:
        return read(Path(path)), ""
    except SassafrasError as error:
        return (), str(error)  # a damaged file must not break a user's program


def entries(gpu: str) -> list[str]:
    """Kernels that have a schedule for this GPU, among those that this process uses."""
    return sorted({str(row.get("entry")) for row in _used()[0] if row.get("gpu") == gpu})


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file. Raises SassafrasError: it is missing, foreign or damaged."""
    try:
        header, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if header != HEADER or not all(isinstance(row, dict) for row in rows):
            raise ValueError("another format")
    except (OSError, ValueError) as error:
        raise SassafrasError(f"no file of schedules: {error}", where=path.name) from error
    return rows


def words(found: Iterable[Scheduled]) -> str:
    """Of loaded kernels, for people; empty where none of them has a schedule."""
    counts = Counter("" if one.tuned else one.why for one in found if one.tuned or one.why)
    tuned = f"{counts['']} kernel{'' if counts[''] == 1 else 's'} with a tuned schedule"
    without = [f"{count} without: {why}" for why, count in sorted(counts.items()) if why]
    return "; ".join([tuned, *without]) if counts else ""
