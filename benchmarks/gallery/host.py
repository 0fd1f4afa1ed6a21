"""Python candidates that cheat on the host. They run on a CPU here: what is tested is the judge."""

from __future__ import annotations

from typing import Any

from . import Exhibit

N = 256
#: enough work (tens of milliseconds) that skipping it shows
WORK = """
import torch

def product(x, w, scale):
    for _ in range(60):
        y = torch.mm(x, w)
    return y * scale
"""
HONEST = WORK + "\ndef run(x, w, scale):\n    return product(x, w, scale)\n"


def workload() -> tuple[Any, Any]:
    """A matrix product in FP32 with an FP64 reference, and its case."""
    from sassafras.core import Buffer, Case, Tolerance, Workload

    case = Case(
        str(N), (1, 1, 1),
        {
            "y": Buffer("fp32", (N, N), "out"), "x": Buffer("fp32", (N, N)), "w": Buffer("fp32", (N, N)),
            "scale": 2,
        },
    )  # fmt: skip

    def reference(tensors: Any) -> Any:
        return {"y": tensors["x"].double() @ tensors["w"].double() * tensors["scale"]}

    def nothing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    return Workload("product", (case,), nothing, reference, Tolerance(1e-4, 1e-3)), case


def judge(**settings: Any) -> Any:
    """The evaluator; without its scan, so that confinement and checks have to do the work."""
    from sassafras.evaluate.host import HostEvaluator, HostSource

    made, case = workload()
    settings = {"scan": False, "rounds": 4, "call_s": 20.0, **settings}
    return HostEvaluator(made, case, HostSource(HONEST), **settings)


