"""Source candidates: built for real in confinement; every way to fail has its verdict."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sassafras.core import Buffer, Candidate, Case, Evaluation, Kernel, Tolerance, Verdict, Workload
from sassafras.evaluate import Confinement, Source, SourceEvaluator
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.evaluate.source import Built, build
from sassafras.evaluate.source.building import case_to_json

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")

N = 1_000_000
CASE = Case("1M", (3907, 1, 1), {"y": Buffer("fp32", (N,), "out"), "x": Buffer("fp32", (N,)), "n": N})
CUDA = """
extern "C" __global__ void affine(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i] + 1;
}
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def affine(y, x, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o, mask=o < n) + 1, mask=o < n)
"""


#: generous: on a busy machine Triton alone may take many seconds to start
PATIENT = Confinement(wall_s=250.0, cpu_s=250)


def triton(text: str, confinement: Confinement = PATIENT) -> Built:
    source = Source("triton", text, constants={"BLOCK": 1024}, grid=(977, 1, 1))
    return build(source, CASE, "sm_90a", confinement=confinement)


def test_triton_source_becomes_a_kernel_with_its_launch_facts() -> None:
    built = triton(TRITON)
    assert built.verdict is None, built.detail
    assert built.kernel is not None
    assert built.kernel.name == "affine"
    assert built.kernel.arch == "sm_90a"
    assert built.kernel.threads == 128
    assert built.kernel.parameters == (("y", "*fp32"), ("x", "*fp32"), ("n", "i32"))
    assert built.kernel.meta["grid"] == [977, 1, 1]
    assert built.kernel.cubin[:4] == b"\x7fELF"
    assert set(built.facts.get("not_fenced", ())) <= {
        "network",
        "ipc",
        "pids",
    }  # where namespaces are forbidden


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        (TRITON.replace("tl.program_id(0)", "undefined_name"), Verdict.COMPILE_ERROR, "undefined_name"),
        (TRITON.replace("tl.arange", "tl.no_such"), Verdict.COMPILE_ERROR, "no_such"),
        ("import triton\n", Verdict.COMPILE_ERROR, "0 @triton.jit functions"),
        ("import socket\n" + TRITON, Verdict.CHEATED, "imports 'socket'"),
        (TRITON + "\nraise SystemExit(0)\n", Verdict.COMPILE_ERROR, "SystemExit"),
    ],
)
def test_triton_source_that_does_not_build_has_a_verdict(text: str, verdict: Verdict, words: str) -> None:
    built = triton(text)
    assert built.kernel is None
    assert built.verdict is verdict, built.detail
    assert words in built.detail


def test_an_endless_module_and_a_hungry_one_are_stopped() -> None:
    built = triton(TRITON + "\nwhile True:\n    pass\n", confinement=Confinement(wall_s=6.0))
    assert built.verdict is Verdict.TIMED_OUT
    hungry = TRITON + "\nhoard = []\nwhile True:\n    hoard.append(bytearray(b'1' * (1 << 24)))\n"
    built = triton(hungry, confinement=Confinement(wall_s=250.0, cpu_s=250, resident_bytes=1 << 30))
    assert built.verdict is Verdict.OUT_OF_RESOURCES, built.detail


ATTACKS = {
    "list": "import os; os.listdir(HOME)",
    "read": "open(HOME + '/secret').read()",
    "write": "open(HOME + '/file', 'w')",
    "socket": "import socket; socket.socket()",
    "fork": "import os; os.fork()",
    "run": "import subprocess; subprocess.run(['/bin/echo', 'ran'])",
    "kill": "import os; os.kill(os.getppid(), 9)",
}


def test_what_a_scan_would_miss_is_contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the scan switched off: the confined process itself refuses."""
    monkeypatch.setattr("sassafras.evaluate.source.building.scan_python", lambda text: None)
    (tmp_path / "secret").write_text("s3cret")
    attempts = (
        f"HOME = {str(tmp_path)!r}\nfor name, attack in {ATTACKS!r}.items():\n"
        "    try:\n        exec(attack)\n"
        "        print(name, 'got through')\n    except OSError as error:\n        print(name, 'refused')\n"
        "raise SystemExit\n"
    )
    built = triton(attempts + TRITON)
    assert built.verdict is Verdict.COMPILE_ERROR
    for name in ATTACKS:
        assert f"{name} refused" in built.detail, built.detail
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


