"""Confinement as real processes: what is not granted is refused, whoever asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sassafras.evaluate.sandbox import Confinement, Finished, run
from sassafras.evaluate.sandbox.confine import landlock_version

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")


def python(code: str, **settings: object) -> Finished:
    settings = {"wall_s": 250.0, **settings}
    return run([sys.executable, "-c", code], Confinement(**settings))  # type: ignore[arg-type]


def test_an_honest_program_runs_and_its_files_come_back() -> None:
    code = "from pathlib import Path\nprint('hello')\nPath('out').write_bytes(Path('in').read_bytes() * 2)"
    done = run([sys.executable, "-c", code], files={"in": b"ab"}, collect=("out", "missing"))
    assert (done.status, done.stopped, done.output) == (0, "", "hello")
    assert done.files == {"out": b"abab"}


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.listdir(os.environ['VICTIM'])",
        "import os; open(os.environ['VICTIM'] + '/secret').read()",
        "import os; open(os.environ['VICTIM'] + '/new', 'w')",
        "import os; os.remove(os.environ['VICTIM'] + '/secret')",
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import os; os.kill(os.getppid(), 0)",
        "import os; os.setsid()",
        "import ctypes; c = ctypes.CDLL(None, use_errno=True)\n"
        "raise SystemExit(0 if c.ptrace(16, __import__('os').getppid(), 0, 0) == 0 else 1)",
    ],
)
def test_what_is_not_granted_is_refused(code: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    done = run([sys.executable, "-c", code], environment={"VICTIM": str(tmp_path)})
    assert done.status == 1, done.output
    assert "s3cret" not in done.output
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_nothing_of_the_environment_travels_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("LD_PRELOAD", "")
    done = python("import os; print(sorted(os.environ))")
    assert done.status == 0
    assert "SECRET_TOKEN" not in done.output
    assert "LD_PRELOAD" not in done.output


def test_time_is_limited() -> None:
    begin = time.monotonic()
    done = python("while True: pass", wall_s=1.0)
    assert done.stopped == "time"
    assert time.monotonic() - begin < 120


def test_processor_time_says_that_it_was_processor_time() -> None:
    done = python("while True: pass", cpu_s=1)
    assert (done.status, done.stopped) == (-signal.SIGXCPU, ""), "SIGKILL would read as want of memory"
    stubborn = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert python(stubborn, cpu_s=1).status == -signal.SIGKILL


def test_address_space_and_resident_memory_are_limited() -> None:
    assert "MemoryError" in python("bytearray(4 << 30)", memory_bytes=1 << 30).output
    hoard = "import time\nx = [bytearray(b'1' * (1 << 20)) for _ in range(400)]\ntime.sleep(60)"
    assert python(hoard, resident_bytes=128 << 20).stopped == "memory"


def test_file_size_is_limited() -> None:
    done = python("open('big', 'wb').write(bytes(8 << 20))", file_bytes=1 << 20)
    assert done.status != 0
    assert "File too large" in done.output


def test_a_fork_bomb_is_ended_with_all_of_its_children() -> None:
    code = "import os, time\nfor _ in range(40):\n    os.fork() or time.sleep(600)\ntime.sleep(600)"
    done = python(code, processes=8)
    assert done.stopped == "processes"


def test_children_do_not_outlive_their_parent() -> None:
    code = "import os, time\nchild = os.fork()\nif child == 0:\n    time.sleep(600)\nprint(child)"
    done = python(code)
    assert done.status == 0
    stat = Path(f"/proc/{int(done.output)}/stat")
    deadline = time.monotonic() + 20
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_processes_can_be_given_up_while_threads_stay() -> None:
    code = (
        "from sassafras.evaluate.sandbox.confine import restrict_calls\n"
        "import os, subprocess, threading\n"
        "restrict_calls(processes=False, signals=False)\n"
        "seen = []\n"
        "t = threading.Thread(target=lambda: seen.append(1)); t.start(); t.join()\n"
        "def refused(f):\n"
        "    try: f()\n"
        "    except OSError: return True\n"
        "    return False\n"
        "print(seen, refused(os.fork), refused(lambda: subprocess.run(['/bin/true'])),\n"
        "      refused(lambda: os.kill(os.getpid(), 0)))\n"
    )
    import sassafras

    root = str(Path(str(sassafras.__file__)).parent.parent)
    done = run([sys.executable, "-c", code], environment={"PYTHONPATH": root})
    assert done.output == "[1] True True True"


def test_links_and_large_files_are_not_collected(tmp_path: Path) -> None:
    code = (
        "import os\nos.symlink('/etc/passwd', 'link')\n"
        "open('large', 'wb').write(bytes(5000))\nos.mkfifo('pipe')"
    )
    done = run([sys.executable, "-c", code], collect=("link", "large", "pipe"), most_bytes=4096)
    assert done.status == 0, done.output
    assert not done.files


def test_a_missing_fence_that_is_required_runs_nothing() -> None:
    """In a process that was forbidden to make namespaces before."""
    import sassafras

    code = (
        "import sys\n"
        "from sassafras.evaluate.sandbox import Confinement, NotSafe, confine, run\n"
        "confine._ALWAYS = ('unshare',)\n"
        "confine.restrict_calls(processes=True)\n"
        "program = [sys.executable, '-c', 'print(1)']\n"
        "try:\n"
        "    run(program, Confinement(required=('network',)))\n"
        "except NotSafe as error:\n"
        "    print(error)\n"
        "done = run(program)\n"
        "print(done.output, sorted(done.missing))\n"
    )
    root = str(Path(str(sassafras.__file__)).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert "nothing was run, because this machine cannot confine it: network" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "1 ['network']"
