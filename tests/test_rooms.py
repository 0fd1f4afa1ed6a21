"""Imports point one way (docs/concepts/architecture.md), those inside functions too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sassafras"
#: rooms that lie on each other, the highest chain
MOST_FLOORS = 12


def module(path: Path) -> str:
    """The dotted name of a file of ours."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in SOURCE.rglob("*.py")}


def room_of(name: str) -> str:
    """The folder of a module; ``gemm`` has rooms of its own. A module of no folder is its own room."""
    parts = name.split(".")[1:]
    if parts[:1] == ["gemm"]:
        deep = len(parts) > 2 or MODULES[name].name == "__init__.py"
        return ".".join(parts[:2] if deep else parts[:1])
    return parts[0] if parts else ""


def imported(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, inside functions too, but not for the type checker alone."""
    package = module(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{target}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else target for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def rooms() -> dict[str, set[str]]:
    """Of every room those that it imports."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if room := room_of(name):
            others = {room_of(other) for other in imported(path) if other in MODULES}
            found.setdefault(room, set()).update(others - {room, ""})
    return found


@pytest.mark.parametrize(
    ("room", "allowed"),
    [
        ("core", set()),
        ("sass", {"core"}),
        ("schedule", {"core", "sass"}),
        ("validate", {"core", "sass"}),
        ("search", {"core"}),
        ("store", {"core"}),
        ("cuda", {"core"}),
        ("gemm.problem", {"core"}),
    ],
)
def test_a_room_imports_only_what_it_may(room: str, allowed: set[str]) -> None:
    assert rooms()[room] <= allowed


def test_no_circle_and_few_floors() -> None:
    floors: dict[str, int] = {}
    waiting = set(rooms())
    while waiting:
        ready = {room for room in waiting if rooms()[room] <= set(floors)}
        assert ready, f"these rooms import each other: {sorted(waiting)}"
        for room in ready:
            floors[room] = 1 + max((floors[other] for other in rooms()[room]), default=0)
        waiting -= ready
    del floors["__main__"]
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda item: item[1])


def test_what_serves_products_knows_nothing_of_their_benchmark() -> None:
    assert "gemm.bench" not in rooms()["gemm.matmul"] | rooms()["gemm.select"]


def test_every_module_is_in_a_room() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py"}