@needs_nvcc
def test_cuda_source_becomes_a_kernel_with_its_launch_facts() -> None:
    built = build(Source("cuda", CUDA, threads=256), CASE, "sm_90a", confinement=PATIENT)
    assert built.verdict is None, built.detail
    assert built.kernel is not None
    assert (built.kernel.name, built.kernel.threads) == ("affine", 256)
    assert built.kernel.parameters == (("y", "*fp32"), ("x", "*fp32"), ("n", "i32"))


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "verdict", "words"),
    [
        (Source("cuda", CUDA.replace("2 * x", "2 * z")), Verdict.COMPILE_ERROR, '"z" is undefined'),
        (Source("cuda", CUDA, entry="other"), Verdict.UNSUPPORTED, "other"),
        (Source("cuda", CUDA.replace("int n", "int n, int m")), Verdict.UNSUPPORTED, "4 parameters"),
        (Source("cuda", CUDA, flags=("-include=/etc/passwd",)), Verdict.UNSUPPORTED, "flag"),
        (Source("cuda", CUDA, constants={"A": "1\n#include </etc/passwd>"}), Verdict.UNSUPPORTED, "macro"),
        (Source("cuda", "void f() { cublasCreate(0); }" + CUDA), Verdict.CHEATED, "library"),
    ],
)  # fmt: skip
def test_cuda_source_that_does_not_build_has_a_verdict(source: Source, verdict: Verdict, words: str) -> None:
    built = build(source, CASE, "sm_90a", confinement=PATIENT)
    assert built.kernel is None
    assert built.verdict is verdict, built.detail
    assert words in built.detail


@needs_nvcc
def test_a_compile_bomb_is_stopped() -> None:
    bomb = (
        "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(A(A(A(A(x))))))))\n"
        + CUDA.replace("if (i < n)", 'B(asm volatile("");) if (i < n)')
    )  # fmt: skip
    built = build(Source("cuda", bomb), CASE, "sm_90a", confinement=Confinement(wall_s=4.0))
    assert built.verdict in (Verdict.TIMED_OUT, Verdict.OUT_OF_RESOURCES), built.detail


@needs_nvcc
def test_a_file_outside_cannot_be_included_even_past_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sassafras.evaluate.source.building.scan_cuda", lambda text: None)
    secret = tmp_path / "secret.h"
    secret.write_text("#error s3cret\n")
    built = build(Source("cuda", f'#include "{secret}"\n{CUDA}'), CASE, "sm_90a", confinement=PATIENT)
    assert built.verdict is Verdict.COMPILE_ERROR
    assert "s3cret" not in built.detail


class Recorded:
    """A device that notes what it is asked to run (no GPU here) and calls it correct."""

    name, arch, modelled = "none", "sm_90a", False

    def __init__(self) -> None:
        self.ran: list[Candidate] = []

    def run(self, candidate: Candidate) -> Evaluation:
        self.ran.append(candidate)
        return Evaluation(candidate.digest, Verdict.CORRECT, 1.0, 2.0, 2.0)


def test_one_path_from_source_to_an_outcome() -> None:
    baseline = Kernel(b"baseline", "affine", "sm_90a", 128)
    workload = Workload("affine", (CASE,), lambda case, arch: baseline, None, Tolerance())
    device = Recorded()
    evaluator = SourceEvaluator(device, workload, CASE, baseline, confinement=PATIENT)  # type: ignore[arg-type]
    good = Source("triton", TRITON, constants={"BLOCK": 1024}, recipe={"model": "m"})
    outcome = evaluator.evaluate(good)
    assert outcome.verdict is Verdict.CORRECT
    assert evaluator.evaluate(good) is outcome
    assert len(device.ran) == 1
    found = []
    for text in ("import os\n", "def f(:\n"):
        bad = evaluator.evaluate(Source("triton", text))
        assert isinstance(bad, Evaluation)
        found.append(bad.verdict)
        assert evaluator.evaluate(Source("triton", text)) is bad
    assert found == [Verdict.CHEATED, Verdict.COMPILE_ERROR]
    assert len(device.ran) == 1


def test_a_case_travels_without_its_fills() -> None:
    facts = case_to_json(CASE, Source("triton", "", scalars={"m": 3}, options={"num_warps": 8}))
    assert facts["args"]["m"] == 3
    assert facts["args"]["y"] == {"dtype": "fp32", "shape": [N], "role": "out"}
    assert facts["options"] == {"num_warps": 8}
