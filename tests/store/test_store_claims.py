"""One process a key over all processes of a store; an owner's death frees it; older stores are upgraded."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sassafras.core import StoreError
from sassafras.store import Store
from sassafras.store.claims import Owner, claim, look, release, settle, take_turn

#: claims when told to, says what came of it, and stays until its input ends
PROGRAM = """
import sys
from sassafras.store import Store
from sassafras.store.claims import Owner, claim
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    print(claim(store, ("gpu", "kernel"), "20s", Owner.me()) is None, flush=True)
    sys.stdin.readline()
"""


def start(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(path)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None and made.stdout.readline() == "ready\n"
    return made


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_of_processes_at_once_one_gets_it_and_its_death_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    running = [start(path) for _ in range(3)]
    for process in running:
        go(process)
    got = [process.stdout.readline() == "True\n" for process in running if process.stdout]
    assert sorted(got) == [False, False, True]
    holder = running[got.index(True)]
    with Store.open(path) as store:
        row = claim(store, ("gpu", "kernel"), "20s", Owner.me())
        assert row is not None and (row.state, row.owner.pid) == ("running", holder.pid)
        holder.kill()
        holder.wait()
        assert claim(store, ("gpu", "kernel"), "20s", Owner.me()) is None
        assert claim(store, ("gpu", "kernel"), "20s", Owner.me()) is None  # its own
    for process in running:
        process.kill()
        process.communicate()


def test_settled_keys_are_left_alone_unless_asked_for_otherwise(tmp_path: Path) -> None:
    me = Owner.me()
    with Store.open(tmp_path / "store.sqlite") as store:
        assert claim(store, ("gpu", "kernel"), "20s", me) is None
        settle(store, "kernel", "done", "20s", "1.1x", me)
        release(store, "gpu", me)
        assert look(store, "gpu") is None
        row = claim(store, ("gpu", "kernel"), "20s", me)
        assert row is not None and (row.state, row.detail) == ("done", "1.1x")
        assert look(store, "gpu") is None  # all keys or none
        assert claim(store, ("gpu", "kernel"), "60s", me) is None
        release(store, "kernel", replace(me, started=me.started + 1))  # a later process of this id
        assert look(store, "kernel") is not None


def test_a_process_of_the_same_id_is_not_the_owner_and_another_host_is_believed_for_an_hour() -> None:
    me, now = Owner.me(), datetime.now(UTC)
    assert me.alive(now.isoformat())
    assert not replace(me, started=me.started + 1).alive(now.isoformat())
    there = replace(me, host="elsewhere")
    assert there.alive((now - timedelta(minutes=59)).isoformat())
    assert not there.alive((now - timedelta(minutes=61)).isoformat())
    assert not there.alive((now + timedelta(days=400)).isoformat())  # its clock was wrong


def test_a_store_of_the_first_schema_is_upgraded_and_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE calls")
        db.execute("PRAGMA user_version = 1")
    with Store.open(path, readonly=True) as store:
        assert look(store, "kernel") is None and store.winners() == []
        with pytest.raises(StoreError):
            claim(store, ("kernel",), "20s", Owner.me())
    with Store.open(path) as store:
        assert claim(store, ("kernel",), "20s", Owner.me()) is None
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)


#: takes its turn with a ticket, says when it has it, and keeps it until its input ends
TURNS = """
import sys, time
from sassafras.store import Store
from sassafras.store.claims import Owner, take_turn
with Store.open(sys.argv[1]) as store:
    while take_turn(store, "gpu", sys.argv[2], Owner.me()) is not None:
        print("waits", flush=True)
        time.sleep(0.02)
    print("has it", flush=True)
    sys.stdin.readline()
"""


def test_turns_are_taken_in_the_order_of_tickets_and_a_dead_caller_loses_its_place(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()

    def caller(ticket: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TURNS, str(path), ticket]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(process: subprocess.Popen[str], text: str) -> None:
        while (line := process.stdout.readline()) == "waits\n" != f"{text}\n":  # type: ignore[union-attr]
            pass
        assert line == f"{text}\n"

    first = caller("1")
    says(first, "has it")
    third, second, killed = caller("3"), caller("2"), caller("15")
    for process in (third, second, killed):
        says(process, "waits")
    killed.kill()
    killed.wait()
    first.kill()
    first.wait()
    says(second, "has it")
    with Store.open(path) as store:
        row = look(store, "gpu")
        assert row is not None and row.owner.pid == second.pid
    second.communicate("\n", timeout=20)
    says(third, "has it")
    third.communicate("\n", timeout=20)
    with Store.open(path) as store:
        assert take_turn(store, "gpu", "4", Owner.me()) is None
        assert [key for (key,) in store._all("SELECT key FROM calls")] == ["gpu"]
