"""Python candidates in confined processes on the CPU: honest ones pass, cheats do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from sassafras.core import Buffer, Case, DeviceError, Tolerance, Verdict, Workload
from sassafras.evaluate.host import HostEvaluator, HostSource
from sassafras.evaluate.host.process import Lost, _read
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
            "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'5\\n')\n"
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


@pytest.mark.parametrize("line", [b"5", b"null", b"[1]", b"\xff", b"{", b"[" * 200_000])
def test_an_answer_that_is_no_object_is_the_candidates(line: bytes) -> None:
    with pytest.raises(Lost, match="writes into the harness's pipe") as caught:
        _read(line)
    assert caught.value.verdict is Verdict.CHEATED


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
