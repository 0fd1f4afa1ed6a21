"""Reading the files that a user names."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        SassafrasError: it cannot be read.
    """
    from sassafras.core import SassafrasError

    try:
        return path.read_bytes()
    except OSError as error:
        raise SassafrasError(f"cannot read the file: {error.strerror}", where=str(path)) from error
