"""Confinement as real processes: what is not granted is refused, whoever asks."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sassafras.evaluate.sandbox import ConfinedProcess, Confinement, ProcessEnd, run
from sassafras.evaluate.sandbox.confine import NotConfined, landlock_version, restrict_calls
from sassafras.evaluate.sandbox.confine.calls import program

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")


def python(code: str, **settings: object) -> ProcessEnd:
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


def _running(word: str) -> list[int]:
    """Living processes with this word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def _gone(word: str, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while _running(word):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_children_do_not_outlive_their_parent() -> None:
    word = f"orphan-{os.getpid()}-{time.monotonic_ns()}"
    code = (
        "import os, sys, time\nchild = os.fork()\nif child == 0:\n"
        "    wait = 'import time; time.sleep(600)'\n"
        "    os.execv(sys.executable, [sys.executable, '-c', wait, os.environ['WORD']])\n"
        "time.sleep(0.3)\nprint('parent ends')"
    )
    done = run([sys.executable, "-c", code], Confinement(wall_s=100.0), environment={"WORD": word})
    assert (done.status, done.output) == (0, "parent ends")
    assert _gone(word)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_nothing_outlives_the_judge(stopped: bool) -> None:
    """The judge is killed by SIGKILL, and its candidate, running or stopped, ends at once."""
    import sassafras

    word = f"candidate-{os.getpid()}-{time.monotonic_ns()}"
    judge = (
        "import signal, sys, time\n"
        "from sassafras.evaluate.sandbox import ConfinedProcess\n"
        "p = ConfinedProcess([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]])\n"
        "while not p.group or len(p.members()) != 1: time.sleep(0.02)\n"
        f"p.signal(signal.SIGSTOP) if {stopped} else None\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    root = str(Path(str(sassafras.__file__)).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-c", judge, word], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert len(_running(word)) >= 2
    finally:
        process.kill()
        process.wait()
    assert _gone(word, 10.0), "the candidate outlived its judge"


def test_processes_can_be_given_up_while_threads_stay() -> None:
    code = (
        "from sassafras.evaluate.sandbox.confine import restrict_calls\n"
        "import os, subprocess, threading\n"
        "go, early = threading.Event(), []\n"
        "old = threading.Thread(target=lambda: (go.wait(), early.append(refused(os.fork)))); old.start()\n"
        "restrict_calls(processes=False)\n"
        "seen = []\n"
        "t = threading.Thread(target=lambda: seen.append(1)); t.start(); t.join()\n"
        "def refused(f):\n"
        "    try: f()\n"
        "    except OSError: return True\n"
        "    return False\n"
        "print(seen, refused(os.fork), refused(lambda: subprocess.run(['/bin/true'])),\n"
        "      refused(lambda: os.kill(os.getppid(), 0)))\n"
        "go.set(); old.join(); print('a thread of before', early)\n"
    )
    import sassafras

    root = str(Path(str(sassafras.__file__)).parent.parent)
    done = run([sys.executable, "-c", code], environment={"PYTHONPATH": root})
    assert done.output == "[1] True True True\na thread of before [True]"


def test_links_and_large_files_are_not_collected(tmp_path: Path) -> None:
    code = (
        "import os\nos.symlink('/etc/passwd', 'link')\n"
        "open('large', 'wb').write(bytes(5000))\nos.mkdir('folder')"
    )
    done = run([sys.executable, "-c", code], collect=("link", "large", "folder"), most_bytes=4096)
    assert done.status == 0, done.output
    assert not done.files


def test_a_missing_fence_that_is_required_runs_nothing() -> None:
    """In a process that was forbidden to make namespaces before."""
    import sassafras

    code = (
        "import sys\n"
        "from sassafras.evaluate.sandbox import Confinement, NotSafe, run\n"
        "from sassafras.evaluate.sandbox.confine.calls import install\n"
        "unshare, deny, allow = 272, 0x00050001, 0x7FFF0000\n"
        "install([(0x20, 0, 0, 0), (0x15, 0, 1, unshare), (6, 0, 0, deny), (6, 0, 0, allow)])\n"
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
    assert done.stdout.splitlines()[-1] == "1 ['ipc', 'network', 'pids']"


_CALL = (
    "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n"
    "def call(*a):\n    r = c.syscall(*a)\n    return ctypes.get_errno() if r < 0 else 'got through'\n"
)


@pytest.mark.parametrize(
    "attack",
    [
        "call(302, os.getppid(), 0, ctypes.byref((ctypes.c_uint64 * 2)(1, 1)), None)",  # prlimit64: CPU time
        "call(302, 0, 7, ctypes.byref((ctypes.c_uint64 * 2)(9999, 9999)), None)",
        "call(29, 0, 1 << 20, 0o1666)",  # shmget
        "call(319, b'x', 0)",  # memfd_create
        "call(56, 0x10000000 | 17, 0, 0, 0, 0)",  # clone with a user namespace
        "call(56, 0x8000 | 17, 0, 0, 0, 0)",  # clone as a sibling
        "call(157, 1, 0, 0, 0, 0)",  # prctl: no death signal
        "call(157, 4, 0, 0, 0, 0)",  # prctl: not dumpable
        "call(72, 0, 10, 18)",  # fcntl: SIGCONT for input
        "call(222, 0, None, ctypes.byref(ctypes.c_int()))",  # timer_create, which could send SIGCONT
        "call(203, 0, 8, ctypes.byref(ctypes.c_uint64(-1)))",  # sched_setaffinity
        "call(141, 0, 0, -20)",  # setpriority
        "call(109, 0, 0)",  # setpgid
        "call(16, 0, 0x5412, ctypes.byref(ctypes.c_char(b'x')))",  # ioctl: type into the terminal
        "call(76, os.environ['VICTIM'].encode() + b'/secret', 0)",  # truncate
        "call(2, os.environ['VICTIM'].encode() + b'/secret', os.O_TRUNC)",
        "call(90, os.environ['VICTIM'].encode() + b'/secret', 0)",  # chmod
        "call(235, os.environ['VICTIM'].encode() + b'/secret', None)",  # utimes
        "call(0x40000000 | 41, 1, 1, 0)",  # a socket by its number of x32
        "call(133, b'fifo', 0o10644, 0)",  # mknod
    ],
)
def test_a_call_that_is_not_on_the_list_is_refused(attack: str, tmp_path: Path) -> None:
    """In a folder that may be read, since Landlock alone would not refuse modes, times and lengths."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    before = secret.stat()
    done = run(
        [sys.executable, "-c", f"{_CALL}print({attack})"], Confinement(readable=(str(tmp_path),)),
        environment={"VICTIM": str(tmp_path)},
    )  # fmt: skip
    assert done.output == "1", "EPERM is expected"
    after = secret.stat()
    assert (after.st_mode, after.st_size, after.st_mtime_ns) == (before.st_mode, 6, before.st_mtime_ns)


@pytest.mark.parametrize(
    "attack",
    [
        "call(41, 2, 1, 0)",  # socket: of the network
        "call(41, 1, 2, 0)",  # socket: of datagrams, which go to any address
        "call(41, 1, 3, 0)",
        "call(53, 1, 2 | 0x80000, 0, ctypes.byref((ctypes.c_int * 2)()))",  # socketpair: of datagrams
        "call(42, 0, b'', 0)",  # connect
        "call(43, 0, None, None)",  # accept
        "call(288, 0, None, None, 0)",  # accept4
        "call(54, 0, 1, 26, b'', 0)",  # setsockopt: a filter
        "call(54, 0, 6, 7, b'', 0)",  # setsockopt: of TCP
        "call(16, 0, 0x8902, ctypes.byref(ctypes.c_int(1)))",  # ioctl: signals for input
    ],
)
def test_beside_a_cuda_driver_nobody_is_reached_either(attack: str) -> None:
    assert python(f"{_CALL}print({attack})", cuda=True).output == "1", "EPERM is expected"


def test_what_a_cuda_driver_calls_is_allowed() -> None:
    """It listens on an abstract socket; its commands reach the device (here /dev/null, which knows none)."""
    code = (
        "import os, socket\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)\n"
        "s.bind(f'\\0cuda-uvmfd-test-{os.getpid()}'); s.listen(1)\n"
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM); a.send(b'x')\n"
        "print(b.recv(1), [call(16, 0, n, None) for n in (0xC04846D2, 0xC0204629, 0x30000001, 75, 2047)])\n"
    )
    assert python(_CALL + code, cuda=True).output == f"b'x' {[errno.ENOTTY] * 5}"


def test_what_the_list_does_not_know_yet_does_not_exist() -> None:
    """Libraries fall back to older calls on ENOSYS, and give up on EPERM."""
    assert python(f"{_CALL}print(call(435, 0, 0), call(437, 0, 0, 0, 0), call(2000))").output == "38 38 38"


def test_another_architecture_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(NotConfined, match="for x86-64, this is riscv64"):
        restrict_calls(processes=True)


def test_other_processes_cannot_be_seen() -> None:
    done = python("import os; print(os.getpid(), os.getppid())")
    if "pids" not in done.missing:
        assert done.output == "2 1"


def test_threads_are_limited_together() -> None:
    code = (
        "import threading, time\n"
        "for _ in range(60): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "time.sleep(600)"
    )
    assert python(code, threads=40).stopped == "threads"


@pytest.mark.parametrize(
    "code",
    [
        "for n in range(40): open(f'f{n}', 'wb').write(bytes(1 << 20))",
        "for n in range(40):\n    os.makedirs(f'{n}/d'); open(f'{n}/d/f', 'wb').write(bytes(1 << 20))",
        "keep = []\nfor n in range(40):\n    keep.append(open('f', 'wb')); keep[-1].write(bytes(1 << 20))\n"
        "    keep[-1].flush(); os.remove('f')",
        "import mmap\nkeep = []\nfor n in range(40):\n    f = open('f', 'wb+'); f.truncate(1 << 20)\n"
        "    keep.append(mmap.mmap(f.fileno(), 1 << 20)); keep[-1].write(bytes(1 << 20)); f.close()\n"
        "    os.remove('f')",
        "for n in range(300):\n    os.mkdir('d' * 200); os.chdir('d' * 200)",
        "for n in range(12000): open(f'f{n}', 'w').close()",
    ],
    ids=["files", "folders", "removed", "removed and mapped", "too deep to look", "empty files"],
)
def test_disk_is_limited_together(code: str) -> None:
    done = python(f"import os, time\n{code}\ntime.sleep(600)", disk_bytes=16 << 20, file_bytes=2 << 20)
    assert done.stopped == "disk", done.output


@pytest.mark.parametrize(
    "code",
    [
        "f = os.memfd_create('x')\nfor _ in range(96): os.write(f, bytes(1 << 20))",
        "f = os.memfd_create('x')\nfor _ in range(96): os.write(f, bytes(1 << 20))\n"
        "m = mmap.mmap(f, 96 << 20); os.close(f)",
        "m = mmap.mmap(-1, 96 << 20)\nfor p in range(0, 96 << 20, 4096): m[p] = 1\nm.madvise(4)",
    ],
    ids=["memory file", "memory file, mapped and closed", "shared mapping, dropped"],
)
def test_memory_that_is_not_resident_counts(code: str) -> None:
    done = python(f"import mmap, os, time\n{code}\ntime.sleep(600)", resident_bytes=64 << 20, cuda=True)
    assert done.stopped == "memory", done.output


def test_a_folder_without_rights_is_removed_all_the_same() -> None:
    process = ConfinedProcess([sys.executable, "-c", "import os; os.makedirs('a/b'); os.mkdir('a/b/c', 0)"])
    process.watch()
    process.close()
    assert not Path(process.scratch).exists()


@pytest.mark.parametrize("processes", [True, False])
def test_the_filter_is_short_enough_and_its_jumps_stay_inside(processes: bool) -> None:
    lines = program(processes=processes, cuda=True)
    assert len(lines) <= 4096
    for at, (code, yes, no, _) in enumerate(lines):
        if code & 7 == 5:  # jumps
            assert max(at + 1 + yes, at + 1 + no) < len(lines)
    assert lines[-1][0] == 6


def test_a_cuda_program_has_a_shared_memory_folder_of_its_own() -> None:
    code = (
        "open('/dev/shm/x', 'wb').write(bytes(1 << 20))\n"
        "try:\n    open('/dev/shm/y', 'wb').write(bytes(128 << 20))\nexcept OSError as e: print(e.strerror)"
    )
    done = python(code, cuda=True)
    assert done.output == "No space left on device" or "Permission denied" in done.output
    assert not Path("/dev/shm/x").exists()
    assert not Path("/dev/shm/y").exists()
    assert "Permission denied" in python("open('/dev/shm/x', 'wb')").output
