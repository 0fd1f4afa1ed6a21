"""Tricks of Python candidates with the turns, the clock and the machine that they share with the baseline."""

from __future__ import annotations

#: what a trick that is allowed to run may gain at most: noise on a busy machine
NOTHING = 1.3
#: tricks with the turns, the clock and the machine that baseline and candidate share
SHARED: tuple[tuple[str, str, tuple[str, ...], str, str], ...] = (
    (
        "works_ahead",
        "has a thread that works on inputs while the baseline is timed",
        ("cheated", "correct"),
        "stopped outside its turn: it gains nothing; timing with repeated inputs",
        """
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
""",
    ),
    (
        "burns_the_processor",
        "has threads that burn the CPU in the baseline's turn",
        ("correct",),
        "stopped outside its turn: it gains nothing",
        """
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
""",
    ),
    (
        "more_threads",
        "computes with more threads than the baseline",
        ("correct",),
        "both on the same number of CPUs: it gains nothing",
        """
torch.set_num_threads(8)
def run(x, w, scale):
    return product(x, w, scale)
""",
    ),
    (
        "escapes_its_processor",
        "asks for all CPUs of the machine",
        ("cheated",),
        "the list of system calls",
        """
import os
def run(x, w, scale):
    os.sched_setaffinity(0, range(os.cpu_count()))
    torch.set_num_threads(8)
    return product(x, w, scale)
""",
    ),
    (
        "foresees_the_inputs",
        "makes the judge's inputs itself, beforehand, from its default seed",
        ("correct",),
        "a secret seed: it gains nothing",
        """
import numpy as np
from sassafras.core import Buffer
from sassafras.evaluate.gpu.guarded_buffers import Segment, fill
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
""",
    ),
    (
        "answers_early",
        "answers for the harness first, and computes afterwards",
        ("wrong_result", "cheated"),
        "stopped at its answer; outputs are read then",
        """
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
""",
    ),
    (
        "wakes_itself",
        "has a timer send it SIGCONT while it is stopped",
        ("cheated",),
        "the list of system calls",
        """
import ctypes
def run(x, w, scale):
    libc, event, timer = ctypes.CDLL(None, use_errno=True), (ctypes.c_int * 16)(0, 0, 18, 0), ctypes.c_int()
    if libc.syscall(222, 0, event, ctypes.byref(timer)) != 0:
        raise OSError(ctypes.get_errno(), "timer_create")
    libc.syscall(223, timer, 0, (ctypes.c_long * 4)(0, 1000000, 0, 1000000), None)
    return product(x, w, scale)
""",
    ),
    (
        "limits_the_judge",
        "gives its parent a second of CPU time",
        ("cheated",),
        "the list of system calls",
        """
import ctypes, os
def run(x, w, scale):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(302, os.getppid(), 0, (ctypes.c_uint64 * 2)(1, 1), None) != 0:
        raise OSError(ctypes.get_errno(), "prlimit64")
    return product(x, w, scale)
""",
    ),
    (
        "shortens_the_shared_memory",
        "cuts off the memory that the judge reads",
        ("cheated",),
        "sealed memory",
        """
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
""",
    ),
    (
        "dirties_the_caches",
        "leaves the caches full of its own data",
        ("correct",),
        "an untimed call ahead of each round: it gains nothing",
        """
HOARD = torch.zeros(1 << 23)
def run(x, w, scale):
    y = product(x, w, scale)
    HOARD.add_(1.0)
    return y
""",
    ),
    (
        "hoards_memory_files",
        "keeps memory where no process has it resident",
        ("cheated",),
        "the list of system calls",
        """
import os
def run(x, w, scale):
    fd = os.memfd_create("hoard")
    for _ in range(64):
        os.write(fd, bytes(1 << 20))
    return product(x, w, scale)
""",
    ),
    (
        "fills_the_disk",
        "writes many files, each a small one",
        ("out_of_resources",),
        "a limit on all of its files",
        """
def run(x, w, scale):
    for number in range(40):
        with open(f"hoard{number}", "wb") as file:
            file.write(bytes(4 << 20))
    return product(x, w, scale)
""",
    ),
    (
        "bombs_with_threads",
        "starts threads without end",
        ("cheated",),
        "a limit on all of its threads",
        """
import threading, time
def run(x, w, scale):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return product(x, w, scale)
""",
    ),
)
ON_GPU: tuple[tuple[str, str, tuple[str, ...], str, str], ...] = (
    (
        "leaves_work_running",
        "answers while its kernel still runs, in the baseline's turn",
        ("cheated",),
        "a look at the GPU's clock between the turns",
        """
torch.cuda.synchronize = lambda *a: None
def run(x, w, scale):
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1 << 30)
    return product(x, w, scale)
""",
    ),
    (
        "honest",
        "the baseline itself",
        ("correct",),
        "",
        """
def run(x, w, scale):
    return product(x, w, scale)
""",
    ),
    (
        "honest_other_order",
        "multiplies by the scale first",
        ("correct",),
        "",
        """
def run(x, w, scale):
    return product(x * scale, w, 1)
""",
    ),
    (
        "honest_own_stream",
        "works on a stream of its own, and waits for it",
        ("correct",),
        "",
        """
def run(x, w, scale):
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = product(x, w, scale)
    torch.cuda.current_stream().wait_stream(other)
    return y
""",
    ),
)
