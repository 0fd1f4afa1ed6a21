"""Where may a tensor copy begin? One small copy a question, each in its own process; hgemm-probe-rows.json.

    python benchmarks/hgemm_probe_rows.py --cache .carry/gemm --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_probe_rows.py --cache .carry/gemm [--seconds 30] [--dry-run]

A matrix of FP16 holds other bits in every element. One thread asks for one box; what arrives is compared
with what should. An answer is ``right``, ``wrong`` (it says how), ``refused`` (a CUDA error: the context is
lost), ``hung`` or ``failed``. Questions come in the order of what they decide: may the innermost coordinate
be no multiple of 16 bytes at all, in any swizzle and size; if it may not, do boxes outside of the extents,
extents that are no multiple of 16 bytes, and rows that overlap behave as rows of any length need.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import ROOT, write

#: elements of the matrix that copies are taken from, and what lies where nothing may be read
ELEMENTS, LIMIT_S = 1 << 16, 20.0
LOST = 3


@dataclass(frozen=True)
class Question:
    """One copy: where it begins (elements, rows), and the tensor map."""

    name: str
    x: int
    y: int = 0
    dims: tuple[int, int] = (1024, 32)
    stride: int = 2048
    swizzle: int = 128
    box: tuple[int, int] = (64, 8)
    expected: str = "right"


#: the third kind of row of 65 x 521: every eighth row of length 521, 16-byte multiples apart
_ROWS: dict[str, Any] = {"dims": (7 * 521 + 521, 8), "stride": 16 * 521}
QUESTIONS = (
    Question("begins at 0", 0),
    Question("begins at 64", 64),
    Question("begins at 8: 16 bytes", 8),
    Question("begins at 1: 2 bytes", 1, expected="refused"),
    Question("begins at 4: 8 bytes", 4, expected="refused"),
    Question("begins at 1, no swizzle", 1, swizzle=0, expected="refused"),
    Question("begins at 1, 16 bytes wide", 1, swizzle=0, box=(8, 8), expected="refused"),
    Question("begins at 56 and row 30: ends outside", 56, 30, dims=(100, 32)),
    Question("begins at -8", -8),
    Question("begins at 2048: all outside", 2048),
    Question("begins at row 64: all outside", 0, 64),
    Question("an extent of 521, rows that overlap: begins at 512", 512, dims=(521, 9), stride=16 * 521),
    Question("every eighth row: kind 1 begins at 520, one early", 520, **_ROWS),
    Question("every eighth row: kind 7 begins at 3640, the last k tile", 3640 + 512, **_ROWS),
    Question("every eighth row: kind 1 begins at 521", 521, expected="refused", **_ROWS),
)


@dataclass(frozen=True)
class Probe:
    """What `compile.build` takes for an instance."""

    name: str = "probe_copy"

    @property
    def source(self) -> str:
        """CUDA C++: one warp, one copy, everything that arrived written out."""
        return """#include "hopper_tile.cuh"
extern "C" __global__ void probe_copy(
    const __grid_constant__ sassafras::TensorMap map, sassafras::u16 *c, int x, int y, int bytes) {
    using namespace sassafras;
    char *const shared = (char *)shared_floats();
    const u32 start = shared_address(shared), base = (start + 1023) & ~1023u, barrier = base + 65536;
    for (int i = threadIdx.x; i < 16384; i += 32) ((u32 *)(shared + (base - start)))[i] = 0xdeaddead;
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barrier_init_fence();
    }
    async_fence();
    sync_cta();
    if (threadIdx.x == 0) {
        barrier_expect(barrier, bytes);
        copy_tile(base, &map, x, y, barrier);
    }
    sync_warp();
    barrier_wait<2>(barrier, 0);
    for (int i = threadIdx.x; i < bytes / 2; i += 32) c[i] = ((const u16 *)(shared + (base - start)))[i];
}
"""

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and kinds."""
        return (("map", "tensormap"), ("c", "*fp16"), ("x", "i32"), ("y", "i32"), ("bytes", "i32"))


