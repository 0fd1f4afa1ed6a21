"""The files that a user names: read, and looked at before long work begins that ends in writing them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def read(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        SassafrasError: it cannot be read.
    """
    from sassafras.core.errors import os_errors

    with os_errors("cannot read the file", path):
        return path.read_bytes()


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Errors about the contents of a file say which file it is."""
    from sassafras.core import CubinError, DisassemblyError

    try:
        yield
    except (CubinError, DisassemblyError) as error:
        where = f"{path}, {error.where}" if error.where not in (None, "cubin") else str(path)
        raise type(error)(error.what, where=where, hint=error.hint) from error


def folder(path: Path, mode: int = 0o777) -> Path:
    """The folder, made if need be: results will be written there.

    Raises:
        SassafrasError: that will not work.
    """
    from sassafras.core import SassafrasError

    problem = ""
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            problem = "no permission"
    except OSError as error:
        problem = "this is a file" if path.is_file() else str(error.strerror)
    if problem:
        raise SassafrasError(
            f"results cannot be written there: {problem}", where=str(path), hint="name another folder"
        )
    return path


def new_file(path: Path) -> Path:
    """The file, which will be written.

    Raises:
        SassafrasError: it is a folder, or its own folder is not there.
    """
    from sassafras.core import SassafrasError

    if path.is_dir():
        raise SassafrasError("this is a folder", where=str(path), hint="name a file in it")
    if not path.absolute().parent.is_dir():
        raise SassafrasError(
            "its folder does not exist", where=str(path), hint="make it, or name another place"
        )
    return path
