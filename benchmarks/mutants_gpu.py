"""Random mutants, judged by the validator and run cold on a GPU: writes validator-mutants.json.

    python benchmarks/mutants_gpu.py [--mutants 20000] [--only softmax,...] [--workers 8] [--gpus N]

A mutant is a kernel of the suite with one to four random edits: neighbours swapped, an instruction moved
within its basic block, a stall count, a wait mask, a scoreboard or a reuse flag changed. Nothing filters
them, except that branches stay where they are and `.nv.info` follows, so that every mutant loads. The
validator approves or refuses each; all are run, whatever it said. A run is the first launch of a freshly
loaded module, in a process that may die, after a kernel has left NaN patterns in all registers and all
shared memory; outputs are poisoned, and the whole arena (outputs, inputs, guard bands) is compared bitwise
with what the original leaves, on two input sets. Crashes and hangs (over 2 s) cost the process and count as
wrong.

Approved and wrong must be zero. Refused and right is no fault: a mutant may break a rule and be lucky.
"""

from __future__ import annotations

import argparse
import base64
import json
import lzma
import multiprocessing
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
from common import per_gpu, write

Row = dict[str, Any]
HANG_S = 2.0
SHARED = r"""
extern "C" __global__ void fill_shared(unsigned words, unsigned pattern, unsigned* sink) {
  extern __shared__ volatile unsigned s[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) s[i] = pattern | i;
  __syncthreads();
  if (s[threadIdx.x] == 1u) *sink = 1u;
}
"""
SHARED_BYTES = 224 * 1024
KINDS = ("swap", "move", "stall", "wait", "scoreboard", "reuse")


# -- making mutants ---------------------------------------------------------------------------------------


