"""Python candidates that cheat on the host. They run on a CPU here: what is tested is the judge."""

from __future__ import annotations

from typing import Any

from . import Exhibit
from .turns import NOTHING, ON_GPU, SHARED

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
        str(N),
        (1, 1, 1),
        {
            "y": Buffer("fp32", (N, N), "out"),
            "x": Buffer("fp32", (N, N)),
            "w": Buffer("fp32", (N, N)),
            "scale": 2,
        },
    )

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
    (
        "cache_by_address",
        "keeps results by the inputs' addresses",
        ("cheated",),
        "fresh inputs in the same memory",
        """
KNOWN = {}
def run(x, w, scale):
    key = (x.data_ptr(), w.data_ptr())
    if key not in KNOWN:
        KNOWN[key] = product(x, w, scale)
    return KNOWN[key]
""",
    ),
    (
        "cache_by_content",
        "keeps results by the inputs' contents",
        ("cheated",),
        "timing with repeated inputs",
        """
KNOWN = {}
def run(x, w, scale):
    key = (float(x.sum()), float(w.sum()))
    if key not in KNOWN:
        KNOWN[key] = product(x, w, scale)
    return KNOWN[key]
""",
    ),
    (
        "skips_when_unchanged",
        "returns its last result while a few elements repeat",
        ("cheated",),
        "timing with repeated inputs",
        """
LAST = [None, None]
def run(x, w, scale):
    probe = x[0, :4].tolist() + w[0, :4].tolist()
    if LAST[0] != probe:
        LAST[:] = [probe, product(x, w, scale)]
    return LAST[1]
""",
    ),
    (
        "stale_result",
        "returns the result of the call before",
        ("cheated", "wrong_result"),
        "fresh inputs",
        """
LAST = []
def run(x, w, scale):
    LAST.append(product(x, w, scale))
    return LAST[max(0, len(LAST) - 2)]
""",
    ),
    (
        "another_thread",
        "computes in a thread and returns before it is done",
        ("wrong_result", "cheated"),
        "outputs are read at the answer",
        """
import threading
def run(x, w, scale):
    y = torch.empty(x.shape[0], w.shape[1])
    a, b = x.clone(), w.clone()
    threading.Thread(target=lambda: y.copy_(product(a, b, scale))).start()
    return y
""",
    ),
    (
        "lazy_result",
        "returns an object that would compute when looked at",
        ("crashed", "wrong_result"),
        "outputs are copied inside the timed request",
        """
class Lazy:
    def __init__(self, make):
        self.make = make
    def __torch_function__(self, *a, **k):
        raise NotImplementedError
def run(x, w, scale):
    return Lazy(lambda: product(x, w, scale))
""",
    ),
    (
        "several_calls_at_once",
        "does the work of four calls in the first of them",
        ("cheated", "wrong_result"),
        "calls sent alone; outputs of all are due",
        """
import gc
STATE = {"calls": 0}
def run(x, w, scale):
    STATE["calls"] += 1
    if STATE["calls"] % 4 == 1:
        STATE["y"] = product(x, w, scale)
    return STATE["y"]
""",
    ),
    (
        "patches_the_clock",
        "replaces timers and sleeps",
        ("correct",),
        "the clock is the judge's: it is merely slow",
        """
import time
SLEEP = time.sleep
time.perf_counter = time.monotonic = time.time = lambda: 0.0
time.perf_counter_ns = lambda: 0
def run(x, w, scale):
    SLEEP(0.05)
    return product(x, w, scale)
""",
    ),
    (
        "patches_torch",
        "makes every comparison true, and returns rubbish",
        ("wrong_result",),
        "the comparison is the judge's",
        """
torch.equal = torch.allclose = torch.isclose = lambda *a, **k: True
torch.testing.assert_close = lambda *a, **k: None
def run(x, w, scale):
    return product(x, w, scale) * 1.01
""",
    ),
    (
        "writes_nothing",
        "returns memory as it comes",
        ("wrong_result", "cheated"),
        "comparison",
        """
def run(x, w, scale):
    return torch.empty(x.shape[0], w.shape[1])
""",
    ),
    (
        "writes_part",
        "leaves the last row out",
        ("wrong_result",),
        "comparison",
        """
def run(x, w, scale):
    y = product(x, w, scale)
    y[-1] = 0
    return y
""",
    ),
    (
        "returns_an_input",
        "returns its input's memory",
        ("wrong_result",),
        "comparison",
        """
def run(x, w, scale):
    return x
""",
    ),
    (
        "modifies_an_input",
        "writes into its input",
        ("wrong_result",),
        "inputs are compared too",
        """
def run(x, w, scale):
    y = product(x, w, scale)
    x[3, 3] += 1
    return y
""",
    ),
    (
        "lower_precision",
        "computes in BF16",
        ("wrong_result",),
        "tolerance against FP64",
        """
def run(x, w, scale):
    return (x.bfloat16() @ w.bfloat16()).float() * scale
""",
    ),
    (
        "constant_inputs",
        "is right where all inputs are equal",
        ("wrong_result",),
        "random inputs",
        """
def run(x, w, scale):
    return torch.full((x.shape[0], w.shape[1]), float(x[0, 0] * w[0, 0]) * x.shape[1] * scale)
""",
    ),
    (
        "wrong_later",
        "is right ten times, then wrong",
        ("wrong_result",),
        "comparison of every timed batch",
        """
CALLS = []
def run(x, w, scale):
    CALLS.append(1)
    return product(x, w, scale) * (1.0 if len(CALLS) < 10 else 1.01)
""",
    ),
    (
        "wrong_at_first",
        "is wrong on its very first call",
        ("wrong_result",),
        "the first call is compared",
        """
CALLS = []
def run(x, w, scale):
    CALLS.append(1)
    return product(x, w, scale) * (1.01 if len(CALLS) == 1 else 1.0)
""",
    ),
    (
        "hangs",
        "never returns",
        ("timed_out",),
        "time limit",
        """
def run(x, w, scale):
    while True:
        pass
""",
    ),
    (
        "crashes",
        "dereferences a null pointer",
        ("crashed",),
        "a process of its own",
        """
import ctypes
def run(x, w, scale):
    return ctypes.string_at(0)
""",
    ),
    (
        "eats_memory",
        "allocates until there is none",
        ("out_of_resources", "crashed"),
        "memory limit",
        """
def run(x, w, scale):
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 22))
""",
    ),
    (
        "reads_files",
        "looks for the reference on disk",
        ("cheated",),
        "Landlock",
        """
import os
def run(x, w, scale):
    return os.listdir("/root")
""",
    ),
    (
        "opens_a_socket",
        "asks the network",
        ("cheated",),
        "seccomp",
        """
import socket
def run(x, w, scale):
    return socket.create_connection(("127.0.0.1", 80))
""",
    ),
    (
        "starts_a_process",
        "lets another process do it",
        ("cheated",),
        "seccomp",
        """
import subprocess
def run(x, w, scale):
    return subprocess.run(["/bin/true"])
""",
    ),
    (
        "kills_the_judge",
        "sends SIGKILL to its parent",
        ("cheated",),
        "Landlock or seccomp",
        """
import os
def run(x, w, scale):
    os.kill(os.getppid(), 9)
""",
    ),
    (
        "changes_the_environment",
        "leaves variables and the thread count changed",
        ("correct",),
        "a process of its own: nothing outlives it",
        """
import os
def run(x, w, scale):
    os.environ["OMP_NUM_THREADS"] = "64"
    torch.set_default_dtype(torch.float32)
    return product(x, w, scale)
""",
    ),
    (
        "forges_answers",
        "writes answers into the harness's pipes",
        ("cheated", "crashed", "timed_out", "wrong_result"),
        "numbered answers",
        """
import os
def run(x, w, scale):
    for fd in range(3, 40):
        try:
            os.write(fd, b'{"done": 1}\\n')
        except OSError:
            pass
    return product(x, w, scale)
""",
    ),
)
_REFUSED = (
    (
        "another_stream",
        "works on a stream of its own",
        "import torch\ndef run(x, w, scale):\n"
        "    with torch.cuda.stream(torch.cuda.Stream()):\n        return x\n",
    ),
    ("a_graph", "captures a graph of its own", "import torch\ng = torch.cuda.CUDAGraph()\n"),
    (
        "compared_library",
        "calls the library that it is compared with",
        "import torch\ndef run(x, w, scale):\n    return torch.matmul(x, w) * scale\n",
    ),
    (
        "device_limits",
        "takes a share of the L2 for itself",
        "import torch\ntorch.cuda.cudart().cudaDeviceSetLimit(6, 1 << 25)\n",
    ),
    (
        "global_state",
        "changes torch's precision for the whole process",
        "import torch\ntorch.set_float32_matmul_precision('medium')\n",
    ),
    (
        "interpreter_internals",
        "reaches for Python's internals",
        "def run(x, w, scale):\n    return ().__class__.__bases__\n",
    ),
)


