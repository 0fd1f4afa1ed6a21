"""Confined programs that are forked from a template: fenced as those of a new interpreter, and as fresh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import sassafras
from sassafras.core import DeviceError, Verdict
from sassafras.cuda.fork_server import ForkServer
from sassafras.evaluate.host import HostEvaluator, HostSource
from sassafras.evaluate.host.process import HostProcess
from sassafras.evaluate.sandbox import ConfinedProcess, Confinement, keepers
from sassafras.evaluate.sandbox.confine import landlock_version
from tests.evaluate.test_evaluate_host import CASE, HONEST, WORKLOAD

pytestmark = pytest.mark.skipif(
    landlock_version() < 1 or sys.platform != "linux", reason="this kernel has no Landlock"
)
ROOT = str(Path(str(sassafras.__file__)).parent.parent)
#: a program that runs what lies in its scratch folder
PROGRAM = """
import os, sys
imported_in, kept = 0, {}
def preload():
    global imported_in
    imported_in = os.getpid()
def main():
    exec(compile(open("code.py").read(), "code.py", "exec"), globals())
    return 0
if __name__ == "__main__":
    preload()
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[HostEvaluator]:
    with HostEvaluator(WORKLOAD, CASE, HostSource(HONEST), scan=False, rounds=2, call_s=60.0) as made:
        yield made


def loaded(judge: HostEvaluator, text: str, forked: bool = True) -> HostProcess:
    """A process that has loaded this text, forked or of an interpreter of its own."""
    limits = replace(judge.confinement, template=forked)
    text = f"import functools\nprint = functools.partial(print, flush=True)\n{text}{HONEST}"
    process = HostProcess(HostSource(text), judge._setup, limits, 60.0)
    process.ready()
    return process


def printed(judge: HostEvaluator, text: str, forked: bool = True) -> Any:
    """What a text prints while it is loaded, as JSON."""
    process = loaded(judge, text, forked)
    try:
        return json.loads(process.process.words(200_000))
    finally:
        process.close()


def standing() -> keepers.Template:
    """The template that was used last."""
    return list(keepers._standing.values())[-1]


def program(folder: Path, code: str, text: str = PROGRAM, **settings: Any) -> tuple[int | None, str, int]:
    """Exit status of `PROGRAM`, what it printed, and the process id of its keeper."""
    file = folder / "program.py"
    if not file.exists():
        file.write_text(text)
    limits = Confinement(wall_s=100.0, readable=(str(folder),), **settings)
    words = [sys.executable, "-P", str(file)]
    process = ConfinedProcess(words, limits, files={"code.py": code.encode()}, preloads=True)
    try:
        assert process.watch() == ""
        return process.status, process.words(), process._process.pid
    finally:
        process.close()


