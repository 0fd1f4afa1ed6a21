"""Imports point one way (docs/concepts/architecture.md): scheduler and validator share no code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sassafras"


def imported(path: Path) -> set[str]:
    """Rooms of ours that a file imports, inside functions too."""
    package = ["sassafras", *path.relative_to(SOURCE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [".".join([*base, *([node.module] if node.module else [])])]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("sassafras.")}
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
    ],
)
def test_a_room_imports_only_what_it_may(room: str, allowed: set[str]) -> None:
    files = sorted((SOURCE / room).rglob("*.py"))
    assert files
    for path in files:
        others = imported(path) - {room} - allowed
        assert not others, f"{path.relative_to(SOURCE)} imports {sorted(others)}"
