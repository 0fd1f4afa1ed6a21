"""What the second model learns from all kernels first, kept in a file for machines whose time is dear."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from second_model import Unread
from second_model.kernel import Kernel
from second_model.latency import latencies, packed, pooled, unpacked
from second_model.reading import listing

from sassafras.core import SassafrasError
from sassafras.core.files import write_whole

from .pool import Job, Pool, Say
from .shares import Item

Rows = list[list[Any]]
_FOLDER = Path(__file__).resolve().parents[1] / "second_model"


def digest() -> str:
    """Hash of the second model's sources: what another version learnt is stale."""
    files = sorted(path for path in _FOLDER.glob("*") if path.is_file())
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def show(say: Say, path: str, name: str) -> Rows:
    """What the compiler leaves between unmeasured pairs in one kernel (`second_model.latency`)."""
    try:
        return packed(pooled([Kernel(listing(Path(path).read_bytes(), name)).seen()]))
    except (Unread, SassafrasError):
        return []  # this kernel teaches nothing; the run says why


def learn(items: list[Item], workers: int, until: float, say: Callable[[str], None]) -> Rows:
    """Distances of all kernels that can be read until then, the small ones first."""
    begin, met, found = time.time(), 0, []
    jobs = iter(sorted(items, key=lambda item: (item.instructions, item.shown, item.name)))

    def following() -> Job | None:
        item = next(jobs, None)
        return None if item is None else Job(item, show, (item.path, item.name), until - time.time())

    for event in Pool(workers).run(following, until):
        if event.kind == "done":
            found.append(event.value)
            met += 1
        elif event.kind in ("failed", "killed"):
            say(f"nothing learnt from {event.key.shown}: {event.key.name[:60]}: {event.value}")
    rows = merged(found)
    say(f"{len(rows)} distances learnt from {met} of {len(items)} kernels in {time.time() - begin:.0f} s")
    return rows


def merged(parts: list[Rows]) -> Rows:
    """Rows of several kernels as one of each pair, the least distance and the kernels that have it."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for rows in parts:
        for *key, cycles, met in rows:
            least, known = found.get(tuple(key), (1 << 20, 0))
            if cycles <= least:
                found[tuple(key)] = (cycles, met + (known if cycles == least else 0))
    return [[*key, *value] for key, value in sorted(found.items())]


def teach(rows: Rows) -> None:
    """A worker's setup: its second model knows what all kernels show."""
    latencies().learn(unpacked(rows))


def keep(path: Path, rows: Rows) -> None:
    """Write what was learnt."""
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    write_whole(path, f'{{"second_model": "{digest()}", "rows": [\n  {lines}\n]}}\n')


def kept(path: Path) -> Rows:
    """Read what was learnt.

    Raises:
        ValueError: the file cannot be read, or another version of the second model made it.
    """
    again = "make it again with --learn"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        made_by, rows = found["second_model"], found["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of learnt distances ({error}): {again}") from None
    if made_by != digest():
        raise ValueError(f"{path} was made by another version of the second model: {again}")
    return rows
