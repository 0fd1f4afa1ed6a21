"""The command line: one small file a command, no logic."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``sassafras`` program."""
    from .app import app

    app()
