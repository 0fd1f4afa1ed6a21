"""Turns on one GPU between processes: one at a time, whoever dies, and nobody for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

turns = pytest.importorskip("turns")


@pytest.fixture
def lock() -> Iterator[Any]:
    made = turns.Turns.new()
    yield made
    made.end()
    assert not Path(made.path).exists()


def process(body: str, *arguments: str) -> Any:
    """Python that knows `Turns`, with its output to read."""
    code = f"import os, sys, time\nfrom turns import Turns\nturns = Turns(sys.argv[1])\n{body}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")},
    )  # fmt: skip


def test_one_at_a_time_whoever_asks(lock: Any, tmp_path: Path) -> None:
    """Players and an owner read a number and write it one higher, slowly: no step is lost."""
    count = tmp_path / "count"
    count.write_text("0")
    body = """
for _ in range(40):
    with turns.{}():
        n = int(open(sys.argv[2]).read())
        time.sleep(0.001)
        open(sys.argv[2], "w").write(str(n + 1))
print(turns.waited)
"""
    begun = [process(body.format(kind), lock.path, str(count)) for kind in ("turn", "turn", "turn", "timing")]
    waited = [float(one.communicate(timeout=60)[0]) for one in begun]
    assert count.read_text() == "160" and all(one.returncode == 0 for one in begun)
    assert all(w >= 0 for w in waited) and sum(waited) > 0


HOLD = """
with turns.turn():
    print("mine", flush=True)
    time.sleep(600)
"""


def test_who_dies_in_its_turn_keeps_nobody_waiting(lock: Any) -> None:
    holder = process(HOLD, lock.path)
    assert holder.stdout.readline() == "mine\n"
    other = process("with turns.turn():\n    print(turns.waited, flush=True)", lock.path)
    time.sleep(0.5)
    assert other.poll() is None  # waits
    holder.kill()
    holder.wait(timeout=10)
    assert float(other.communicate(timeout=10)[0]) > 0
    with lock.timing() as waited:
        assert waited < 5.0


def test_who_lives_and_hangs_is_ended_by_the_owner(lock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    holder = process(HOLD, lock.path)
    assert holder.stdout.readline() == "mine\n"
    with lock.timing(patience=0.3) as waited:
        assert 0.3 <= waited < 20.0
    assert holder.wait(timeout=10) == -9
    assert f"process {holder.pid} has kept the GPU for 0.3 s" in capsys.readouterr().out
    holder.stdout.close()
    with lock.turn():  # and it goes on
        pass


def test_the_owner_waits_for_a_turn_and_does_not_count_it(
    lock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = pytest.importorskip("shared_device")

    class Table:
        def run(self, candidate: str) -> str:
            return f"{candidate}!"

    end, mine = Pipe()
    body = """
with turns.turn():
    print("mine", flush=True)
    time.sleep(0.6)
"""
    holder = process(body, lock.path)
    assert holder.stdout.readline() == "mine\n"
    answers: list[Any] = []

    def search() -> None:
        mine.send(("a", "1"))
        answers.append(mine.recv())
        mine.close()

    thread = Thread(target=search, daemon=True)
    thread.start()
    owner._answer({"a": (None, Table())}, [end], 0, lock)
    thread.join(timeout=30)
    assert holder.wait(timeout=10) == 0
    holder.stdout.close()
    assert answers[0][0] == "1!" and answers[0][1] < 0.2
    told = json.loads(capsys.readouterr().out.split(": ", 1)[1])
    assert told["mean_ms"]["turn"] > 200 and told["mean_ms"]["run"] < 200


def test_a_searchs_strategy_takes_turns_and_stays_the_same_search(lock: Any) -> None:
    from sassafras import search

    units = pytest.importorskip("strategies_units")
    plain = search.get("ppo", {"policy": "fresh", "threads": 2})
    made = units.taking(lock, plain)
    assert search.settings_of(made) == search.settings_of(plain) and made.name == "ppo"
    other = process('with turns.turn():\n    print("got it", flush=True)', lock.path)
    with made.turn():
        time.sleep(0.5)
        assert other.poll() is None
    assert other.communicate(timeout=20)[0] == "got it\n"
