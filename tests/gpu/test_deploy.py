"""Deployment on a real GPU. The "tuned" cubin adds 7 where the compiler's adds 5: the sum shows which ran."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sassafras.core import Candidate, Evaluation, Interval, Kernel, Verdict
from sassafras.store import Store

pytestmark = pytest.mark.gpu

#: nothing of ours but install(), and that only if asked for
PROGRAM = """
import json, sys
import torch, triton, triton.language as tl

@triton.jit
def shift(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 5.0, mask=i < n)

@triton.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})], key=["n"])
@triton.jit
def tuned_by_triton(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 5.0, mask=i < n)

def total(launch, y):
    y.zero_()
    launch()
    eager = set(y.tolist())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return sorted(eager), sorted(set(y.tolist()))

def main():
    before = None
    if "install" in sys.argv:
        import sassafras
        sassafras.install()
    x, y = torch.zeros(4096, device="cuda"), torch.zeros(4096, device="cuda")
    one = lambda: shift[(16,)](x, y, 4096, BLOCK=256)
    two = lambda: tuned_by_triton[lambda meta: (4096 // meta["BLOCK"],)](x, y, 4096)
    two()
    found = {"shift": total(one, y), "tuned_by_triton": total(two, y)}
    if "install" in sys.argv:
        found["status"] = sassafras.status().to_json()
        sassafras.uninstall()
        found["after uninstall"] = total(one, y)  # loaded kernels keep their code
    if "keep" in sys.argv:
        made = [next(iter(shift.device_caches[0][0].values()))]
        made += list(tuned_by_triton.fn.device_caches[0][0].values())
        found["kernels"] = [
            [k.name, k.asm["cubin"].hex(), k.metadata.num_warps, k.metadata.shared] for k in made
        ]
    print(json.dumps(found))

if __name__ == "__main__":
    main()
"""
ORIGINAL, TUNED = ([5.0], [5.0]), ([7.0], [7.0])


def program(folder: Path, *arguments: str, under_run: bool = False, **environment: str) -> dict[str, Any]:
    source = folder / "program.py"
    if not source.exists():  # its time of change is in the cubins' line information
        source.write_text(PROGRAM)
    command = [sys.executable, str(source), *arguments]
    if under_run:
        command = [sys.executable, "-m", "sassafras", "run", "--", *command]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {
            "TRITON_CACHE_DIR": str(folder / "cache"), "SASSAFRAS_STORE": str(folder / "store.sqlite"),
        } | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {key: tuple(value) if key in ("shift", "tuned_by_triton", "after uninstall") else value
            for key, value in found.items()}  # fmt: skip


def adds_seven(cubin: bytes) -> bytes:
    five, seven = struct.pack("<f", 5.0), struct.pack("<f", 7.0)
    assert cubin.count(five) >= 1
    return cubin.replace(five, seven)


def cache(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "cache").rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A warm cache, and a store with a "winner" for each of the program's three kernels."""
    from sassafras.cuda.environment import probe

    first = program(tmp_path, "keep")
    assert (first["shift"], first["tuned_by_triton"]) == (ORIGINAL, ORIGINAL)
    with Store.open(tmp_path / "store.sqlite") as store:
        for name, cubin, warps, shared in first["kernels"]:
            kernel = Kernel(bytes.fromhex(cubin), name, str(probe()["arch"]), 32 * warps, shared)
            candidate = Candidate(kernel.with_cubin(adds_seven(kernel.cubin)))
            outcome = Evaluation(
                candidate.digest, Verdict.CORRECT, 9.0, 10.0, 1.11, Interval(1.1, 1.12), 1.0,
                Interval(0.999, 1.001), 60,
            )  # fmt: skip
            store.save_winner(kernel, candidate, outcome, gpu=str(probe()["gpu"]), workload="t", case="t")
    return tmp_path


@pytest.mark.slow
def test_the_tuned_bytes_run_eagerly_and_in_a_graph_with_a_warm_and_a_cold_cache(stored: Path) -> None:
    import shutil

    warm = cache(stored)
    found = program(stored, "install")
    assert (found["shift"], found["tuned_by_triton"], found["after uninstall"]) == (TUNED, TUNED, TUNED)
    told = found["status"]["kernels"]
    assert len(told) == 3 and all(kernel["reason"] == "tuned" for kernel in told)
    assert cache(stored) == warm
    shutil.rmtree(stored / "cache")
    found = program(stored, "install")
    assert (found["shift"], found["tuned_by_triton"]) == (TUNED, TUNED)
    cold = cache(stored)
    assert cold.keys() == warm.keys()
    # the launchers that Triton has gcc build hold the name of a random folder, with and without us
    assert {n: d for n, d in cold.items() if not n.endswith(".so")} == {
        n: d for n, d in warm.items() if not n.endswith(".so")
    }
    found = program(stored)  # a later process without us
    assert (found["shift"], found["tuned_by_triton"]) == (ORIGINAL, ORIGINAL)


def test_a_touched_source_file_still_finds_its_tuned_cubins(stored: Path) -> None:
    import shutil

    shutil.rmtree(stored / "cache")
    os.utime(stored / "program.py", (1_700_000_000, 1_700_000_000))
    found = program(stored, "install")
    assert (found["shift"], found["tuned_by_triton"]) == (TUNED, TUNED), found["status"]
    assert {k["reason"] for k in found["status"]["kernels"]} == {"tuned, other line information"}


def test_run_without_touching_the_program(stored: Path) -> None:
    found = program(stored, under_run=True, SASSAFRAS_STATUS=str(stored / "status"))
    assert (found["shift"], found["tuned_by_triton"]) == (TUNED, TUNED)
    (path,) = (stored / "status").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["reason"] for row in rows if row["event"] == "loaded"] == ["tuned"] * 3


@pytest.mark.slow
def test_kill_switch_and_deny_list(stored: Path) -> None:
    assert program(stored, "install", SASSAFRAS_DISABLE="1")["shift"] == ORIGINAL
    found = program(stored, "install", SASSAFRAS_DENY="shift")
    assert (found["shift"], found["tuned_by_triton"]) == (ORIGINAL, TUNED)


@pytest.mark.parametrize("kind", ["missing", "corrupt", "other GPU", "locked", "no CUDA cubin at all"])
def test_unharmed(stored: Path, kind: str) -> None:
    import sqlite3

    path = stored / "store.sqlite"
    held = None
    if kind == "missing":
        path.unlink()
    elif kind == "corrupt":
        path.write_bytes(b"SQLite format 3\0" + bytes(5000))
    elif kind == "other GPU":
        with sqlite3.connect(path) as db:
            db.execute("UPDATE winners SET gpu = 'NVIDIA A100-SXM4-80GB'")
    elif kind == "locked":
        held = sqlite3.connect(path, isolation_level=None)
        held.execute("PRAGMA locking_mode = EXCLUSIVE")
        held.execute("BEGIN EXCLUSIVE")
    else:  # whole and well hashed, but the driver will refuse it: the machine code section is gone
        import zlib

        with sqlite3.connect(path) as db:
            for (digest,) in db.execute("SELECT tuned FROM winners").fetchall():
                db.execute("INSERT OR IGNORE INTO cubins VALUES (?, ?, ?)", (
                    hashlib.sha256(digest.encode()).hexdigest(), len(digest), zlib.compress(digest.encode())
                ))  # fmt: skip
                db.execute(
                    "UPDATE winners SET tuned = ? WHERE tuned = ?",
                    (hashlib.sha256(digest.encode()).hexdigest(), digest),
                )
    found = program(stored, "install", SASSAFRAS_WAIT="0.5")
    assert (found["shift"], found["tuned_by_triton"]) == (ORIGINAL, ORIGINAL)
    assert not any(kernel["reason"].startswith("tuned (") for kernel in found["status"]["kernels"])
    del held


def test_a_plain_cuda_module_runs_the_tuned_cubin(stored: Path) -> None:
    """With the driver's own API, in a process of its own."""
    code = f"""
import ctypes, sqlite3, struct, sys
from sassafras.deploy import tuned_cubin
from sassafras.store import Store
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code): assert code == 0, code
context, module, function, pointer = (ctypes.c_void_p() for _ in range(4))
ok(cuda.cuInit(0)); ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
with Store.open({str(stored / "store.sqlite")!r}, readonly=True) as store:
    winner = next(w for w in store.winners() if w.kernel.name == "shift")
    original = store.cubin(winner.original)
for cubin in (original, tuned_cubin(original, store={str(stored / "store.sqlite")!r})):
    ok(cuda.cuModuleLoadData(ctypes.byref(module), cubin))
    ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"shift"))
    ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), 4096)); ok(cuda.cuMemsetD32_v2(pointer, 0, 1024))
    n = ctypes.c_int(256)
    null = ctypes.c_void_p(0)
    values = [pointer, pointer, n, null, null]
    array = (ctypes.c_void_p * 5)(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, None, array, None)); ok(cuda.cuCtxSynchronize())
    out = (ctypes.c_float * 256)()
    ok(cuda.cuMemcpyDtoH_v2(out, pointer, 1024))
    print(sorted(set(out)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[5.0]", "[7.0]"]