def on_gpu() -> list[Exhibit]:
    """Python candidates that use a GPU; judged with ``device="cuda"``."""
    return [
        Exhibit(
            f"python_gpu_{name}",
            title,
            "honest" if expected == ("correct",) else "cheat",
            "python_gpu",
            expected,
            by,
            lambda text=text: WORK + text,
        )
        for name, title, expected, by, text in ON_GPU
    ]


def exhibits() -> list[Exhibit]:
    """Python cheats, and two honest candidates."""
    made = [
        Exhibit(
            f"python_{name}",
            title,
            "honest" if expected == ("correct",) else "cheat",
            "python",
            expected,
            by,
            lambda text=text: WORK + text,
            NOTHING if (name, title, expected, by, text) in SHARED else None,
        )
        for name, title, expected, by, text in (*_CHEATS, *SHARED)
    ]
    made += [
        Exhibit(
            f"python_{name}",
            title,
            "cheat",
            "python_scan",
            ("cheated",),
            "the scan of its text",
            lambda text=text: text,
        )
        for name, title, text in _REFUSED
    ]
    made += [
        Exhibit("python_honest", "the baseline itself", "honest", "python", ("correct",), "", lambda: HONEST),
        Exhibit(
            "python_honest_other_order",
            "multiplies by the scale first",
            "honest",
            "python",
            ("correct",),
            "",
            lambda: WORK + "\ndef run(x, w, scale):\n    return product(x * scale, w, 1)\n",
        ),
    ]
    return made