FENCES = """
import ctypes, json, os, re, resource, socket, sys
def attempt(what, *given):
    try:
        what(*given)
    except BaseException as error:
        return f"{type(error).__name__} {getattr(error, 'errno', None)}"
    return "done"
libc = ctypes.CDLL(None, use_errno=True)
def call(*given):
    return -ctypes.get_errno() if libc.syscall(*given) < 0 else "done"
def name(fd):
    return re.sub(":.*|#[0-9]+", "", os.readlink(f"/proc/self/fd/{fd}"))
STATUS = ("Cap", "NoNew", "Seccomp", "NS", "Sig", "Shd", "Uid", "Gid", "Gro", "Umask",
    "Threads", "PPid", "Tgid")
LIMITS = [key for key in dir(resource) if key[:7] == "RLIMIT_"]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
here, number = os.getcwd(), ctypes.c_int()
# one is the listing's own; what is handed down has numbers that were free where the process was started
fds = {fd: name(fd) for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}
print(json.dumps({
    "status": {key: status[key].split() for key in status if key != "SigQ" and key.startswith(STATUS)},
    "limits": {key: resource.getrlimit(getattr(resource, key)) for key in LIMITS},
    "descriptors": sorted((fd if int(fd) < 3 else "other", what) for fd, what in fds.items()),
    "namespaces": {key: os.readlink(f"/proc/self/ns/{key}") for key in os.listdir("/proc/self/ns")},
    "environment": {key: value.replace(here, ".") for key, value in os.environ.items()},
    "C's": [libc.getenv(b"HOME") != 0, libc.getenv(b"SECRET_TOKEN")],
    "cpus": sorted(os.sched_getaffinity(0)),
    "nice": os.nice(0) if attempt(os.nice, 0) == "done" else "refused",
    "dumpable": libc.prctl(3), "death signal": [libc.prctl(2, ctypes.byref(number)), number.value],
    "ids": [os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0)],
    "path": [part.replace(here, ".") for part in sys.path], "words": len(sys.argv),
    "flags": list(sys.flags), "folder": os.listdir("."), "cwd": here == os.environ["HOME"],
    "attempts": [
        attempt(open, "/etc/passwd"), attempt(open, "/tmp/trace", "w"), attempt(os.listdir, "/tmp"),
        attempt(open, "/dev/shm/trace", "w"), attempt(os.fork), attempt(os.setsid), attempt(socket.socket),
        attempt(os.kill, os.getppid(), 0), attempt(os.kill, 1, 9), attempt(open, "/proc/1/mem", "rb"),
        attempt(os.execv, "/bin/true", ["true"]), call(101, 16, os.getppid(), 0, 0), call(272, 0x10000000),
        call(311, 1, 0, 0, 0, 0, 0), call(434, os.getppid(), 0), call(319, b"x", 0), call(425, 1, 0),
        call(321, 0, 0),
    ],
}))
"""