def mutate(function: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """One mutant: order, upper words by position, and the kinds of edits that made it."""
    from sassafras.sass.opcodes import BRANCHES

    order = np.arange(len(function))
    high = function.words[:, 1].copy()
    fixed = np.array([i.base in BRANCHES or i.base == "NOP" for i in function.instructions])
    blocks = [b for b in function.blocks if b.end - b.start > 2 and not fixed[b.start : b.end].all()]
    sizes = np.array([b.end - b.start for b in blocks], dtype=float)
    kinds: list[str] = []
    for _ in range(min(int(rng.geometric(0.55)), 4)):
        block = blocks[rng.choice(len(blocks), p=sizes / sizes.sum())]
        at = int(rng.integers(block.start, block.end))
        if fixed[order[at]]:
            continue
        kind = str(rng.choice(KINDS, p=(0.2, 0.25, 0.25, 0.12, 0.1, 0.08)))
        if kind in ("swap", "move"):
            reach = 1 if kind == "swap" else int(rng.integers(2, 25))
            to = int(np.clip(at + reach * rng.choice((-1, 1)), block.start, block.end - 1))
            if to == at or fixed[order[min(at, to) : max(at, to) + 1]].any():
                continue
            for array in (order, high):
                moved = array[at]
                rest = np.delete(array[block.start : block.end], at - block.start)
                array[block.start : block.end] = np.insert(rest, to - block.start, moved)
        else:
            high[at] = np.uint64(_edit(int(high[at]), kind, rng))
        kinds.append(kind)
    return order, high, kinds


def _edit(word: int, kind: str, rng: np.random.Generator) -> int:
    def put(shift: int, width: int, value: int) -> int:
        mask = ((1 << width) - 1) << shift
        return (word & ~mask) | (value << shift)

    if kind == "stall":
        old = word >> 41 & 0xF
        lowered = max(1, old - int(rng.integers(1, 4)))
        value = lowered if rng.random() < 0.5 else int(rng.integers(1, 16))
        edited = put(41, 4, value)
        return edited & ~(1 << 45) if value >= 12 else edited
    if kind == "wait":
        return word ^ (1 << (52 + int(rng.integers(6))))
    if kind == "scoreboard":
        return put(46 if rng.random() < 0.5 else 49, 3, int(rng.choice((0, 1, 2, 3, 4, 5, 7))))
    return word ^ (1 << (58 + int(rng.integers(3))))


# -- a process that may die -------------------------------------------------------------------------------


def prepare(name: str, folder: str) -> None:
    """Inputs and the original's outputs of a kernel's headline case, as files that lean processes load."""
    import torch

    from sassafras.device.cuda.arena import Layout, make_image
    from sassafras.device.cuda.checker import Checker
    from sassafras.device.cuda.compile import compile_cuda
    from sassafras.device.cuda.driver import Gpu
    from sassafras.device.cuda.scene import Scene
    from sassafras.frontend import load

    workload = load(f"suite:{name}")
    case = workload.cases[0]
    kernel = workload.build(case, "sm_90a")
    gpu = Gpu()
    checker = Checker(gpu)
    scene = Scene(gpu, checker, case, workload.reference, workload.tolerance)
    function = gpu.load_kernel(kernel)
    place = Path(folder)
    for seed in range(2):
        image = scene.add_image(kernel, function, seed=100 + seed, poison=(0xFF, 0xA5)[seed])
        (place / f"pristine{seed}").write_bytes(image.pristine.cpu().numpy().tobytes())
        (place / f"expected{seed}").write_bytes(image.expected.cpu().numpy().tobytes())
    torch.cuda.synchronize()
    if not scene.exact:
        raise RuntimeError(f"{name} differs from itself; it cannot be compared bitwise")
    (place / "checker.cubin").write_bytes(checker.cubin)
    (place / "shared.cubin").write_bytes(compile_cuda(SHARED, "sm_90a"))
    del Layout, make_image


def lean(pipe: Any, kernel: Any, case: Any, folder: str, device: int) -> None:
    """Serve mutants of one kernel: no torch, no Triton, one context, quick to replace."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    from sassafras.device.cuda.arena import Layout
    from sassafras.device.cuda.driver import CudaError, Gpu, call
    from sassafras.device.cuda.params import ParameterBlock, values

    place = Path(folder)
    name = place.name
    gpu = Gpu()
    layout = Layout.of(case)
    driver = gpu.driver

    def upload(data: bytes) -> int:
        address = int(call(driver.cuMemAlloc, len(data)))
        call(driver.cuMemcpyHtoD, address, data, len(data))
        return address

    live = int(call(driver.cuMemAlloc, layout.nbytes))
    images = [
        tuple(upload((place / f"{kind}{seed}").read_bytes()) for kind in ("pristine", "expected"))
        for seed in range(2)
    ]
    slot = upload(bytes(64))
    tools = (place / "checker.cubin").read_bytes()
    compare, scrub = gpu.load(tools, "sassafras_compare"), gpu.load(tools, "sassafras_scrub")
    shared = gpu.load((place / "shared.cubin").read_bytes(), "fill_shared", SHARED_BYTES)
    wide = gpu.config((4 * gpu.multiprocessors, 1, 1), 256)
    each = gpu.config((gpu.multiprocessors, 1, 1), 256)
    smem = gpu.config((gpu.multiprocessors, 1, 1), 256, SHARED_BYTES)
    config = gpu.config(case.grid, kernel.threads, kernel.shared_bytes, kernel.cluster)
    addresses = {s.name: live + s.offset for s in layout.segments}
    own = gpu.load_kernel(kernel)
    params = ParameterBlock(values(kernel, case, addresses, 0), own.sizes)
    p_scrub = ParameterBlock([("p", 0x7FC00000, "u32"), ("r", 0, "u32"), ("s", slot + 32, "*")], scrub.sizes)
    p_shared = ParameterBlock(
        [("w", SHARED_BYTES // 4, "u32"), ("p", 0x7FC00000, "u32"), ("s", slot + 32, "*")], shared.sizes
    )
    p_compare = [
        ParameterBlock(
            [("a", live, "*"), ("b", expected, "*"), ("n", layout.nbytes // 16, "u64"), ("s", slot, "*")],
            compare.sizes,
        )
        for _, expected in images
    ]
    host = gpu.pinned(2)
    host_address = __import__("ctypes").addressof(host)

    def right(function: Any) -> bool:
        for (pristine, _), p in zip(images, p_compare, strict=True):
            gpu.clear(slot, 16)
            gpu.copy(live, pristine, layout.nbytes)
            gpu.launch(each, scrub, p_scrub.address)
            gpu.launch(smem, shared, p_shared.address)
            gpu.launch(config, function, params.address)
            gpu.launch(wide, compare, p.address)
            gpu.read_back(host_address, slot, 16)
            gpu.sync()
            if host[0]:
                return False
        return True

    if not right(own):
        raise RuntimeError(f"the original of {name} is not right in a lean process")
    pipe.send("ready")
    while True:
        cubin = pipe.recv()
        if cubin is None:
            return
        try:
            function = gpu.load(cubin, kernel.name, kernel.shared_bytes, kernel.cluster)
        except CudaError as error:
            pipe.send(("refused", str(error), error.sticky))
            if error.sticky:
                return
            continue
        try:
            outcome = ("right", "") if right(function) else ("wrong", "")
            gpu.unload(function)
            lost = outcome[0] == "wrong" and not right(own)  # a stray write may have hit our own images
        except CudaError as error:
            outcome, lost = ("crashed", str(error)), True
        pipe.send((*outcome, lost))
        if lost:
            return


class Slot:
    """One lean process, replaced when it dies or hangs."""

    def __init__(self, kernel: Any, case: Any, folder: str, device: int) -> None:
        self._arguments = (kernel, case, folder, device)
        self._process: Any = None
        self._pipe: Any = None

    def run(self, cubin: bytes) -> tuple[str, str]:
        """``right``, ``wrong``, ``crashed``, ``hung`` or ``refused``, and a detail."""
        self._ready()
        try:
            self._pipe.send(cubin)
            if not self._pipe.poll(HANG_S):
                self.close()
                return "hung", f"no answer within {HANG_S:g} s"
            outcome, detail, lost = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.close()
            return "crashed", "the process died"
        if lost:
            self.close()
        return outcome, detail

    def _ready(self) -> None:
        for _ in range(4):
            if self._process is not None and self._process.is_alive():
                return
            self.close()
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=lean, args=(theirs, *self._arguments), daemon=True)
            self._process.start()
            theirs.close()
            try:
                if self._pipe.poll(60) and self._pipe.recv() == "ready":
                    return
            except EOFError:
                pass
            self.close()
        raise RuntimeError(f"a lean process for {self._arguments[0].name} does not start")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None


# -- one kernel -------------------------------------------------------------------------------------------


def one(name: str, count: int, workers: int, seed: int, folder: str) -> Row:
    """Make, judge and run `count` mutants of one kernel on this process's GPU."""
    from sassafras.core import Buffer, Normal
    from sassafras.frontend import load
    from sassafras.sass import Program
    from sassafras.validate import Validator

    begin = time.perf_counter()
    device = int(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
    place = Path(folder, f"gpu{device}", name)
    place.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    maker = context.Process(target=prepare, args=(name, str(place)))
    maker.start()
    workload = load(f"suite:{name}")
    kernel = workload.build(workload.cases[0], "sm_90a")
    program = Program.parse(kernel.cubin)
    function = program.function(kernel.name)
    validator = Validator(kernel.cubin, kernel.name)
    rng = np.random.default_rng([seed, len(function), sum(name.encode())])
    mutants: list[tuple[bytes, bool, list[str], str]] = []
    seen = {kernel.cubin}
    judging = 0.0
    while len(mutants) < count:
        order, high, kinds = mutate(function, rng)
        cubin = program.emit(kernel.name, order, high)
        if cubin in seen:
            continue
        seen.add(cubin)
        start = time.perf_counter()
        report = validator.check(cubin)
        judging += time.perf_counter() - start
        reason = "" if report.ok else str(report.violations[0])
        mutants.append((cubin, bool(report.ok), kinds, reason))
    maker.join()
    if maker.exitcode:
        raise RuntimeError(f"preparing {name} failed")
    table: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    faults: list[Row] = []
    lock, queue = Lock(), iter(mutants)

    plain = {
        n: replace(a, fill=Normal()) if isinstance(a, Buffer) else a
        for n, a in workload.cases[0].args.items()
    }
    bare = replace(workload.cases[0], args=plain)  # fills may be functions, which do not travel

    def serve() -> None:
        slot = Slot(kernel, bare, str(place), device)
        try:
            while True:
                with lock:
                    mutant = next(queue, None)
                if mutant is None:
                    return
                cubin, approved, kinds, _ = mutant
                outcome, detail = slot.run(cubin)
                with lock:
                    table[f"{'approved' if approved else 'refused'}_{outcome}"] += 1
                    for kind in set(kinds):
                        by_kind[f"{kind}_{'approved' if approved else 'refused'}_{outcome}"] += 1
                    if approved and outcome != "right" and len(faults) < 40:
                        packed = base64.b64encode(lzma.compress(cubin)).decode()
                        faults.append(
                            {"kinds": kinds, "outcome": outcome, "detail": detail, "cubin_xz": packed}
                        )
        finally:
            slot.close()

    threads = [Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "kernel": name, "shape": workload.cases[0].name, "instructions": len(function),
        "mutants": sum(table.values()), **dict(sorted(table.items())),
        "by_kind": dict(sorted(by_kind.items())), "faults": faults,
        "judging_ms": round(1e3 * judging / max(1, len(mutants)), 3),
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def main() -> None:
    """Share the mutants among the suite's kernels, run them, print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    options = parser.parse_args()
    from sassafras import suite
    from sassafras.device.cuda import environment

    names = [n for n in options.only.split(",") if n] or list(suite.names())
    share = -(-options.mutants // len(names))
    folder = f"/dev/shm/sassafras-mutants-{os.getpid()}"
    items = [(name, share, options.workers, options.seed, folder) for name in names]
    facts = environment()
    rows: list[Row] = []
    for index, row in per_gpu(one, items, options.gpus):
        if isinstance(row, Exception):
            row = {"kernel": names[index], "error": repr(row)}
        rows.append(row)
        print({k: v for k, v in row.items() if k not in ("by_kind", "faults")}, flush=True)
        rows.sort(key=lambda r: names.index(r["kernel"]))
        # after every kernel, so that a run that is cut short keeps what it has
        write("validator-mutants", rows, summarise(rows), facts, seed=options.seed, out=options.out)
    print(json.dumps(summarise(rows), indent=1))


def summarise(rows: list[Row]) -> Row:
    """The two-by-two table over all kernels."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update({k: v for k, v in row.items() if k.startswith(("approved_", "refused_"))})
    wrong = ("wrong", "crashed", "hung", "refused")
    return {
        "mutants_run": sum(total.values()),
        "approved_and_right": total["approved_right"],
        "approved_but_wrong": sum(total[f"approved_{w}"] for w in wrong),
        "refused_and_right": total["refused_right"],
        "refused_and_wrong": sum(total[f"refused_{w}"] for w in wrong),
        "outcomes": dict(sorted(total.items())),
        "failed_kernels": [r["kernel"] for r in rows if "error" in r],
    }


if __name__ == "__main__":
    main()
