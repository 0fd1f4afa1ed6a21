"""Files are complete or not there."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from sassafras.core.files import locked, write_whole


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


def test_a_link_to_what_has_no_name_is_written_to() -> None:
    """As ``/dev/stdout`` is in a pipeline."""
    end, kept = os.pipe()
    write_whole(Path(f"/proc/self/fd/{kept}"), "rows")
    assert os.read(end, 16) == b"rows"
    os.close(end)
    os.close(kept)


def test_links_and_modes_stay_as_they_are(tmp_path: Path) -> None:
    """Others could read results that they could not, and a link to another disk became a file."""
    (tmp_path / "kept").mkdir()
    file, link = tmp_path / "kept" / "file", tmp_path / "link"
    link.symlink_to("kept/file")
    for mode in (0o644, 0o600, 0o640):
        write_whole(link, f"{mode}")
        assert link.is_symlink() and file.read_text() == f"{mode}"
        file.chmod(mode)
        write_whole(link, "again")
        assert link.is_symlink() and stat.S_IMODE(file.stat().st_mode) == mode
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept", "link"]


def test_a_name_may_be_as_long_as_the_system_lets_it(tmp_path: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        write_whole(tmp_path / name, "data")
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()


def test_a_lock_ends_with_its_block_whatever_was_forked_in_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    end, kept = os.pipe()
    with locked(path):
        if (child := os.fork()) == 0:
            os.close(kept)
            os.read(end, 1)
            os._exit(0)
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(kept)
        os.waitpid(child, 0)
        os.close(end)
