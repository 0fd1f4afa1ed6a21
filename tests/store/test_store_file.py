"""The file: foreign, corrupt, newer, read-only, and written by several processes at once."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sassafras.core import StoreError
from sassafras.store import Store, schema

WRITER = """
import sys
from sassafras.core import Candidate, Kernel, Modelled
from sassafras.store import Store
path, who, count, shared = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "shared"
kernel = Kernel(b"original", "k", "sm_90", 32)
with Store.open(path) as store:
    run = store.begin_run({"shared": True} if shared else {"who": who}, kernel=kernel, workload="w", case="c",
                          device="model", modelled=True, strategy="s", seed=0)
    for n in range(count):
        candidate = Candidate(kernel.with_cubin(b"%s %d" % (b"all" if shared else who.encode(), n)), {"n": n})
        store.record(run, candidate, Modelled(candidate.digest, None, 1.0 + n, 2.0))
        print(n, flush=True)
"""


def writer(path: Path, who: str, count: int, how: str = "apart") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), who, str(count), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["apart", "shared"])
def test_five_processes_create_and_write_at_once(tmp_path: Path, how: str) -> None:
    path = tmp_path / "store.sqlite"
    processes = [writer(path, f"p{n}", 100, how) for n in range(5)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with Store.open(path) as store:
        counts = [record.evaluations for record in store.runs()]
        assert counts == ([100] if how == "shared" else [100] * 5)
        for record in store.runs():
            assert [o.cycles for o in store.evaluations(record.id)] == [1.0 + n for n in range(100)]  # type: ignore[union-attr]


def test_a_killed_writer_leaves_everything_it_reported(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    process = writer(path, "victim", 100_000)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 200:
            process.send_signal(signal.SIGKILL)
            break
    reported = 201 + len(process.stdout.read().splitlines())  # they are numbered from 0
    process.communicate()
    with Store.open(path) as store:
        kept = store.runs()[0].evaluations
        assert reported <= kept <= reported + 1  # the last may have been kept and not reported yet
        assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def refused(path: Path, message: str, **more: bool) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(path, **more)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before, "the file was changed"
    assert not Path(f"{path}-wal").exists() and not Path(f"{path}-journal").exists()


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize(
    "content", [b"hello", b"\x7fELF" + bytes(500), b"SQLite format 3\x00", os.urandom(5000)]
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes, readonly: bool) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    refused(path, "not a Sassafras store", readonly=readonly)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("application", [0, 42])
def test_another_programs_database_is_refused(tmp_path: Path, application: int, readonly: bool) -> None:
    path = tmp_path / "store.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.execute(f"PRAGMA application_id = {application}")
    db.commit()
    db.close()
    refused(path, "belongs to another program", readonly=readonly)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_store_is_refused(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = DELETE")
    db.execute("PRAGMA user_version = 99")
    db.close()
    refused(path, "schema version 99", readonly=readonly)


def test_damage_inside_is_an_error_not_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    writer(path, "p", 300).communicate()
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = os.urandom(len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match="store"), Store.open(path) as store:
        list(store.evaluations(1))


def test_a_locked_store_waits_for_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    process = writer(path, "p", 1)
    time.sleep(0.5)
    assert process.poll() is None
    holder.execute("COMMIT")
    holder.close()
    assert process.wait(timeout=30) == 0
    process.communicate()


def test_readonly_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with pytest.raises(StoreError, match="no store here"):
        Store.open(path, readonly=True)
    assert not path.exists()
    with Store.open(path) as store:
        digest = store.put_cubin(b"code")
    with Store.open(path, readonly=True) as store:
        assert store.cubin(digest) == b"code" and store.runs() == []
        with pytest.raises(StoreError, match=r"readonly database \(the file or its folder is read-only\)"):
            store.put_cubin(b"other")


@pytest.mark.parametrize("readonly", [False, True])
def test_a_place_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    with pytest.raises(StoreError, match="File name too long"):
        Store.open(tmp_path / ("a" * 300), readonly=readonly)
    monkeypatch.setenv("SASSAFRAS_STORE", "~no-such-user/store.sqlite")
    with pytest.raises(StoreError, match="no home directory"):
        Store.open(readonly=readonly)


def test_a_place_where_nothing_can_be_made_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in tmp_path / "file" / "x" / "s.sqlite", Path("/proc/s.sqlite"):
        with pytest.raises(StoreError, match=r"cannot .* \(name another place with --store or SASSAF"):
            Store.open(path)


def test_a_reader_where_nothing_can_be_written_says_why(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))  # as on a full disk
    try:
        with pytest.raises(StoreError, match=r"disk I/O error .*ulimit -f.* may be full"):
            Store.open(path, readonly=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_is_moved_while_it_is_open_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    path, there = tmp_path / "store.sqlite", tmp_path / "there.sqlite"
    monkeypatch.chdir(tmp_path)
    with Store.open(path.name) as store:
        monkeypatch.chdir("/")
        store.put_cubin(b"before")
        path.rename(there)
        if replaced:
            path.write_bytes(there.read_bytes())
        with pytest.raises(StoreError, match="moved or replaced while it was open"):
            store.put_cubin(b"lost")
        there.rename(path)
        store.put_cubin(b"after")
    with Store.open(path, readonly=True) as store:
        assert store._one("SELECT count(*) FROM cubins") == (2,)


def test_readers_of_a_store_that_is_being_created(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="no store here: the file is empty"):
        Store.open(path, readonly=True)
    assert path.read_bytes() == b""
    path.unlink()
    for number in range(4):
        path = tmp_path / f"{number}.sqlite"
        process = writer(path, "p", 3)
        while process.poll() is None:
            try:
                with Store.open(path, readonly=True) as store:
                    assert [run.kernel for run in store.runs()] in ([], ["k"])
            except StoreError as error:
                assert "no store here" in str(error)
        assert process.wait() == 0
        process.communicate()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot create the store's folder"):
        Store.open(tmp_path / "file" / "store.sqlite")


def test_what_sqlite_rolls_back_by_itself_keeps_its_reason(tmp_path: Path) -> None:
    """As a full disk does while a store is created."""
    connection = sqlite3.connect(tmp_path / "any.sqlite", isolation_level=None)
    connection.execute("CREATE TABLE t (x UNIQUE)")
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"), schema.whole(connection):
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("INSERT OR ROLLBACK INTO t VALUES (1)")
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    connection.close()


def test_a_full_disk_is_an_error_and_the_store_lives_on(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        pages = store._one("PRAGMA page_count")[0]
        store._one(f"PRAGMA max_page_count = {pages + 4}")
        with pytest.raises(StoreError, match="full"):
            for _ in range(100):
                store.put_cubin(os.urandom(4000))
        kept = store._one("SELECT count(*) FROM cubins")[0]
        store._one("PRAGMA max_page_count = 1000000")
        store.put_cubin(b"fits again")
        assert store._one("SELECT count(*) FROM cubins")[0] == kept + 1
