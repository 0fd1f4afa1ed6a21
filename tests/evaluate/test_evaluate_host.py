"""Python candidates in confined processes on the CPU: honest ones pass, cheats do not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from sassafras.core import Buffer, Case, DeviceError, Tolerance, Verdict, Workload
from sassafras.evaluate.gpu.device import first_seed
from sassafras.evaluate.host import HostEvaluator, HostSource
from sassafras.evaluate.host.process import HostProcess, Lost, _raised, _read
from sassafras.evaluate.host.session import HostSession
from sassafras.evaluate.roofline import H200, floor_us, impossible, traffic
from sassafras.evaluate.sandbox.confine import landlock_version

needs_fences = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
N = 256
CASE = Case(
    "256", (1, 1, 1),
    {
        "y": Buffer("fp32", (N, N), "out"), "x": Buffer("fp32", (N, N)), "w": Buffer("fp32", (N, N)),
        "scale": 2,
    },
)  # fmt: skip


def _reference(tensors: dict) -> dict:
    return {"y": tensors["x"].double() @ tensors["w"].double() * tensors["scale"]}


WORKLOAD = Workload("product", (CASE,), lambda *_: None, _reference, Tolerance(1e-3, 1e-2))  # type: ignore[arg-type, return-value]
#: slow enough (tens of milliseconds) that skipping it shows beside the noise of a busy machine
HONEST = """
import torch

def run(x, w, scale):
    for _ in range(60):
        y = torch.mm(x, w)
    return y * scale
"""
SKIPS_WHEN_UNCHANGED = HONEST.replace(
    "def run(x, w, scale):",
    """LAST = [None, None]
def run(x, w, scale):
    probe = x[0, :4].tolist() + w[0, :4].tolist()
    if LAST[0] != probe:
        LAST[:] = [probe, product(x, w, scale)]
    return LAST[1]

def product(x, w, scale):""",
)


@pytest.fixture(scope="module")
def judge() -> Iterator[HostEvaluator]:
    with HostEvaluator(WORKLOAD, CASE, HostSource(HONEST), scan=False, rounds=4, call_s=60.0) as made:
        yield made


@needs_fences
@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        (HONEST.replace("torch.mm(x, w)", "x.matmul(w)"), Verdict.CORRECT, ""),
        (SKIPS_WHEN_UNCHANGED, Verdict.CHEATED, "repeated inputs"),
        (
            "KNOWN = {}\ndef run(x, w, scale):\n    key = (x.data_ptr(), w.data_ptr())\n"
            "    if key not in KNOWN:\n        KNOWN[key] = x @ w * scale\n    return KNOWN[key]\n",
            Verdict.CHEATED,
            "earlier inputs",
        ),
        (
            "import time, torch\ntime.perf_counter = time.monotonic = lambda: 0.0\n"
            "torch.equal = torch.allclose = lambda *a, **k: True\n"
            "def run(x, w, scale):\n    return x @ w * scale * 1.01\n",
            Verdict.WRONG_RESULT,
            "elements of y differ",
        ),
        (
            "def run(x, w, scale):\n    return open('/etc/shadow').read()\n",
            Verdict.CHEATED,
            "not allowed",
        ),
        (
            "import os\nfor fd in range(3, 1024):\n    try:\n        os.write(fd, b'5\\n')\n"
            "    except OSError:\n        pass\ndef run(x, w, scale):\n    return x @ w * scale\n",
            Verdict.CHEATED,
            "writes into the harness's pipe",
        ),
    ],
    ids=[
        "honest", "skips when unchanged", "cache by address", "patched timers and torch", "reads a file",
        "writes into the pipe",
    ],
)  # fmt: skip
def test_python_candidates_get_their_verdicts(
    judge: HostEvaluator, text: str, verdict: Verdict, words: str
) -> None:
    outcome = judge.evaluate(HostSource(text))
    assert outcome.verdict is verdict, outcome.detail
    assert words in outcome.detail
    if verdict.ok:
        assert outcome.speedup is not None
        assert outcome.samples > 20
    else:
        assert outcome.speedup is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\ndef run(x, w, scale):\n    return x\n", "imports 'os'"),
        ("import torch\ntorch.equal = None\ndef run(x, w, scale):\n    return x\n", "patches torch.equal"),
        ("import torch\ndef run(x, w, scale):\n    return torch.matmul(x, w)\n", "library"),
        ("import torch\ns = torch.cuda.Stream()\n", "streams"),
        ("import torch\ng = torch.cuda.CUDAGraph()\n", "graphs"),
        ("import threading\n", "imports 'threading'"),
    ],
)
def test_the_scan_refuses_without_running_anything(text: str, words: str) -> None:
    judge = HostEvaluator(WORKLOAD, CASE, HostSource(HONEST))
    outcome = judge.evaluate(HostSource(text))
    assert outcome.verdict is Verdict.CHEATED
    assert words in outcome.detail
    assert judge._standing is None


BURNS = (
    HONEST
    + """
import threading
def burn():
    while True:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
for _ in range(3):
    threading.Thread(target=burn, daemon=True).start()