def test_the_fences_are_those_of_a_new_interpreter(
    judge: HostEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    keepers._drop()  # the next template starts with that variable around
    forked, started = printed(judge, FENCES), printed(judge, FENCES, forked=False)
    spaces = [found.pop("namespaces") for found in (forked, started)]
    ours = {entry.name: str(entry.readlink()) for entry in Path("/proc/self/ns").iterdir()}
    own = [sorted(key for key in ours if some[key] != ours[key]) for some in spaces]
    assert own[0] == own[1]
    assert forked == started
    # both could be wrong together
    assert forked["status"]["NoNewPrivs"] == ["1"] and forked["status"]["Seccomp"] == ["2"]
    assert all(set(*forked["status"][f"Cap{kind}"]) == {"0"} for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert forked["limits"]["RLIMIT_CORE"] == [0, 0] and forked["status"]["Threads"] == ["1"]
    assert len([fd for fd in forked["descriptors"] if fd[0] == "other"]) <= 3 + 1
    assert forked["death signal"] == [0, signal.SIGKILL] and forked["dumpable"] == 1
    assert "done" not in forked["attempts"] and forked["environment"]["USER"] == "candidate"


def test_what_another_candidate_left_is_not_there(judge: HostEvaluator) -> None:
    """In modules, environment, descriptors, folders, generators, nor in the memory that forks begin with."""
    leaves = """
import builtins, os, sys, threading, torch, numpy as np
builtins.left = torch.left = os.left = 1
os.environ["LEFT"] = "1"; sys.path.append("left"); sys.modules["left"] = os
np.random.seed(1); torch.manual_seed(1); torch.set_num_threads(3)
os.open("left", os.O_CREAT | os.O_RDWR)
for place in ("/tmp", "/dev/shm", "/nonexistent", os.path.dirname(os.getcwd())):
    try: open(place + "/left", "w")
    except OSError: pass
WORD = "a word of the first candidate"
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    looks = """
import builtins, json, os, re, sys, torch
def there(word):
    for line in open("/proc/self/maps"):
        if line.split()[1].startswith("rw") and "[vv" not in line:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            with open("/proc/self/mem", "rb") as memory:
                memory.seek(begin)
                if re.search(word, memory.read(end - begin)): return True
    return False
print(json.dumps([
    hasattr(builtins, "left"), hasattr(torch, "left"), hasattr(os, "left"), "LEFT" in os.environ,
    "left" in sys.path, "left" in sys.modules, os.path.exists("left"), os.path.exists("/tmp/left"),
    os.path.exists("/dev/shm/left"), torch.initial_seed() == 1, torch.get_num_threads() != 1,
    len(os.listdir("/proc/self/task")) != 1, len(os.listdir("/proc/self/fd")) > 8,
    there(b"of the [f]irst candidate"), there(SCRATCH), not there(b"word of the [s]econd"),
]))
WORD = "a word of the second"
"""
    first = loaded(judge, leaves)
    server = standing()._process.pid
    name = Path(first.process.scratch).name
    first.close()
    first = loaded(judge, leaves)  # the next one finds one that has ended, and one that stands still
    try:
        found = printed(judge, f"SCRATCH = b'{name[:-1]}[{name[-1]}]'\n{looks}")
    finally:
        first.close()
    assert standing()._process.pid == server
    assert found == [False] * 16
    assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1
    files = {str(entry.readlink()).split(":")[0] for entry in Path(f"/proc/{server}/fd").iterdir()}
    assert len(files) == 3 and {"/dev/null", "socket"} < files  # and what its imports print


def test_chance_is_not_shared(judge: HostEvaluator) -> None:
    draws = """
import json, os, random, secrets, tempfile, uuid, numpy as np, torch
print(json.dumps([random.random(), np.random.rand(), str(uuid.uuid4()), secrets.token_hex(),
    next(tempfile._get_candidate_names()), os.urandom(8).hex(), random.Random().random(),
    np.random.default_rng().random(), torch.initial_seed(), torch.rand(1).item()]))
"""
    first, second = printed(judge, draws), printed(judge, draws)
    assert len(first) == 10 and not set(map(str, first)) & set(map(str, second))


ATTACKS = """
import ctypes, errno, json, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(*given):
    return "done" if libc.syscall(*given) >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(what, *given):
    try: what(*given)
    except OSError as error: return errno.errorcode[error.errno]
    return "done"
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
found = []
for pid in (TEMPLATE, KEEPER, os.getppid(), 1, -1):
    found += [attempt(os.kill, pid, number) for number in (0, signal.SIGSTOP, signal.SIGKILL)]
    # the init's group is the candidate's own; "all others" is answered 0 where there is none
    found += [attempt(os.killpg, pid, 9)] if pid not in (os.getppid(), 1, -1) else []
    found += [call(234, pid, pid, 9), call(200, pid, 9)]
    found += [call(129, pid, 9, 0), call(101, 16, pid, 0, 0)]
    found += [call(number, pid, vector, 1, vector, 1, 0) for number in (310, 311)]
    found += [attempt(open, f"/proc/{pid}/{name}", mode) for name, mode in (
        ("mem", "rb"), ("mem", "r+b"), ("environ", "rb"), ("oom_score_adj", "w"), ("cgroup", "w"))]
    found += [attempt(os.listdir, f"/proc/{pid}/fd"), call(434, pid, 0), call(302, pid, 0, vector, None)]
own = {int(name) for name in os.listdir("/proc/self/fd")}
found += [attempt(os.write, fd, b"fork") for fd in range(3, 1024) if fd not in own]
print(json.dumps(sorted(set(found) - {"EPERM", "EACCES", "ESRCH", "ENOENT", "EBADF", "EINVAL", "ENOSYS"})))
"""


def test_a_candidate_cannot_reach_template_keeper_or_init(judge: HostEvaluator) -> None:
    loaded(judge, "").close()
    server = standing()._process
    head = f"TEMPLATE, KEEPER = {server.pid}, {judge._baseline().process._process.pid}\n"
    assert printed(judge, head + ATTACKS) == []
    assert standing()._process is server and server.poll() is None
    assert judge._baseline().process.status is None
    assert judge.evaluate(HostSource(HONEST)).verdict is Verdict.CORRECT


def test_nor_where_there_are_no_namespaces(tmp_path: Path) -> None:
    """In a judge that was forbidden to make them before, and so is its template."""
    code = f"""
import json, os, sys
from pathlib import Path
from sassafras.evaluate.sandbox.confine.calls import install
from tests.evaluate import test_evaluate_templates as here
unshare, deny, allow = 272, 0x00050001, 0x7FFF0000
install([(0x20, 0, 0, 0), (0x15, 0, 1, unshare), (6, 0, 0, deny), (6, 0, 0, allow)])
folder = Path({str(tmp_path)!r})
print(here.program(folder, "print(imported_in == os.getpid(), os.getpid() > 2)"))
head = f"TEMPLATE = KEEPER = {{here.standing()._process.pid}}\\n"
print(here.program(folder, head + here.ATTACKS.replace(", 1, -1)", ", 1)")))
print(here.standing()._process.poll())
"""
    done = own_process(code)
    assert done[0].startswith("(0, 'False True'") and done[1].startswith("(0, '[]'"), done
    assert done[2] == "None"


def own_process(code: str) -> list[str]:
    """What a judge of its own prints."""
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, ROOT])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def killed(server: keepers.Template) -> None:
    server._process.send_signal(signal.SIGKILL)
    assert server._process.wait(10) == -signal.SIGKILL


def test_a_candidate_goes_on_when_its_template_is_killed(judge: HostEvaluator) -> None:
    process = loaded(judge, "")
    try:
        killed(standing())
        assert process.ask(0) > 0 and process.still() and process.process.status is None
        keeper = process.process._process.pid
    finally:
        process.close()
    assert not Path(f"/proc/{keeper}").exists(), "nobody would ever wait for it"
    ends = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV) if {} else None\n"
    before = loaded(judge, "")
    server = standing()
    killed(server)
    before.close()
    outcome = judge.evaluate(HostSource(ends.format(True) + HONEST))  # of another template
    assert outcome.verdict is Verdict.CRASHED and standing() is not server


def test_a_killed_template_is_replaced_and_verdicts_stay(judge: HostEvaluator) -> None:
    assert judge.evaluate(HostSource(HONEST)).verdict is Verdict.CORRECT
    server = standing()
    killed(server)
    assert judge.evaluate(HostSource(HONEST)).verdict is Verdict.CORRECT
    assert standing() is not server and standing().alive
    wrong = HONEST.replace("return y", "return 1.1 * y")
    assert judge.evaluate(HostSource(wrong)).verdict is Verdict.WRONG_RESULT


def test_exit_status_signals_and_limits_are_a_programs_own(tmp_path: Path) -> None:
    for code, status, words in (
        ("print(imported_in == os.getpid())", 0, "False"),
        ("print(1, flush=True); os._exit(7)", 7, "1"),
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("import signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
        ("bytearray(8 << 30)", 1, "MemoryError"),
        ("open('big', 'wb').write(bytes(2 << 20))", 1, "File too large"),
        ("while True: pass", -signal.SIGXCPU, ""),
    ):
        found = program(tmp_path, code, memory_bytes=4 << 30, file_bytes=1 << 20, cpu_s=1)
        assert found[0] == status and words in found[1], (code, found)
        assert not Path(f"/proc/{found[2]}").exists()
    assert not [name for name in keepers._unfit if str(tmp_path) in name[1]]


@pytest.mark.parametrize(
    "preload",
    [
        "import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()",
        "import mmap; kept['memory'] = mmap.mmap(-1, 4096)",
        "1 / 0 if 'template' in sys.argv[0] else None",
    ],
    ids=["leaves a thread", "leaves shared memory", "fails"],
)  # fmt: skip
def test_a_file_that_is_no_template_runs_all_the_same(tmp_path: Path, preload: str) -> None:
    text = PROGRAM.replace("    imported_in = os", f"    {preload}\n    imported_in = os")
    for _ in range(2):
        assert program(tmp_path, "print(imported_in == os.getpid())", text)[:2] == (0, "True")
    assert [name for name in keepers._unfit if str(tmp_path) in name[1]]


def test_another_machine_or_a_wish_has_no_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = "print(imported_in == os.getpid())"
    assert program(tmp_path, asks, template=False)[1] == "True"
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert list(keepers.templates(str(tmp_path / "program.py"), {})) == []
    monkeypatch.undo()
    assert program(tmp_path, asks)[1] == "False"


def test_another_path_or_environment_has_another_template(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    file = str(tmp_path / "program.py")
    first, again, other, third = (
        next(keepers.templates(file, {"PYTHONPATH": path})) for path in ("", "", "/other", "/third")
    )
    assert first is again and other is not first and third.alive and other.alive
    assert not first.alive, "two at a time"


def test_a_template_ends_with_its_owner_and_serves_no_other(tmp_path: Path) -> None:
    """Also where a fork of the owner, which has templates of its own, lives on and holds the socket."""
    code = f"""
import os, signal, sys, time
from pathlib import Path
from tests.evaluate import test_evaluate_templates as here
folder = Path({str(tmp_path)!r})
here.program(folder, "")
mine = here.standing()._process.pid
out, into = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.close(1); os.close(2); time.sleep(30); os._exit(0)
    found = here.program(folder, "print(imported_in == os.getpid())")
    os.write(into, f"{{found[:2]}} {{here.standing()._process.pid != mine}}".encode())
    here.keepers._drop()
    os._exit(0)
os.wait()
print(os.read(out, 100).decode())
print(here.program(folder, "")[0], here.standing()._process.pid == mine)
print(mine, flush=True)
os._exit(0)
"""
    lines = own_process(code)
    assert lines[:2] == ["(0, 'False') True", "0 True"]
    deadline = time.monotonic() + 20
    while Path(f"/proc/{lines[2]}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{lines[2]}").exists()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_no_fork_outlives_its_judge(tmp_path: Path, stopped: bool) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    code = f"""
import os, signal, sys, time
from sassafras.evaluate.sandbox import ConfinedProcess, Confinement
words = [sys.executable, "-P", {str(tmp_path / "program.py")!r}]
p = ConfinedProcess(words, Confinement(), files={{"code.py": b"import time; time.sleep(600)"}}, preloads=True)
while not p.group or len(p.members()) != 1: time.sleep(0.02)
if {stopped}: p.signal(signal.SIGSTOP)
print(p._process.pid, p.group, *p.members(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    pids = done.stdout.split()
    assert len(pids) == 3, done.stderr
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


class Idle(ForkServer):
    """A template that ends soon."""

    def __init__(self, file: Path) -> None:
        folder = str(Path(keepers.__file__).parent)
        code = (
            f"import sys; sys.path.insert(0, {folder!r})\n"
            "from functools import partial; import template as t\n"
            f"sys.exit(t.serve(partial(t.Keepers, {str(file)!r}), int(sys.argv[1]), t.fork_sibling, 0.5))"
        )
        self._start(str(file), [sys.executable, "-P", "-c", code], {"PYTHONPATH": ROOT})


def test_an_idle_template_ends(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    server = Idle(tmp_path / "program.py")
    assert server._process.wait(30) == 0 and not server.alive
    with pytest.raises(DeviceError, match="is gone"):
        server.fork((0, 1, 2))


def test_a_keeper_that_its_judge_does_not_know_of_ends(tmp_path: Path) -> None:
    """As when the template is killed between its fork and its answer: nothing of the program has run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    server = next(keepers.templates(str(tmp_path / "program.py"), {}))
    report, told = os.pipe()
    lifeline, ours = os.pipe()
    spec = Confinement().spec(str(tmp_path), told, lifeline)
    output = os.open(tmp_path / "output", os.O_RDWR | os.O_CREAT)
    child = server.start(keepers.Keeping(spec, ["", "", "program.py"], str(tmp_path), {}, output))
    for fd in (told, lifeline, ours):
        os.close(fd)
    assert child.wait(20.0) == 1
    assert os.read(report, 100) == b"" and os.fstat(output).st_size == 0
    os.close(report)
    os.close(output)
