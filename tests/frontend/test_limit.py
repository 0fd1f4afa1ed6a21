"""The limit on compilation: hangs in Python, in a child process and in code that Python cannot interrupt."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sassafras.core import CompileError
from sassafras.frontend.limit import within
from tests.processes import gone

#: sleeps where only its end would end it; prints the ids of the shell and of what the shell started
HANGS = ["sh", "-c", 'sleep 600 & echo "$$ $!" > "$0"; wait']


def test_what_ends_in_time_is_returned_or_raised() -> None:
    assert within(30, lambda: 7, "k") == 7
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 // 0, "k")


def test_a_hang_is_an_error_at_the_limit_and_its_compilers_are_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    begin = time.monotonic()
    with pytest.raises(CompileError, match=r"^k, case c: compilation did not end within 1 s \(more\)$"):
        within(1, lambda: subprocess.run([*HANGS, str(pids)], check=False), "k, case c", "more")
    assert time.monotonic() - begin < 30
    shell, sleep = map(int, pids.read_text().split())
    assert gone(shell) and gone(sleep)


def test_code_that_python_cannot_interrupt_does_not_matter() -> None:
    lock = threading.Lock()
    lock.acquire()  # waits in C, as LLVM works in C++
    with pytest.raises(CompileError, match=r"within 0\.3 s"):
        within(0.3, lock.acquire, "k")
    lock.release()


def test_an_interruption_kills_the_compilers_and_stays_an_interruption(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, signal, subprocess, threading, time\n"
        "from pathlib import Path\n"
        "from sassafras.frontend.limit import within\n"
        f"pids = Path({str(pids)!r})\n"
        "def interrupt():\n"
        "    while not pids.exists() or not pids.read_text().endswith('\\n'):\n"
        "        time.sleep(0.02)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try:\n"
        f"    within(300, lambda: subprocess.run({[*HANGS, str(pids)]!r}), 'k')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr
    assert all(gone(int(pid)) for pid in pids.read_text().split())