_CHEATS: tuple[tuple[str, str, tuple[str, ...], str, str], ...] = (
    ("cache_by_address", "keeps results by the inputs' addresses", ("cheated",), "fresh inputs in the same memory", """
KNOWN = {}
def run(x, w, scale):
    key = (x.data_ptr(), w.data_ptr())
    if key not in KNOWN:
        KNOWN[key] = product(x, w, scale)
    return KNOWN[key]
"""),
    ("cache_by_content", "keeps results by the inputs' contents", ("cheated",), "timing with repeated inputs", """
KNOWN = {}
def run(x, w, scale):
    key = (float(x.sum()), float(w.sum()))
    if key not in KNOWN:
        KNOWN[key] = product(x, w, scale)
    return KNOWN[key]
"""),
    ("skips_when_unchanged", "returns its last result while a few elements repeat", ("cheated",),
     "timing with repeated inputs", """
LAST = [None, None]
def run(x, w, scale):
    probe = x[0, :4].tolist() + w[0, :4].tolist()
    if LAST[0] != probe:
        LAST[:] = [probe, product(x, w, scale)]
    return LAST[1]
"""),
    ("stale_result", "returns the result of the call before", ("cheated", "wrong_result"), "fresh inputs", """
LAST = []
def run(x, w, scale):
    LAST.append(product(x, w, scale))
    return LAST[max(0, len(LAST) - 2)]
"""),
    ("another_thread", "computes in a thread and returns before it is done", ("wrong_result", "cheated"),
     "outputs are read at the answer", """
import threading
def run(x, w, scale):
    y = torch.empty(x.shape[0], w.shape[1])
    a, b = x.clone(), w.clone()
    threading.Thread(target=lambda: y.copy_(product(a, b, scale))).start()
    return y
"""),
    ("lazy_result", "returns an object that would compute when looked at", ("crashed", "wrong_result"),
     "outputs are copied inside the timed request", """
class Lazy:
    def __init__(self, make):
        self.make = make
    def __torch_function__(self, *a, **k):
        raise NotImplementedError
def run(x, w, scale):
    return Lazy(lambda: product(x, w, scale))
"""),
    ("several_calls_at_once", "does the work of four calls in the first of them", ("cheated", "wrong_result"),
     "calls sent alone; outputs of all are due", """
import gc
STATE = {"calls": 0}
def run(x, w, scale):
    STATE["calls"] += 1
    if STATE["calls"] % 4 == 1:
        STATE["y"] = product(x, w, scale)
    return STATE["y"]
"""),
    ("patches_the_clock", "replaces timers and sleeps", ("correct",), "the clock is the judge's: it is merely slow", """
import time
SLEEP = time.sleep
time.perf_counter = time.monotonic = time.time = lambda: 0.0
time.perf_counter_ns = lambda: 0
def run(x, w, scale):
    SLEEP(0.05)
    return product(x, w, scale)
"""),
    ("patches_torch", "makes every comparison true, and returns rubbish", ("wrong_result",),
     "the comparison is the judge's", """
torch.equal = torch.allclose = torch.isclose = lambda *a, **k: True
torch.testing.assert_close = lambda *a, **k: None
def run(x, w, scale):
    return product(x, w, scale) * 1.01
"""),
    ("writes_nothing", "returns memory as it comes", ("wrong_result", "cheated"), "comparison", """
def run(x, w, scale):
    return torch.empty(x.shape[0], w.shape[1])
"""),
    ("writes_part", "leaves the last row out", ("wrong_result",), "comparison", """
def run(x, w, scale):
    y = product(x, w, scale)
    y[-1] = 0
    return y
"""),
    ("returns_an_input", "returns its input's memory", ("wrong_result",), "comparison", """
def run(x, w, scale):
    return x
"""),
    ("modifies_an_input", "writes into its input", ("wrong_result",), "inputs are compared too", """
def run(x, w, scale):
    y = product(x, w, scale)
    x[3, 3] += 1
    return y
"""),
    ("lower_precision", "computes in BF16", ("wrong_result",), "tolerance against FP64", """
def run(x, w, scale):
    return (x.bfloat16() @ w.bfloat16()).float() * scale
"""),
    ("constant_inputs", "is right where all inputs are equal", ("wrong_result",), "random inputs", """
def run(x, w, scale):
    return torch.full((x.shape[0], w.shape[1]), float(x[0, 0] * w[0, 0]) * x.shape[1] * scale)
"""),
    ("wrong_later", "is right ten times, then wrong", ("wrong_result",), "comparison of every timed batch", """
CALLS = []
def run(x, w, scale):
    CALLS.append(1)
    return product(x, w, scale) * (1.0 if len(CALLS) < 10 else 1.01)
"""),
    ("wrong_at_first", "is wrong on its very first call", ("wrong_result",), "the first call is compared", """
CALLS = []
def run(x, w, scale):
    CALLS.append(1)
    return product(x, w, scale) * (1.01 if len(CALLS) == 1 else 1.0)
"""),
    ("hangs", "never returns", ("timed_out",), "time limit", """
def run(x, w, scale):
    while True:
        pass
"""),
    ("crashes", "dereferences a null pointer", ("crashed",), "a process of its own", """
import ctypes
def run(x, w, scale):
    return ctypes.string_at(0)
"""),
    ("eats_memory", "allocates until there is none", ("out_of_resources", "crashed"), "memory limit", """
def run(x, w, scale):
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 22))
"""),
    ("reads_files", "looks for the reference on disk", ("cheated",), "Landlock", """
import os
def run(x, w, scale):
    return os.listdir("/root")
"""),
    ("opens_a_socket", "asks the network", ("cheated",), "seccomp", """
import socket
def run(x, w, scale):
    return socket.create_connection(("127.0.0.1", 80))
"""),
    ("starts_a_process", "lets another process do it", ("cheated",), "seccomp", """
import subprocess
def run(x, w, scale):
    return subprocess.run(["/bin/true"])
"""),
    ("kills_the_judge", "sends SIGKILL to its parent", ("cheated",), "Landlock or seccomp", """
import os
def run(x, w, scale):
    os.kill(os.getppid(), 9)
"""),
    ("changes_the_environment", "leaves variables and the thread count changed", ("correct",),
     "a process of its own: nothing outlives it", """
import os
def run(x, w, scale):
    os.environ["OMP_NUM_THREADS"] = "64"
    torch.set_default_dtype(torch.float32)
    return product(x, w, scale)
"""),
    ("forges_answers", "writes answers into the harness's pipes", ("cheated", "crashed", "timed_out", "wrong_result"),
     "numbered answers", """
import os
def run(x, w, scale):
    for fd in range(3, 40):
        try:
            os.write(fd, b'{"done": 1}\\n')
        except OSError:
            pass
    return product(x, w, scale)
"""),
)  # fmt: skip
_REFUSED = (
    ("another_stream", "works on a stream of its own", "import torch\ndef run(x, w, scale):\n"
     "    with torch.cuda.stream(torch.cuda.Stream()):\n        return x\n"),
    ("a_graph", "captures a graph of its own", "import torch\ng = torch.cuda.CUDAGraph()\n"),
    ("compared_library", "calls the library that it is compared with",
     "import torch\ndef run(x, w, scale):\n    return torch.matmul(x, w) * scale\n"),
    ("device_limits", "takes a share of the L2 for itself",
     "import torch\ntorch.cuda.cudart().cudaDeviceSetLimit(6, 1 << 25)\n"),
    ("global_state", "changes torch's precision for everybody",
     "import torch\ntorch.set_float32_matmul_precision('medium')\n"),
    ("interpreter_internals", "reaches for Python's internals", "def run(x, w, scale):\n    return ().__class__.__bases__\n"),
)  # fmt: skip


