"""A store as one JSON Lines file: for a colleague, a fleet, or a notebook. Data, never code.

One JSON object a line: a header, then cubins (zlib, base64), kernels, runs, evaluations, winners, and an end
line with the number of lines and the sha256 of everything before it. There are no file names inside, hence
nothing to escape to. An import checks every field, recomputes every hash, and happens wholly or not at all.
What was imported is marked so: deployment validates it again before use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sassafras.core import StoreError, Verdict
from sassafras.core.errors import os_errors

from .database import MAX_CUBIN_BYTES, inflate
from .rows import OUTCOME_COLUMNS, dumps, kernel_of

if TYPE_CHECKING:
    from .store import Store

FORMAT = "sassafras-store"
VERSION = 1
#: longest valid line: a cubin of the largest size, incompressible, in base64
MAX_LINE_BYTES = MAX_CUBIN_BYTES * 3 // 2

Check = Callable[[Any], bool]


def _text(limit: int = 4096) -> Check:
    return lambda v: isinstance(v, str) and len(v) <= limit


def _matches(pattern: str) -> Check:
    return lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None


def _whole(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool) and -(2**63) <= v < 2**63


def _real(v: Any) -> bool:
    return _whole(v) or (isinstance(v, float) and math.isfinite(v))


def _positive(v: Any) -> bool:
    return _real(v) and v > 0


def _or_none(check: Check) -> Check:
    return lambda v: v is None or check(v)


def _object(v: Any) -> bool:
    return isinstance(v, dict)


def _anything(v: Any) -> bool:
    return True


_DIGEST, _UID = _matches("[0-9a-f]{64}"), _matches("[0-9a-f]{32}")
_TIME = _matches(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
_LAUNCH_KEYS = {"threads", "shared_bytes", "cluster", "hidden_args", "scratch_bytes", "parameters"}


def _pairs(v: Any) -> bool:
    short = _text(256)
    return isinstance(v, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(short, pair)) for pair in v
    )


def _launch(v: Any) -> bool:
    if not isinstance(v, dict) or set(v) != _LAUNCH_KEYS:
        return False
    cluster, parameters = v["cluster"], v["parameters"]
    if not isinstance(cluster, list) or len(cluster) != 3 or not (parameters is None or _pairs(parameters)):
        return False
    sizes = [v["threads"], v["shared_bytes"], v["hidden_args"], v["scratch_bytes"], *cluster]
    return all(_whole(n) and n >= 0 for n in sizes)


#: the fields of each kind of line that become columns, and what each must be
FIELDS: Mapping[str, Mapping[str, Check]] = {
    "kernel": {
        "cubin": _DIGEST, "name": _text(), "arch": _matches(r"sm_\d+[af]?|python"), "launch": _launch,
        "source_hash": _text(), "signature": _anything, "constants": _object, "ptxas": _text(),
        "options": _object, "meta": _object,
    },
    "run": {
        "workload": _text(), "case_name": _text(), "device": _text(), "modelled": lambda v: v in (0, 1),
        "strategy": _text(), "seed": _whole, "spec": _object, "environment": _object, "created": _TIME,
        "finished_budget": _or_none(_text()), "result": _or_none(_object),
    },
    "evaluation": {
        "digest": _DIGEST, "modelled": lambda v: v in (0, 1),
        "verdict": _or_none(lambda v: isinstance(v, str) and v in set(Verdict)),
        "time_us": _or_none(_positive), "baseline_us": _or_none(_positive), "speedup": _or_none(_positive),
        "low": _or_none(_real), "high": _or_none(_real), "null_speedup": _or_none(_positive),
        "null_low": _or_none(_real), "null_high": _or_none(_real), "samples": _whole,
        "cycles": _or_none(_positive), "baseline_cycles": _or_none(_positive), "detail": _text(1 << 20),
        "seconds": _real, "facts": _object, "took": _real, "recipe": _anything, "recorded": _TIME,
    },
    "winner": {
        "tuned": _DIGEST, "gpu": _text(), "speedup": _positive, "low": _positive, "high": _positive,
        "null_speedup": _positive, "null_low": _positive, "null_high": _positive, "samples": _whole,
        "workload": _text(), "case_name": _text(), "run": _or_none(_UID), "facts": _object, "created": _TIME,
    },
    "modelled_winner": {
        "tuned": _DIGEST, "model": _text(), "modelled_ratio": _positive, "workload": _text(),
        "case_name": _text(), "run": _or_none(_UID), "facts": _object, "created": _TIME,
    },
}  # fmt: skip
_TABLES = {"winner": "winners", "modelled_winner": "modelled_winners"}
#: columns that hold JSON text in the store, and the JSON itself in the file
_JSON = {"launch", "signature", "constants", "options", "meta", "spec", "environment", "result", "facts"}
assert set(OUTCOME_COLUMNS) <= set(FIELDS["evaluation"])


def export_store(store: Store, path: Path, *, runs: bool = True) -> int:
    """Write the store to `path`, from one consistent view of it.

    Args:
        store: what to export.
        path: a file that does not exist yet.
        runs: also export the runs and their evaluations, not only kernels and winners.

    Returns:
        The number of lines.

    Raises:
        StoreError: the file exists or cannot be written, or the store is damaged.
    """
    if path.exists():
        raise StoreError("the file exists already", where=str(path), hint="remove it or name another")
    digest, count = hashlib.sha256(), 0
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with os_errors("cannot write the export", path, StoreError):
            with partial.open("xb") as file:
                for line in _lines(store, runs):
                    text = dumps(line).encode() + b"\n"
                    digest.update(text)
                    file.write(text)
                    count += 1
                end = {"end": {"lines": count, "sha256": digest.hexdigest()}}
                file.write(dumps(end).encode() + b"\n")
            partial.rename(path)
    finally:
        with suppress(OSError):  # what is wrong was said
            partial.unlink()
    return count + 1


def _lines(store: Store, runs: bool) -> Iterator[dict[str, Any]]:
    with store.transaction(write=False) as db, store.reading():
        yield {"format": FORMAT, "version": VERSION}
        for digest, size, data in db.execute("SELECT digest, size, data FROM cubins ORDER BY digest"):
            inflate(data, size, digest, str(store.path))
            yield {"cubin": digest, "size": size, "zlib": base64.b64encode(data).decode()}
        yield from _rows(db, "kernel", "id", "kernels")
        if runs:
            yield from _rows(db, "run", "uid, kernel", "runs")
            evaluations = "evaluations e JOIN runs r ON r.id = e.run"
            yield from _rows(db, "evaluation", "r.uid", evaluations, prefix="e.", order="e.id")
        for kind, table in _TABLES.items():
            yield from _rows(db, kind, "uid, kernel", table)


def _rows(
    db: Any, kind: str, keys: str, table: str, prefix: str = "", order: str = "id"
) -> Iterator[dict[str, Any]]:
    columns = list(FIELDS[kind])
    names = ", ".join(prefix + column for column in columns)
    n = keys.count(",") + 1
    for row in db.execute(f"SELECT {keys}, {names} FROM {table} ORDER BY {order}"):
        line = {kind: row[0]} | ({"of": row[1]} if n == 2 else {})
        for column, value in zip(columns, row[n:], strict=True):
            if column == "recipe":
                value = json.loads(zlib.decompress(value))
            elif column in _JSON and value is not None:
                value = json.loads(value)
            line[column] = value
        yield line


def import_store(store: Store, path: Path) -> Mapping[str, int]:
    """Take an exported file into `store`, in one transaction. What is there already is left as it is.

    Returns:
        How many of each kind were new.

    Raises:
        StoreError: the file is truncated, altered, of another format or version, or any field of it is not
            what it must be; nothing was imported then.
    """
    problem = os_errors("cannot read the file", path, StoreError)
    with problem, path.open("rb") as file, store.transaction() as db:
        return _Import(store, db, str(path)).take(file)


class _Import:
    def __init__(self, store: Store, db: Any, where: str) -> None:
        self.store, self.db, self.where = store, db, where
        self.kernels: dict[int, int] = {}  # number in the file -> id in the store
        self.runs: dict[str, tuple[int, int] | None] = {}  # uid -> (id, modelled), None where known before
        self.new: Counter[str] = Counter()

    def take(self, file: Any) -> Mapping[str, int]:
        digest, number = hashlib.sha256(), 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            try:
                if len(raw) > MAX_LINE_BYTES:
                    raise ValueError("the line is too long")
                line = json.loads(raw)
                if not isinstance(line, dict):
                    raise ValueError("the line is no JSON object")
                if "end" in line:
                    if line["end"] != {"lines": number - 1, "sha256": digest.hexdigest()} or file.read(1):
                        raise ValueError("the file was altered: its checksum does not match")
                    return dict(self.new)
                if number == 1:
                    self.header(line)
                else:
                    self.line(line)
            except (ValueError, RecursionError) as error:
                raise StoreError(
                    f"not a valid export: {error}",
                    where=f"{self.where}:{number}",
                    hint="nothing was imported",
                ) from error
            digest.update(raw)
        raise StoreError("the file is truncated", where=self.where, hint="nothing was imported")

    def header(self, line: dict[str, Any]) -> None:
        if line.get("format") != FORMAT:
            raise ValueError("this is not an export of a Sassafras store")
        if line.get("version") != VERSION:
            raise ValueError(f"format version {line.get('version')!r}, this Sassafras reads {VERSION}")

    def line(self, line: dict[str, Any]) -> None:
        takers: dict[str, Callable[[dict[str, Any]], None]] = {
            "zlib": self.cubin,
            "kernel": self.kernel,
            "evaluation": self.evaluation,
            **{kind: partial(self.winner, kind) for kind in _TABLES},
            "run": self.run,  # a winner names its run by this key
        }
        kind = next((kind for kind in takers if kind in line), None)
        if kind is None:
            raise ValueError(f"unknown kind of line with the keys {sorted(line)[:5]}")
        takers[kind](line)

    def cubin(self, line: dict[str, Any]) -> None:
        digest: Any = line.get("cubin")
        size: Any = line.get("size")
        if set(line) != {"cubin", "size", "zlib"} or not _DIGEST(digest) or not _whole(size):
            raise ValueError("malformed cubin line")
        try:
            data = base64.b64decode(line["zlib"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ValueError("the cubin is not base64") from error
        cubin = inflate(data, size, digest, self.where)
        if not self._has("cubins", "digest", digest):
            self.store.put_cubin(cubin)
            self.new["cubins"] += 1

    def kernel(self, line: dict[str, Any]) -> None:
        number = line.get("kernel")
        values = self._values("kernel", line, {"kernel"})
        if not isinstance(number, int) or number in self.kernels:
            raise ValueError("a kernel needs a number of its own")
        self._need_cubin(values["cubin"])
        before = self.db.execute("SELECT count(*) FROM kernels").fetchone()[0]
        kernel = kernel_of(b"", values["name"], values["arch"], values["launch"], values["meta"])
        self.kernels[number] = self.store.kernel_id(kernel, values)
        self.new["kernels"] += self.db.execute("SELECT count(*) FROM kernels").fetchone()[0] - before

    def run(self, line: dict[str, Any]) -> None:
        uid = line.get("run")
        values = self._values("run", line, {"run", "of"})
        if not _UID(uid) or uid in self.runs:
            raise ValueError("a run needs an identifier of its own")
        if self._has("runs", "uid", uid):
            self.runs[str(uid)] = None
            return
        # without a key: another machine's run is never resumed here
        row = values | {"uid": uid, "kernel": self._kernel(line), "origin": "import"}
        self.runs[str(uid)] = (self.store.insert("runs", row), values["modelled"])
        self.new["runs"] += 1

    def evaluation(self, line: dict[str, Any]) -> None:
        uid = line.get("evaluation")
        values = self._values("evaluation", line, {"evaluation"})
        if not _UID(uid) or uid not in self.runs:
            raise ValueError("an evaluation of a run that is not in the file")
        run = self.runs[str(uid)]
        if run is None:
            return
        if values["modelled"] != run[1]:
            raise ValueError("a modelled outcome in a measured run, or the reverse")
        values["recipe"] = zlib.compress(dumps(values["recipe"]).encode(), 1)
        self.store.insert("evaluations", values | {"run": run[0]})
        self.new["evaluations"] += 1

    def winner(self, kind: str, line: dict[str, Any]) -> None:
        uid, table = line.get(kind), _TABLES[kind]
        values = self._values(kind, line, {kind, "of"})
        if not _UID(uid):
            raise ValueError("a winner needs an identifier")
        for low, high in (("low", "high"), ("null_low", "null_high")):
            if low in values and values[low] > values[high]:
                raise ValueError("an interval with its ends swapped")
        self._need_cubin(values["tuned"])
        if not self._has(table, "uid", uid):
            self.store.insert(table, values | {"uid": uid, "kernel": self._kernel(line), "origin": "import"})
            self.new[table] += 1

    def _values(self, kind: str, line: dict[str, Any], keys: set[str]) -> dict[str, Any]:
        fields = FIELDS[kind]
        if set(line) != set(fields) | keys:
            raise ValueError(
                f"a {kind} line with missing or unknown fields {sorted(set(line) ^ set(fields) ^ keys)}"
            )
        for name, check in fields.items():
            if not check(line[name]):
                raise ValueError(f"the field {name!r} of a {kind} line holds {str(line[name])[:60]!r}")
        return {
            name: dumps(line[name]) if name in _JSON and line[name] is not None else line[name]
            for name in fields
        }

    def _has(self, table: str, column: str, value: Any) -> bool:
        query = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {column} = ?)"
        return bool(self.db.execute(query, (value,)).fetchone()[0])

    def _need_cubin(self, digest: str) -> None:
        if not self._has("cubins", "digest", digest):
            raise ValueError(f"the cubin {digest[:16]} is not in the file")

    def _kernel(self, line: dict[str, Any]) -> int:
        of = line.get("of")
        if not isinstance(of, int) or of not in self.kernels:
            raise ValueError("a row of a kernel that is not in the file")
        return self.kernels[of]
