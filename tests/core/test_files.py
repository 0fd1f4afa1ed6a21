"""Files are complete or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sassafras.core.files import write_whole


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_whole(path, "grün")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


def test_what_cannot_be_put_in_place_leaves_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        write_whole(folder, b"data")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    """`--out /dev/stdout` or `/dev/null`: a device that root replaced by a file is lost to all programs."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(path, "rows")
        assert os.read(reader, 16) == b"rows" and path.is_fifo()
        assert [other.name for other in tmp_path.iterdir()] == ["pipe"]
    finally:
        os.close(reader)