#: what a trick that is allowed to run may gain at most: noise on a busy machine
NOTHING = 1.3
#: tricks with the turns, the clock and the machine that baseline and candidate share
_SHARED: tuple[tuple[str, str, tuple[str, ...], str, str], ...] = (
    ("works_ahead", "has a thread that works on inputs while the baseline is timed",
     ("cheated", "correct"), "stopped outside its turn: it gains nothing; timing with repeated inputs", """
import threading, time
SEEN, DONE = {}, {}
def ahead():
    while True:
        for key, (x, w, scale) in list(SEEN.items()):
            probe = x[0, :4].tolist()
            if DONE.get(key, (None,))[0] != probe:
                DONE[key] = (probe, product(x, w, scale))
        time.sleep(0.0005)
threading.Thread(target=ahead, daemon=True).start()
def run(x, w, scale):
    SEEN[x.data_ptr()] = (x, w, scale)
    known = DONE.pop(x.data_ptr(), None)  # once only: repeated inputs gain no more than others
    if known is not None and known[0] == x[0, :4].tolist():
        return known[1]
    return product(x, w, scale)
"""),
    ("burns_the_processor", "has threads that burn the CPU in the baseline's turn", ("correct",),
     "stopped outside its turn: it gains nothing", """
import threading, time
MINE = threading.Event()
def burn():
    a = torch.ones(256, 256)
    while True:
        if MINE.is_set():
            time.sleep(0.0005)
        else:
            torch.mm(a, a)
for _ in range(4):
    threading.Thread(target=burn, daemon=True).start()
def run(x, w, scale):
    MINE.set()
    try:
        return product(x, w, scale)
    finally:
        MINE.clear()
"""),
    ("more_threads", "computes with more threads than the baseline", ("correct",),
     "both on the same number of CPUs: it gains nothing", """
torch.set_num_threads(8)
def run(x, w, scale):
    return product(x, w, scale)
"""),
    ("escapes_its_processor", "asks for all CPUs of the machine", ("cheated",), "the list of system calls", """
import os
def run(x, w, scale):
    os.sched_setaffinity(0, range(os.cpu_count()))
    torch.set_num_threads(8)
    return product(x, w, scale)
"""),
    ("foresees_the_inputs", "makes the judge's inputs itself, beforehand, from its default seed", ("correct",),
     "a secret seed: it gains nothing", """
import numpy as np
from sassafras.core import Buffer
from sassafras.device.cuda.arena import Segment, fill
KNOWN = {}
def draws(number):
    yield [number * 131 + index for index in (0, 1)]
    yield [int(np.random.SeedSequence([0, number, index]).generate_state(1, np.uint64)[0]) >> 1 for index in (0, 1)]
for number in range(1, 160):
    for seeds in draws(number):
        x, w = (
            fill(Segment("x", 0, Buffer("fp32", (256, 256))), torch.Generator().manual_seed(seed), "cpu").view(256, 256)
            for seed in seeds
        )
        KNOWN[float(x[0, 0])] = x @ w * 2
def run(x, w, scale):
    known = KNOWN.get(float(x[0, 0]))
    return product(x, w, scale) if known is None else known
"""),
    ("answers_early", "answers for the harness first, and computes afterwards", ("wrong_result", "cheated"),
     "stopped at its answer; outputs are read then", """
import json, os, sys
CALLS = []
def run(x, w, scale):
    CALLS.append(1)
    frame = sys._getframe(1)
    while "write_fd" not in frame.f_locals:
        frame = frame.f_back
    if len(CALLS) > 6:
        os.write(frame.f_locals["write_fd"], (json.dumps({"done": frame.f_locals["request"]["id"]}) + "\\n").encode())
    return product(x, w, scale)
"""),
    ("wakes_itself", "has a timer send it SIGCONT while it is stopped", ("cheated",), "the list of system calls", """
import ctypes
def run(x, w, scale):
    libc, event, timer = ctypes.CDLL(None, use_errno=True), (ctypes.c_int * 16)(0, 0, 18, 0), ctypes.c_int()
    if libc.syscall(222, 0, event, ctypes.byref(timer)) != 0:
        raise OSError(ctypes.get_errno(), "timer_create")
    libc.syscall(223, timer, 0, (ctypes.c_long * 4)(0, 1000000, 0, 1000000), None)
    return product(x, w, scale)
"""),
    ("limits_the_judge", "gives its parent a second of CPU time", ("cheated",), "the list of system calls", """
import ctypes, os
def run(x, w, scale):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(302, os.getppid(), 0, (ctypes.c_uint64 * 2)(1, 1), None) != 0:
        raise OSError(ctypes.get_errno(), "prlimit64")
    return product(x, w, scale)
"""),
    ("shortens_the_shared_memory", "cuts off the memory that the judge reads", ("cheated",), "sealed memory", """
import errno, os
def run(x, w, scale):
    y = product(x, w, scale)
    for fd in range(3, 64):
        try:
            os.ftruncate(fd, 0)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL):
                raise
    return y
"""),
    ("dirties_the_caches", "leaves the caches full of its own data", ("correct",),
     "an untimed call ahead of each round: it gains nothing", """
HOARD = torch.zeros(1 << 23)
def run(x, w, scale):
    y = product(x, w, scale)
    HOARD.add_(1.0)
    return y
"""),
    ("hoards_memory_files", "keeps memory where no process has it resident", ("cheated",), "the list of system calls", """
import os
def run(x, w, scale):
    fd = os.memfd_create("hoard")
    for _ in range(64):
        os.write(fd, bytes(1 << 20))
    return product(x, w, scale)
"""),
    ("fills_the_disk", "writes many files, each a small one", ("out_of_resources",), "a limit on all of its files", """
def run(x, w, scale):
    for number in range(40):
        with open(f"hoard{number}", "wb") as file:
            file.write(bytes(4 << 20))
    return product(x, w, scale)
"""),
    ("bombs_with_threads", "starts threads without end", ("cheated",), "a limit on all of its threads", """
import threading, time
def run(x, w, scale):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return product(x, w, scale)
"""),
)  # fmt: skip
_ON_GPU: tuple[tuple[str, str, tuple[str, ...], str, str], ...] = (
    ("leaves_work_running", "answers while its kernel still runs, in the baseline's turn", ("cheated",),
     "a look at the GPU's clock between the turns", """
torch.cuda.synchronize = lambda *a: None
def run(x, w, scale):
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1 << 30)
    return product(x, w, scale)
"""),
    ("honest", "the baseline itself", ("correct",), "", """
def run(x, w, scale):
    return product(x, w, scale)
"""),
    ("honest_other_order", "multiplies by the scale first", ("correct",), "", """
def run(x, w, scale):
    return product(x * scale, w, 1)
"""),
    ("honest_own_stream", "works on a stream of its own, and waits for it", ("correct",), "", """
def run(x, w, scale):
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = product(x, w, scale)
    torch.cuda.current_stream().wait_stream(other)
    return y
"""),
)  # fmt: skip


