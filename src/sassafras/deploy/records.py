"""Records of loaded kernels, as text and as JSON for other processes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: a folder may hold files that are not ours; no status is of this size
_MAX_STATUS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """One kernel that the driver was given.

    Attributes:
        name: the kernel's entry.
        original: sha256 of the cubin that the compiler made.
        loaded: sha256 of the bytes that the driver got.
        device: CUDA ordinal.
        reason: why these bytes.
        gpu: GPU model, where it had to be looked up.
        speedup, low, high: of the tuned cubin, as measured when it was found (baseline time / tuned time).
        workload: what it was tuned on.
        winner: the winner's number in the store.
    """

    name: str
    original: str
    loaded: str
    device: int
    reason: str
    gpu: str = ""
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    workload: str = ""
    winner: int | None = None

    @property
    def tuned(self) -> bool:
        """Does it run other code than the compiler's?"""
        return self.loaded != self.original

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Loaded:
        """From `dataclasses.asdict`, unknown keys left out."""
        return cls(**{name: row[name] for name in cls.__slots__ if name in row})


@dataclass(frozen=True, slots=True)
class CallSearch:
    """A search that a launch began (`sassafras.autotune`, ``install(tune=...)``).

    Attributes:
        name: the kernel's entry.
        original: sha256 of the cubin that the compiler made.
        state: ``waiting``, ``searching``, ``done`` or ``refused``.
        detail: why, or what came of it.
        budget: of the search.
    """

    name: str
    original: str
    state: str
    detail: str = ""
    budget: str = ""

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> CallSearch:
        """From `dataclasses.asdict`, unknown keys left out."""
        return cls(**{name: row[name] for name in cls.__slots__ if name in row})


@dataclass(frozen=True, slots=True)
class Status:
    """What deployment does in a process, and what it has done.

    Attributes:
        active: are kernels that load from now on looked up?
        reason: why not, or which kernels.
        triton: Triton's version, empty while it was not imported.
        store: the store's file.
        store_state: ``"ok"``, or why it cannot be used.
        tuned_in_store: kernels for which the store has a tuned cubin, for any GPU.
        deny: patterns of names that are never substituted.
        revalidate: which tuned cubins are validated before their first use.
        kernels: everything loaded since the first `install`, in order.
        process: pid, program and start, for statuses read from a file.
        searches: what launches have begun to search, in order.
    """

    active: bool
    reason: str
    triton: str = ""
    store: str = ""
    store_state: str = ""
    tuned_in_store: int = 0
    deny: tuple[str, ...] = ()
    revalidate: str = "imported"
    kernels: tuple[Loaded, ...] = ()
    process: Mapping[str, Any] = field(default_factory=dict)
    searches: tuple[CallSearch, ...] = ()

    @property
    def tuned(self) -> tuple[Loaded, ...]:
        """The kernels that run a tuned cubin."""
        return tuple(kernel for kernel in self.kernels if kernel.tuned)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{'active' if self.active else 'not active'}: {self.reason}",
            f"Triton {self.triton or 'not imported'}; store {self.store or '-'}: {self.store_state or '-'}"
            f" ({self.tuned_in_store} kernels with a tuned cubin)",
        ]
        if self.deny:
            lines.append(f"denied: {', '.join(self.deny)}")
        lines.append(f"{len(self.tuned)} of {len(self.kernels)} loaded kernels run a tuned cubin")
        for kernel in self.tuned:
            figures = (kernel.speedup, kernel.low, kernel.high)
            gain = "" if None in figures else " {:.3f}x [{:.3f}, {:.3f}]".format(*figures)
            lines.append(f"  tuned     {kernel.name}  {kernel.loaded[:16]} for {kernel.original[:16]}{gain}")
        others = Counter((k.name, k.original, k.reason) for k in self.kernels if not k.tuned)
        for (name, digest, reason), count in others.items():
            times = f" ({count} times)" if count > 1 else ""
            lines.append(f"  original  {name}  {digest[:16]}: {reason}{times}")
        for one in self.searches:
            lines.append(f"  {one.state:<9} {one.name}  {one.original[:16]}: {one.detail or one.budget}")
        return "\n".join(lines)


class LaunchJournal:
    """A process's status as a file of JSON lines, one appended per event: a kill loses nothing.

    Never raises: a status that cannot be written must not stop a program.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.problem = folder, ""
        self._path: Path | None = None
        self._pid = 0
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """In a child: its parent's threads, one of which may hold the lock, are not there."""
        self._lock = threading.RLock()

    def write(self, event: str, row: Mapping[str, Any]) -> None:
        """Append one line."""
        if self.folder is None:
            return
        try:
            with self._lock:  # one file, whichever thread comes first
                if self._path is None or self._pid != os.getpid():  # the first line, here or after a fork
                    self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    self._pid = os.getpid()
                    self._path = self.folder / f"{os.uname().nodename}-{self._pid}-{time.time_ns():x}.jsonl"
                    self._append("process", process())
            self._append(event, row)
        except (OSError, ValueError, TypeError) as error:
            self.problem = f"the status file cannot be written: {error}"

    def _append(self, event: str, row: Mapping[str, Any]) -> None:
        assert self._path is not None
        line = json.dumps({"event": event, **row}, default=str) + "\n"
        # one write call on a file opened for appending: lines of several threads never mix
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def process() -> dict[str, Any]:
    """This process; only the program's name, as arguments may hold secrets."""
    return {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "started": time.time(),
        "program": Path(sys.argv[0]).name if getattr(sys, "argv", None) else "",
        "python": sys.executable,
    }


def read_statuses(folder: Path) -> Iterator[Status]:
    """The status of every process that wrote to `folder`, oldest first; a damaged line ends its file."""
    for path in sorted(folder.glob("*.jsonl"), key=lambda p: p.stat().st_mtime):
        if path.stat().st_size <= _MAX_STATUS_BYTES and (found := _read(path)) is not None:
            yield found


def _read(path: Path) -> Status | None:
    from sassafras.core import StoreError
    from sassafras.store.records import typed  # not at the top: a program that installs stays light

    who: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    kernels: list[Loaded] = []
    searches: dict[str, CallSearch] = {}  # the last line of each counts
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
            event = row.pop("event")
            if event == "process":
                who = row
            elif event == "state":
                told = ("kernels", "process", "searches")
                keep = {k: row[k] for k in Status.__slots__ if k in row and k not in told}
                typed(Status(**keep))
                facts = keep | {"deny": tuple(map(str, keep.get("deny") or ()))}
            elif event == "loaded":
                kernels.append(typed(Loaded.from_json(row)))
            elif event == "search":
                searches[row["original"]] = typed(CallSearch.from_json(row))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, StoreError):
            break
    if not who:
        return None
    who["alive"] = _alive(who)
    values: dict[str, Any] = {"active": False, "reason": "nothing said yet"} | facts
    return Status(**values, kernels=tuple(kernels), process=who, searches=tuple(searches.values()))


def _alive(who: Mapping[str, Any]) -> bool | None:
    """Does the process still run? None where that cannot be told (another host)."""
    if who.get("host") != os.uname().nodename:
        return None
    try:
        os.kill(int(who["pid"]), 0)
    except (ProcessLookupError, ValueError, KeyError, TypeError, OverflowError):
        return False
    except OSError:
        return True
    return True
