"""Which pointer arguments a Triton kernel reads and writes, from its TTIR (Triton's first intermediate form).

A value that is made from a pointer argument points into it; loads, stores and atomics then say what happens
there. Whatever is not understood makes an argument ``inout``, which is always safe: such a buffer is restored
before each launch and compared after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_VALUE = re.compile(r"%[A-Za-z0-9_]+(?:#\d+)?")
_ARGUMENT = re.compile(r"%([A-Za-z0-9_]+): !tt\.ptr<")
_ENTRY = re.compile(r"tt\.func public @\S+?\((.*?)\) attributes", re.DOTALL)
#: operations that only compute where a pointer points
_MOVES = (
    "tt.addptr",
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.reshape",
    "tt.trans",
    "tt.bitcast",
    "arith.select",
    "ttg.convert_layout",
    "tt.unsplat",
)
_READS = ("tt.load",)
_WRITES = ("tt.store",)
_BOTH = ("tt.atomic_rmw", "tt.atomic_cas")


def roles(ttir: str) -> Mapping[str, str] | None:
    """``in``, ``out`` or ``inout`` by argument name; None where the text is not understood at all."""
    entry = _ENTRY.search(ttir)
    if entry is None or "tt.call" in ttir:
        return None
    points: dict[str, set[str]] = {f"%{name}": {name} for name in _ARGUMENT.findall(entry[1])}
    names = set().union(*points.values()) if points else set()
    read: set[str] = set()
    written: set[str] = set()
    lines = [line.strip() for line in ttir[entry.end() :].splitlines()]
    for _ in range(8):  # loops carry pointers back: until nothing changes
        before = sum(map(len, points.values())) + len(read) + len(written)
        _Reading(points, read, written).lines(lines)
        if sum(map(len, points.values())) + len(read) + len(written) == before:
            break
    return {
        name: "inout" if name in read and name in written else "out" if name in written else "in"
        for name in sorted(names)
    }


class _Reading:
    """One pass over the lines; `open` holds (results, carried values) of the regions that we are in."""

    def __init__(self, points: dict[str, set[str]], read: set[str], written: set[str]) -> None:
        self.points, self.read, self.written = points, read, written
        self.open: list[tuple[list[str], list[str]]] = []

    def lines(self, lines: list[str]) -> None:
        for line in lines:
            if line.startswith("}") and self.open:
                region = self.open.pop()
                if line.endswith("{"):  # } else {
                    self.open.append(region)
                continue
            region = self._line(line)
            if line.endswith("{"):
                self.open.append(region)

    def _line(self, line: str) -> tuple[list[str], list[str]]:
        head, found, body = line.partition(" = ")
        if not found or not head.startswith("%"):
            head, body = "", line
        operation = body.split(" ", 1)[0].split("(", 1)[0].strip('"')
        results = _results(head)
        if operation == "scf.for":
            # %r:2 = scf.for %i = ... iter_args(%a = %x, %b = %y)
            carried = re.findall(
                r"(%[A-Za-z0-9_]+) = (%[A-Za-z0-9_]+(?:#\d+)?)", body.partition("iter_args(")[2]
            )
            for n, (name, value) in enumerate(carried):
                self._give([name, *results[n : n + 1]], self.points.get(value, set()))
            return results, [name for name, _ in carried]
        if operation == "scf.if":
            return results, []
        if operation == "scf.yield" and self.open:
            outer, carried_names = self.open[-1]
            for n, value in enumerate(_VALUE.findall(body)):
                self._give([*outer[n : n + 1], *carried_names[n : n + 1]], self.points.get(value, set()))
            return [], []
        values = _VALUE.findall(body)
        used = [self.points[v] for v in values if v in self.points]
        if used:
            self._use(operation, values, set().union(*used), results)
        return [], []

    def _use(self, operation: str, values: list[str], targets: set[str], results: list[str]) -> None:
        place = self.points.get(values[0], targets)
        if operation in _READS:
            self.read |= place
        elif operation in _WRITES:
            self.written |= place
            if any(v in self.points for v in values[1:]):  # a pointer as the value: it may be used anywhere
                self.read |= targets
                self.written |= targets
        elif operation in _BOTH:
            self.read |= place
            self.written |= place
        elif operation in _MOVES:
            self._give(results, targets)
        elif operation not in ("tt.return", "cf.assert", "tt.assert"):
            # inline assembly, descriptors, while loops, anything new
            self.read |= targets
            self.written |= targets
            self._give(results, targets)

    def _give(self, names: list[str], targets: set[str]) -> None:
        if targets:
            for name in names:
                self.points.setdefault(name, set()).update(targets)


def _results(head: str) -> list[str]:
    """``%a`` or, of ``%a:3``, ``%a#0`` to ``%a#2``."""
    name, _, count = head.strip().partition(":")
    return [f"{name}#{n}" for n in range(int(count))] if count.isdigit() else [name] if name else []