"""
)


@pytest.fixture(scope="module")
def burner(judge: HostEvaluator) -> Iterator[HostProcess]:
    process = judge._process(HostSource(BURNS))
    process.ready()
    yield process
    process.close()


def _processor_seconds(process: HostProcess) -> float:
    """By the kernel's own count of clock ticks, ended threads included."""
    (pid,) = process.process.members()
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@needs_fences
def test_threads_stand_still_outside_their_turn(burner: HostProcess) -> None:
    """Neither burning the CPU nor working ahead is possible while the baseline is timed."""
    before = _processor_seconds(burner)
    time.sleep(0.5)
    assert _processor_seconds(burner) == before
    assert burner.still()
    burner.ask(0)
    assert burner.threads >= 4
    assert _processor_seconds(burner) > before
    after = _processor_seconds(burner)
    time.sleep(0.3)
    assert _processor_seconds(burner) == after


@needs_fences
def test_one_that_does_not_stop_is_lost_and_takes_no_core_from_others(
    burner: HostProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burner, "_pids", [os.getpid()])  # it runs whenever it is looked at
    monkeypatch.setattr("sassafras.evaluate.host.process.STOP_S", 1.0)
    before = time.process_time()
    with pytest.raises(Lost, match="did not stop within 1 s") as caught:
        burner._stop()
    assert caught.value.verdict is Verdict.TIMED_OUT
    assert time.process_time() - before < 0.5


@needs_fences
def test_who_ran_outside_its_turn_is_lost(burner: HostProcess) -> None:
    burner.process.signal(signal.SIGCONT)
    time.sleep(0.2)
    burner.process.signal(signal.SIGSTOP)
    time.sleep(0.2)
    with pytest.raises(Lost, match="outside its turn") as caught:
        burner.ask(0)
    assert caught.value.verdict is Verdict.CHEATED


@needs_fences
def test_both_run_on_as_many_processors_and_cannot_ask_for_more(judge: HostEvaluator) -> None:
    assert len(judge.confinement.cpus) == 1
    text = HONEST.replace("    for _", "    os.sched_setaffinity(0, range(64))\n    for _")
    outcome = judge.evaluate(HostSource("import os\n" + text))
    assert outcome.verdict is Verdict.CHEATED
    assert "not allowed" in outcome.detail


@needs_fences
def test_the_shared_memory_cannot_be_cut_off(judge: HostEvaluator) -> None:
    text = "import os\nfor fd in range(3, 1024):\n    try:\n        os.ftruncate(fd, 0)\n"
    text += "    except OSError as error:\n        if error.errno == 1:\n            raise\n"
    process = judge._process(HostSource(text + HONEST))
    try:
        with pytest.raises(Lost, match="not allowed"):
            process.ready()
        assert process.memory[:1] == b"\0"  # no SIGBUS
    finally:
        process.close()


def test_inputs_differ_from_candidate_to_candidate(judge: HostEvaluator) -> None:
    """Else a candidate could make them itself, ahead of time, from the default seed."""
    first, second = (HostSession(judge.task, None, None) for _ in range(2))  # type: ignore[arg-type]
    first._fresh([0])
    second._fresh([0])
    assert not np.array_equal(first._written[0]["x"], second._written[0]["x"])
    assert first_seed(bitwise=True) == 0
    assert first_seed(bitwise=False) != first_seed(bitwise=False)


@pytest.mark.parametrize("line", [b"5", b"null", b"[1]", b"\xff", b"{", b"[" * 200_000])
def test_an_answer_that_is_no_object_is_the_candidates(line: bytes) -> None:
    with pytest.raises(Lost, match="writes into the harness's pipe") as caught:
        _read(line)
    assert caught.value.verdict is Verdict.CHEATED


def test_an_error_can_be_stored_whatever_it_says() -> None:
    """Half of a surrogate pair in a candidate's exception ended the judgement in the store."""
    lost = _raised(_read(b'{"error": "ValueError: \\ud800", "kind": "raised"}'))
    assert (lost.verdict, str(lost)) == (Verdict.CRASHED, "ValueError: \\ud800")


def test_a_workload_without_a_reference_is_refused() -> None:
    bare = Workload("bare", (CASE,), lambda case, arch: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(DeviceError, match="reference"):
        HostEvaluator(bare, CASE, HostSource(HONEST))


def test_the_roofline_counts_outputs_always_and_inputs_beyond_the_l2() -> None:
    case = Case("c", (1, 1, 1), {"y": Buffer("fp32", (1 << 20,), "out"), "x": Buffer("fp32", (1 << 28,))})
    assert traffic(case) == (1 << 22, 1 << 30)
    small = Case("s", (1, 1, 1), {"y": Buffer("fp32", (1 << 20,), "out"), "x": Buffer("fp32", (16,))})
    # 4 MiB at 132 x 64 bytes a clock of 1980 MHz
    assert floor_us(small) == pytest.approx((1 << 22) / (132 * 64 * 1980))
    beyond = (1 << 22) + (1 << 29) - (50 << 20)
    assert floor_us(case) == pytest.approx(1e6 * beyond / H200.dram_bytes_s)
    assert floor_us(small, flops=2 * 4096**3) > 100
    assert impossible(0.1, small, {}).startswith("0.100 us a launch is faster")
    assert impossible(1.0, small, {}) == ""
    assert impossible(1.0, small, {"flops": {"s": 2 * 4096**3}})
