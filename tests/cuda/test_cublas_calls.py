"""How cuBLAS and cuBLASLt are called, against a stand-in with their documented column-major meaning."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"


def calls(libraries: list[str]) -> None:
    """Runs in a process of its own, so that no real cuBLAS is found first."""
    loaded = [ctypes.CDLL(library) for library in libraries]
    assert len(loaded) == 2
    from sassafras.cuda.cublas import ROOM, Cublas, CublasError, CublasLt, LtAlgorithm
    from sassafras.gemm.problem.shape import Shape

    shape = Shape(5, 16, 24)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 24)).astype(np.float16)
    b = rng.standard_normal((24, 16)).astype(np.float16)
    a_t, b_t = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    laid = {"nn": (a, b), "tn": (a, b_t), "nt": (a_t, b), "tt": (a_t, b_t)}
    exact = (a.astype(float) @ b.astype(float)).astype(np.float16)
    c = np.zeros((5, 16), np.float16)
    lt = CublasLt(0x10, 0x20, 128 << 20)
    assert lt.version == 130100
    for layout, (left, right) in laid.items():
        addresses = (left.ctypes.data, right.ctypes.data, c.ctypes.data)
        for strict in (False, True):
            c[:] = 0
            Cublas(0x10, 0x20, 32 << 20, reduced_precision=not strict).enqueue(shape, layout, *addresses)
            assert np.array_equal(c, exact)
        problem = lt.problem(shape, layout)
        assert lt.heuristics(problem, 0) == []
        found = lt.candidates(problem)
        # united, usable ones only; what asks for no workspace with and without
        named = [(int.from_bytes(f.blob[:8], "little"), f.workspace) for f in found]
        assert named == [(1, 0), (1, ROOM), (2, 4096)]
        for algorithm in found:
            again = LtAlgorithm.from_json(algorithm.to_json())
            lt.check(problem, again)
            c[:] = 0
            lt.bind(problem, again, *addresses)()
            assert np.array_equal(c, exact)
        short, greedy = replace(found[2], workspace=64), replace(found[2], workspace=256 << 20)
        with pytest.raises(CublasError, match="INVALID_VALUE"):
            lt.bind(problem, short, *addresses)()
        narrow = CublasLt(0x10, 0x20, 2048)
        with pytest.raises(CublasError, match="INVALID_VALUE"):
            narrow.check(problem, found[2])
        with pytest.raises(CublasError, match="268435456 bytes"):
            lt.bind(problem, greedy, *addresses)
        foreign = LtAlgorithm(layout, bytes(64), 0)
        for call in (lambda p=problem, f=foreign: lt.check(p, f), lt.bind(problem, foreign, *addresses)):
            try:
                call()
            except CublasError as error:
                assert error.status in (7, 15) and "CUBLAS_STATUS_" in str(error)
            else:
                raise AssertionError("a foreign algorithm was accepted")
        problem.close()
    # BF16: small whole numbers are exact in its eight bits, and so are their bits in the upper half of FP32
    whole = [rng.integers(-2, 3, size).astype(np.float32) for size in ((5, 24), (16, 24))]
    left, right = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in whole)
    out = np.zeros((5, 16), np.uint16)
    problem = lt.problem(shape, "tn", "bf16")
    first = lt.candidates(problem)[0]
    lt.bind(problem, first, left.ctypes.data, right.ctypes.data, out.ctypes.data)()
    assert np.array_equal((out.astype(np.uint32) << 16).view(np.float32), whole[0] @ whole[1].T)
    problem.close()


def whole(libraries: list[str]) -> None:
    """The space that `benchmarks/cublas_whole.py` looks through, in a process of its own."""
    loaded = [ctypes.CDLL(library) for library in libraries]
    assert len(loaded) == 2
    from cublas_whole import CUSTOM, SPLIT, TILE, Space

    from sassafras.cuda.cublas import GEMM_AUTOTUNE, Cublas, CublasLt
    from sassafras.gemm.problem.shape import Shape

    lt, shape = CublasLt(0x10, 0x20, 128 << 20), Shape(5, 16, 24)
    space, problem = Space(lt, "fp16"), lt.problem(shape, "tn")
    assert space.ids() == [1, 9, 2]
    bases = space.configurations([problem])
    words = [np.frombuffer(blob, np.uint64) for blob in bases]
    # the one that is listed with a cluster first: one tile of two, two clusters, two options; then 1
    assert [int(w[0]) for w in words] == [2, 2, 2, 2, 1] and not space.cut
    assert {(int(w[TILE]), int(w[7]), int(w[CUSTOM])) for w in words[:4]} == {
        (7, cluster, custom) for cluster in (0, 3) for custom in (0, 1)
    }
    found = list(space.algorithms(problem, bases))
    parts = [int(np.frombuffer(f.blob, np.uint64)[SPLIT]) for f in found]
    assert parts == [0, 2, 3] * 4 + [0], "up to three parts are accepted"
    assert [f.workspace for f in found[:3]] == [4096, 8192, 12288]
    a, b = (np.arange(n, dtype=np.float16) % 5 for n in (5 * 24, 16 * 24))
    c, exact = np.zeros((5, 16), np.float16), a.reshape(5, 24).astype(float) @ b.reshape(16, 24).T
    addresses = a.ctypes.data, b.ctypes.data, c.ctypes.data
    for algorithm in found:
        c[:] = 0
        lt.bind(problem, algorithm, *addresses)()
        assert np.array_equal(c, exact)
    c[:] = 0
    Cublas(0x10, 0x20, 32 << 20).enqueue(shape, "tn", *addresses, algorithm=GEMM_AUTOTUNE)
    assert np.array_equal(c, exact)
    assert space.configurations([problem], seconds=-1.0) == [] and space.cut


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("what", ["calls", "whole"])
def test_calls(tmp_path: Path, what: str) -> None:
    libraries = [str(tmp_path / f"{stem}.so.13") for stem in ("libcublas", "libcublasLt")]
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", libraries[0]]
    subprocess.run([*command, str(HERE / "cublas_stand_in.cpp")], check=True, timeout=120)
    shutil.copy(libraries[0], libraries[1])
    done = subprocess.run(
        [sys.executable, __file__, what, *libraries],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    {"calls": calls, "whole": whole}[sys.argv[1]](sys.argv[2:])