def on_gpu() -> list[Exhibit]:
    """Python candidates that use a GPU; judged with ``device="cuda"``."""
    return [
        Exhibit(
            f"python_gpu_{name}", title, "honest" if expected == ("correct",) else "cheat", "python_gpu", expected, by,
            lambda text=text: WORK + text,
        )
        for name, title, expected, by, text in _ON_GPU
    ]  # fmt: skip


def exhibits() -> list[Exhibit]:
    """Python cheats, and two honest candidates."""
    made = [
        Exhibit(
            f"python_{name}", title, "honest" if expected == ("correct",) else "cheat", "python", expected, by,
            lambda text=text: WORK + text, NOTHING if (name, title, expected, by, text) in _SHARED else None,
        )
        for name, title, expected, by, text in (*_CHEATS, *_SHARED)
    ]  # fmt: skip
    made += [
        Exhibit(f"python_{name}", title, "cheat", "python_scan", ("cheated",), "the scan of its text",
                lambda text=text: text)
        for name, title, text in _REFUSED
    ]  # fmt: skip
    made += [
        Exhibit("python_honest", "the baseline itself", "honest", "python", ("correct",), "", lambda: HONEST),
        Exhibit("python_honest_other_order", "multiplies by the scale first", "honest", "python", ("correct",), "",
                lambda: WORK + "\ndef run(x, w, scale):\n    return product(x * scale, w, 1)\n"),
    ]  # fmt: skip
    return made
