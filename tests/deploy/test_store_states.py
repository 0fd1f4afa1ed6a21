"""Whatever is wrong with the store, the program runs the compiler's code, and the status says why."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sassafras import deploy
from sassafras.deploy.records import read_statuses
from sassafras.store import Store

from . import stock
from .boundary import Driver, sha
from .conftest import forget, kernel_of, launch, retuned, save


@pytest.fixture
def tuned_store(driver: Driver, tmp_path: Path) -> tuple[Path, str, str]:
    """A store with a winner for `scale`, and the digests of original and tuned."""
    path = tmp_path / "kept" / "store.sqlite"
    kernel = kernel_of(launch(stock.scale))
    tuned = retuned(kernel.cubin)
    save(path, kernel, tuned)
    forget(stock)
    driver.loads.clear()
    return path, kernel.digest, sha(tuned)


def loaded(driver: Driver) -> str:
    forget(stock)
    launch(stock.scale)
    return driver.loads[-1][1]


def damage(path: Path, kind: str) -> Any:
    """Make the store unusable; what is returned is held until the test ends."""
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "not a database":
        path.write_bytes(b"hello " * 4000)
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "overwritten":
        data = bytearray(path.read_bytes())
        data[4096:] = bytes(0xA5 for _ in data[4096:])
        path.write_bytes(bytes(data))
    elif kind == "a folder":
        path.unlink()
        path.mkdir()
    elif kind == "foreign":
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE theirs (x)")
    elif kind == "newer":
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
    elif kind == "locked":
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        return db
    return None


KINDS = [
    "missing", "empty", "not a database", "truncated", "overwritten", "a folder", "foreign", "newer",
    "locked",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_cannot_be_used_at_install(
    driver: Driver, tuned_store: tuple[Path, str, str], kind: str
) -> None:
    path, original, _ = tuned_store
    checkpoint(path)
    held = damage(path, kind)
    before = path.read_bytes() if path.is_file() else None
    started = time.monotonic()
    told = deploy.install(path, wait_s=0.5)
    assert loaded(driver) == original
    assert time.monotonic() - started < 30
    why = deploy.status().kernels[-1].reason
    if kind == "overwritten":  # its index may still be read
        assert why.startswith(("the store cannot be used", "not in the store", "looking it up failed"))
    else:
        assert told.store_state != "ok" and why.startswith("the store cannot be used: ")
    assert (path.read_bytes() if path.is_file() else None) == before
    del held


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_goes_bad_while_the_program_runs(
    driver: Driver, tuned_store: tuple[Path, str, str], kind: str
) -> None:
    path, original, _ = tuned_store
    checkpoint(path)
    deploy.install(path, wait_s=0.5)
    held = damage(path, kind)
    assert loaded(driver) == original
    assert deploy.status().kernels[-1].reason.startswith("looking it up failed: StoreError")
    del held


def checkpoint(path: Path) -> None:
    """Everything into the one file, so that damaging it damages all."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()


def test_the_tuned_cubin_itself_is_damaged(driver: Driver, tuned_store: tuple[Path, str, str]) -> None:
    path, original, tuned = tuned_store
    with sqlite3.connect(path) as db:
        data = bytearray(db.execute("SELECT data FROM cubins WHERE digest = ?", (tuned,)).fetchone()[0])
        data[len(data) // 2] ^= 0xFF
        db.execute("UPDATE cubins SET data = ? WHERE digest = ?", (bytes(data), tuned))
    deploy.install(path)
    assert loaded(driver) == original
    assert "damaged" in deploy.status().kernels[-1].reason


def test_a_stale_store(driver: Driver, tuned_store: tuple[Path, str, str]) -> None:
    """The winner is for code that the compiler no longer makes, and then it is gone altogether."""
    path, original, _ = tuned_store
    deploy.install(path)
    forget(stock)
    compiled = launch(stock.scale, num_warps=2)
    assert driver.loads[-1][1] == sha(compiled.asm["cubin"]) != original
    assert "of this name, but for another cubin" in deploy.status().kernels[-1].reason
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM winners")
    assert loaded(driver) == original
    assert "no longer in the store" in deploy.status().kernels[-1].reason


def test_from_another_gpu(
    driver: Driver, tuned_store: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sassafras.deploy import gpu

    path, original, _ = tuned_store
    monkeypatch.setattr(gpu, "gpu_name", lambda device: "NVIDIA H100 80GB HBM3")
    deploy.install(path)
    assert loaded(driver) == original
    assert deploy.status().kernels[-1].reason == "tuned for NVIDIA H200, not for NVIDIA H100 80GB HBM3"


def test_read_only_file_and_folder(driver: Driver, tuned_store: tuple[Path, str, str]) -> None:
    path, _, tuned = tuned_store
    checkpoint(path)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        deploy.install(path)
        assert loaded(driver) == tuned
        assert [p.name for p in path.parent.iterdir() if p.suffix == ".sqlite"] == ["store.sqlite"]
    finally:
        path.parent.chmod(0o755)


_WRITER = """
import sys, time
from sassafras.core import Candidate, Evaluation, Kernel, Verdict
from sassafras.store import Store
kernel = Kernel(b"other" * 99, "other", "sm_90a", 128)
with Store.open(sys.argv[1]) as store:
    run = store.begin_run({"n": 1}, kernel=kernel, workload="w", case="c", device="d", modelled=False,
                          strategy="s", seed=0)
    with store.transaction() as db:  # held open: a writer in the middle of its work
        for n in range(200):
            made = Candidate(kernel.with_cubin(b"%d" % n))
            store.record(run, made, Evaluation(made.digest, Verdict.CRASHED))
        print("writing", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.parametrize("named", ["given", "environment"])
def test_a_program_that_changes_its_folder(
    driver: Driver, tuned_store: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    path, original, tuned = tuned_store
    monkeypatch.chdir(path.parent)
    if named == "environment":
        monkeypatch.setenv("SASSAFRAS_STORE", path.name)
    deploy.install(path.name if named == "given" else None, status_dir="status")
    (path.parent / "elsewhere").mkdir()
    monkeypatch.chdir(path.parent / "elsewhere")
    assert loaded(driver) == tuned
    assert deploy.refresh().store_state == "ok" and loaded(driver) == tuned
    assert [k.original for s in read_statuses(path.parent / "status") for k in s.kernels] == [original] * 2


def test_being_written_at_the_time(driver: Driver, tuned_store: tuple[Path, str, str]) -> None:
    path, _, tuned = tuned_store
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        started = time.monotonic()
        assert deploy.install(path).store_state == "ok"
        assert loaded(driver) == tuned
        assert time.monotonic() - started < 20
    finally:
        writer.kill()  # in the middle of its transaction
        writer.wait()
    deploy.refresh()
    assert loaded(driver) == tuned
    with Store.open(path, readonly=True) as store:
        assert len(store.winners()) == 1


def test_a_store_that_hangs_delays_no_longer_than_asked(
    driver: Driver, tuned_store: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system whose server is away: opening the file does not return."""
    path, original, _ = tuned_store
    monkeypatch.setattr(Store, "open", lambda *a, **k: time.sleep(90))
    started = time.monotonic()
    told = deploy.install(path, wait_s=0.2)
    assert loaded(driver) == original
    assert time.monotonic() - started < 45
    assert "did not answer within 0.2 s" in told.store_state
