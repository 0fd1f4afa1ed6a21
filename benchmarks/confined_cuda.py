"""Does CUDA's driver start behind the fences of Python candidates, and what do they refuse it?

    python benchmarks/confined_cuda.py --out confined_cuda.json

A probe (cuInit, a context, memory of both kinds, a copy; with ``--torch`` a product too) runs free, behind
all fences, and behind each alone. Once more, a supervisor sees every system call that the list refuses, and
every file that is opened (seccomp's notifications), answers as the fence would, and counts. Without a GPU the
probe says that there is no driver.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sassafras.evaluate.host import gpu
from sassafras.evaluate.sandbox import Confinement, import_path, run
from sassafras.evaluate.sandbox.confine import apply, calls
from sassafras.evaluate.sandbox.confine.kernel import last_error, libc, no_new_privileges
from sassafras.evaluate.sandbox.confine.namespaces import enter_namespaces, own_mounts

DRIVER = """
import ctypes, os
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    raise SystemExit(f"no driver: {error}")
def step(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: CUDA error {status}")
context, memory, pinned = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
step("cuInit", 0)
step("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
step("cuCtxSetCurrent", context)
step("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
step("cuMemAllocHost_v2", ctypes.byref(pinned), ctypes.c_size_t(1 << 20))
step("cuMemcpyHtoD_v2", memory, pinned, ctypes.c_size_t(1 << 20))
step("cuCtxSynchronize")
print("ok", len(os.listdir("/proc/self/fd")), "descriptors", flush=True)
"""
#: as `sassafras.evaluate.host.child` does: the right to start processes goes once the driver is up
GIVE_UP = """
import torch
from sassafras.evaluate.sandbox.confine import restrict_calls
torch.zeros(1, device="cuda")
restrict_calls(processes=False, cuda=True)
"""
TORCH = """
import torch
a = torch.ones(64, 64, device="cuda")
print("ok" if float((a @ a).sum()) == 64.0 ** 3 else "wrong", flush=True)
"""
FENCES = ("calls", "files", "namespaces", "limits")
WAIT_S = 60.0
_NOTIFY, _NEW_LISTENER, _CONTINUE = 0x7FC00000, 8, 1
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctls of the listener
_ABSENT = (435, 437)  # clone3, openat2
_NAMES = {
    number: name for known in (calls.ALLOWED, calls.PROCESSES, calls.CUDA) for name, number in known.items()
} | {
    2: "open", 16: "ioctl", 41: "socket", 42: "connect", 43: "accept", 53: "socketpair", 54: "setsockopt",
    56: "clone", 62: "kill", 72: "fcntl", 76: "truncate", 90: "chmod", 91: "fchmod", 92: "chown",
    112: "setsid", 133: "mknod", 141: "setpriority", 144: "sched_setscheduler", 151: "mlockall", 157: "prctl",
    160: "setrlimit", 203: "sched_setaffinity", 222: "timer_create", 234: "tgkill", 254: "inotify_add_watch",
    257: "openat", 259: "mknodat", 268: "fchmodat", 279: "move_pages", 294: "inotify_init1", 302: "prlimit64",
    310: "process_vm_readv", 323: "userfaultfd", 425: "io_uring_setup", 434: "pidfd_open", 435: "clone3",
    437: "openat2",
}  # fmt: skip


def limits() -> Confinement:
    """As `HostEvaluator` confines a candidate on a GPU."""
    return gpu.with_cuda(Confinement(wall_s=WAIT_S, cpu_s=600, memory_bytes=None, processes=4))


def environment() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(import_path()), **gpu.variables()}


def some(code: str, fences: Sequence[str], *, record: bool = False) -> dict[str, Any]:
    """Run Python code behind these fences; `record`: count refused calls, and files outside that it opens."""
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="sassafras-probe-") as scratch,
        tempfile.TemporaryFile() as output,
    ):
        spec = limits().spec(scratch, -1, -1)
        wanted = {"calls": "calls" in fences, "cuda": True}
        if "files" in fences:
            wanted["files"] = spec["files"]
        if "limits" in fences:
            wanted["limits"] = spec["limits"]
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.chdir(scratch)
                alone = "namespaces" in fences and "pids" not in enter_namespaces()[0]
                if alone and (inner := os.fork()):
                    os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
                if "namespaces" in fences:
                    own = own_mounts(64 << 20)
                    if "files" in wanted:
                        wanted["files"]["writable"] += own
                if missing := apply(wanted, alone=alone):
                    print("not fenced:", missing, flush=True)
                if record:
                    socket.send_fds(theirs, [b"x"], [_listen()])
                variables = {**os.environ, **environment(), "HOME": scratch, "TMPDIR": scratch}
                os.execve(sys.executable, [sys.executable, "-c", code], variables)
            except BaseException as error:
                os.write(1, f"the probe did not start: {error}\n".encode())
            os._exit(125)
        theirs.close()
        found: dict[str, Any] = {}
        try:
            if record:
                ours.settimeout(WAIT_S)
                _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
                found = _supervise(descriptors[0], spec["files"]) if descriptors else {}
            while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
                if time.monotonic() - begin > WAIT_S:
                    os.killpg(child, signal.SIGKILL)
                time.sleep(0.01)
        finally:
            ours.close()
        words = os.pread(output.fileno(), 4000, 0).decode(errors="replace").strip()
        status = os.waitstatus_to_exitcode(ended[1])
    return {"status": status, "words": words, "seconds": round(time.monotonic() - begin, 2), **found}


def whole(code: str) -> dict[str, Any]:
    """Behind all fences, as a candidate is."""
    done = run([sys.executable, "-c", code], limits(), environment=environment())
    return {
        "status": done.status, "words": f"{done.stopped} {done.output}".strip()[-4000:],
        "seconds": round(done.seconds, 2), "missing": dict(done.missing),
    }  # fmt: skip


def _listen() -> int:
    """The list of calls as a filter that asks where it would refuse; the descriptor that answers."""
    ask = (calls._RETURN, 0, 0, _NOTIFY)
    lines = [
        ask if line in ((calls._RETURN, 0, 0, calls._DENY), (calls._RETURN, 0, 0, calls._ABSENT)) else line
        for line in calls.program(processes=True, cuda=True, pid=os.getpid())
    ]
    lines[6:6] = [step for number in (2, 257) for step in ((calls._EQUAL, 0, 1, number), ask)]
    code = b"".join(struct.pack("<HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("<HxxxxxxQ", len(lines), ctypes.addressof(buffer))
    no_new_privileges()
    descriptor = libc.syscall(317, 1, _NEW_LISTENER, head)
    if descriptor < 0:
        raise last_error("no notifications of seccomp")
    return int(descriptor)


def _supervise(listener: int, files: dict[str, list[str]]) -> dict[str, Any]:
    """Answer until nobody is left to ask; what was refused, and existing files outside the fence."""
    refused: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    granted = [os.path.realpath(path) for path in (*files["readable"], *files["writable"])]
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        events = waiting.poll(200)
        if any(event & select.POLLHUP for _, event in events):
            break
        if not events:
            continue
        try:
            question = bytearray(80)
            fcntl.ioctl(listener, _RECEIVE, question, True)
            ident, pid, _, number, _, _, *words = struct.unpack("<QIIiIQ6Q", question)
            error, flags = 0, _CONTINUE
            if number in (2, 257):
                path = _string(pid, words[0 if number == 2 else 1])
                real = os.path.realpath(path)
                inside = any(real == place or real.startswith(place + "/") for place in granted)
                if (
                    path[:1] == "/"
                    and not path.startswith("/proc/self")
                    and not inside
                    and Path(path).exists()
                ):
                    outside[path] += 1
            else:
                error = errno.ENOSYS if number in _ABSENT or number > calls._NEWEST else errno.EPERM
                flags = 0
                shown = ", ".join(hex(word) for word in words[:3])
                refused[f"{_NAMES.get(number, number)}({shown}) {errno.errorcode[error]}"] += 1
            fcntl.ioctl(listener, _SEND, struct.pack("<QqiI", ident, 0, -error, flags))
        except OSError as gone:
            if gone.errno not in (errno.ENOENT, errno.EINTR):  # who asked has ended
                raise
    os.close(listener)
    return {"refused": dict(refused.most_common(60)), "outside": dict(outside.most_common(60))}


def _string(pid: int, address: int) -> str:
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            most = 4096 - address % 4096
            return (memory.read(most) or b"").split(b"\0")[0].decode(errors="replace")
    except (OSError, ValueError, OverflowError):
        return "?"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {"no fence": some(DRIVER, ())}
    rows["all fences"] = whole(DRIVER)
    if given.torch:
        rows["all fences, torch"] = whole(GIVE_UP + TORCH)
    rows["recorded"] = some(TORCH if given.torch else DRIVER, ("files", "limits"), record=True)
    for fence in FENCES:
        rows[f"{fence} alone"] = some(DRIVER, (fence,))
    for name, row in rows.items():
        last = (row["words"].splitlines() or [""])[-1]
        print(f"{name:20} {row['status']:5} {row['seconds']:7.2f} s  {last[:100]}")
    for what in ("refused", "outside"):
        print(f"\n{what}:")
        for name, count in rows["recorded"].get(what, {}).items():
            print(f"{count:6} {name}")
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows["all fences"]["status"] == rows["no fence"]["status"] else 1


if __name__ == "__main__":
    sys.exit(main())