def should(question: Question) -> Any:
    """What ought to arrive, as it lies in shared memory: uint16 (rows, columns of the box)."""
    import numpy as np

    width, height = question.box
    source = np.arange(ELEMENTS, dtype=np.uint16)
    rows = question.y + np.arange(height)[:, None]
    columns = question.x + np.arange(width)[None, :]
    inside = (rows >= 0) & (rows < question.dims[1]) & (columns >= 0) & (columns < question.dims[0])
    at = np.where(inside, rows * (question.stride // 2) + columns, 0)
    logical = np.where(inside, source[at % ELEMENTS], 0).astype(np.uint16)
    if not question.swizzle:
        return logical
    lies = np.empty_like(logical)
    for row in range(height):
        for chunk in range(width // 8):
            place = chunk ^ (row % 8)
            lies[row, 8 * place : 8 * place + 8] = logical[row, 8 * chunk : 8 * chunk + 8]
    return lies


def answer(question: Question, cache: Path | None) -> dict[str, Any]:
    """Ask the GPU. Raises CudaError when the context is lost."""
    import numpy as np

    from sassafras.device.cuda.driver import Gpu, call
    from sassafras.device.cuda.tensor_maps import TensorMap
    from sassafras.gemm.compile import cubin
    from sassafras.gemm.launch import Arguments, Launch

    gpu, probe = Gpu(), Probe()
    function = gpu.load(cubin(probe, cache), probe.name)  # type: ignore[arg-type]
    limit = gpu.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    shared = 1024 + 65536 + 16
    call(gpu.driver.cuFuncSetAttribute, function.handle, limit, shared)
    source, wanted = np.arange(ELEMENTS, dtype=np.uint16), should(question)
    found = np.full(wanted.shape, 0xFFFF, np.uint16)
    a, c = (int(call(gpu.driver.cuMemAlloc, x.nbytes)) for x in (source, found))
    for to, data in ((a, source), (c, found)):
        call(gpu.driver.cuMemcpyHtoD, to, data.ctypes.data, data.nbytes)
    call(gpu.driver.cuCtxSynchronize)
    described = TensorMap("a", "fp16", question.dims, (question.stride,), question.box, question.swizzle)
    scalars = {"x": question.x, "y": question.y, "bytes": 2 * wanted.size}
    launch = Launch((1, 1, 1), 32, shared, (1, 1, 1), scalars, {"map": described})
    arguments = Arguments(probe.parameters, launch, {"a": a, "c": c}, gpu.driver)
    gpu.launch(gpu.config(launch.grid, launch.threads, shared, launch.cluster), function, arguments.address)
    if not gpu.wait(8.0):
        return {"answer": "hung"}
    call(gpu.driver.cuMemcpyDtoH, found.ctypes.data, c, found.nbytes)
    return compared(found, wanted)


def compared(found: Any, wanted: Any) -> dict[str, Any]:
    """``right``, or ``wrong`` with the first row that is."""
    import numpy as np

    bad = np.nonzero((found != wanted).any(axis=1))[0]
    if not len(bad):
        return {"answer": "right"}
    row = int(bad[0])
    said = {"row": row, "found": found[row][:16].tolist(), "wanted": wanted[row][:16].tolist()}
    return {"answer": "wrong", "rows": len(bad), **said}


def child(number: int, cache: Path | None, dry: bool) -> int:
    """Answer one question on standard output; ends with `LOST` when the context is."""
    question = QUESTIONS[number]
    if dry:  # what is expected of the hardware
        found = compared(should(question), should(question))
        if question.x % 8:
            found = {"answer": "refused", "why": "dry run"}
        print(json.dumps(found))
        return LOST * (found["answer"] == "refused")
    from sassafras.device.cuda.driver import CudaError

    try:
        found = answer(question, cache)
    except CudaError as error:
        print(json.dumps({"answer": "refused", "why": str(error)}), flush=True)
        os._exit(LOST)
    print(json.dumps(found), flush=True)
    os._exit(0)  # no clean-up: it would wait for a kernel that hangs


def ask(number: int, arguments: list[str], limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The answer of a child process, whatever becomes of it."""
    command = [sys.executable, str(Path(__file__).resolve()), "--ask", str(number), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"answer": "hung", "why": f"killed after {limit_s:.0f} s"}
    lines = run.stdout.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"answer": "failed", "why": f"status {run.returncode}: {run.stderr.strip()[-300:]}"}
    return found


def main() -> int:
    """Ask everything; 1 when an answer is not the expected one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--prepare", action="store_true", help="only compile; needs no GPU")
    parser.add_argument("--seconds", type=float, default=60, help="ask nothing more after so long")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: the answers that are expected")
    parser.add_argument("--ask", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    if given.ask is not None:
        return child(given.ask, given.cache, given.dry_run)
    from sassafras.device.cuda import available, environment
    from sassafras.gemm.compile import cubin

    if given.prepare or not given.dry_run:
        cubin(Probe(), given.cache)  # type: ignore[arg-type]
    if given.prepare:
        return 0
    usable, reason = available()
    if not usable and not given.dry_run:
        print(reason)
        return 2
    arguments = ["--dry-run"] * given.dry_run + (["--cache", str(given.cache)] if given.cache else [])
    begin = time.monotonic()

    def asked(number: int) -> dict[str, Any]:
        question = QUESTIONS[number]
        if time.monotonic() - begin > given.seconds:
            return {**asdict(question), "answer": "not asked"}
        found = {**asdict(question), **ask(number, arguments), "dry": given.dry_run}
        print(json.dumps({key: found.get(key) for key in ("name", "expected", "answer", "why")}), flush=True)
        return found

    with ThreadPoolExecutor(4) as threads:
        rows = list(threads.map(asked, range(len(QUESTIONS))))
    surprises = [row["name"] for row in rows if row["answer"] != row["expected"]]
    summary = {
        "asked": sum(row["answer"] != "not asked" for row in rows), "of": len(QUESTIONS),
        "surprises": surprises,
        "seconds": round(time.monotonic() - begin, 1), "modelled": given.dry_run,
    }  # fmt: skip
    name = "hgemm-probe-rows" + "-dry" * given.dry_run
    out = given.out or Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    print(json.dumps(summary), write(name, rows, summary, environment(), out=out).name)
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
