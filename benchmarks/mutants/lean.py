"""The process that runs mutants: no torch, no Triton, one context; serves until a fault takes it.

What "cold" means here: a mutant's first launch is the first launch of a module loaded a moment ago, so its
instructions are in no cache; before each launch one kernel has written a pattern into all registers of all
multiprocessors (a block takes the whole register file) and another into all shared memory, and outputs are
poisoned. What is not cold: the L2 and the translation caches are warm, predicates and uniform registers are
whatever the kernels before left, and the process is not fresh. What a mutant could wrongly rely on, values
in registers, shared memory and outputs, is scrubbed; that is why a process can serve many mutants.

Two patterns: NaNs that differ by register and thread (a stale value poisons every sum it enters), and one
small number everywhere. A stale address made of the second lies in a window of memory of our own where the
driver grants that window, so that it reads or writes rubbish and does not stop the GPU for a second. Refused
mutants meet the small number first and are done if that makes them wrong; only those still right meet the
NaNs. Approved ones meet the NaNs first.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from pathlib import Path
from typing import Any

from common import use_gpu

NAN, NAN_MASK = 0x7FC00000, 0x3FF
#: the small number; also the upper half of the window's addresses
SMALL = 0x0ABC
WINDOW = SMALL << 32
WINDOW_BYTES = 1 << 32
SINK_BYTES = 64 << 20
SHARED = r"""
extern "C" __global__ void fill_shared(unsigned words, unsigned pattern, unsigned mask, unsigned* sink) {
  extern __shared__ volatile unsigned s[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) s[i] = pattern | (i & mask);
  __syncthreads();
  if (s[threadIdx.x] == 1u) *sink = 1u;
}
"""
SHARED_BYTES = 224 * 1024
#: most blocks launched: enough to fill the GPU twice, few enough to be quick
MOST_BLOCKS = 264


def small_grid(grid: list[int], cluster: list[int]) -> tuple[int, int, int]:
    """The case's grid, cut along x (in whole clusters): original and mutant are launched alike."""
    x, y, z = grid
    most = max(cluster[0], MOST_BLOCKS // max(1, y * z) // cluster[0] * cluster[0])
    return (min(x, most), y, z)


class Bench:
    """The GPU side: opens one kernel after another and runs mutants of the one that is open."""

    def __init__(self, window: bool) -> None:
        from sassafras.cuda.driver import Gpu

        self.gpu = Gpu()
        self.window = window and self._reserve()
        self.kernel: Any = None
        self._tools: Any = None

    def _reserve(self) -> bool:
        """Map the 4 GiB of addresses whose upper half is SMALL to one small sink; False if refused."""
        from sassafras.cuda.driver import CudaError, call

        d = self.gpu.driver
        try:
            place = d.CUmemAllocationProp()
            place.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            place.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            place.location.id = 0
            got = int(call(d.cuMemAddressReserve, WINDOW_BYTES, 0, WINDOW, 0))
            if got != WINDOW:
                call(d.cuMemAddressFree, got, WINDOW_BYTES)
                return False
            sink = call(d.cuMemCreate, SINK_BYTES, place, 0)
            for at in range(WINDOW, WINDOW + WINDOW_BYTES, SINK_BYTES):
                call(d.cuMemMap, at, SINK_BYTES, 0, sink, 0)
            access = d.CUmemAccessDesc()
            access.location = place.location
            access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            call(d.cuMemSetAccess, WINDOW, WINDOW_BYTES, [access], 1)
            call(d.cuMemsetD8, WINDOW, 0xFF, SINK_BYTES)
        except (CudaError, AttributeError, TypeError, ValueError) as error:
            print(f"no window of addresses: {error}", flush=True)
            return False
        return True

    def _upload(self, data: bytes) -> int:
        from sassafras.cuda.driver import call

        address = int(call(self.gpu.driver.cuMemAlloc, len(data)))
        call(self.gpu.driver.cuMemcpyHtoD, address, data, len(data))
        call(self.gpu.driver.cuCtxSynchronize)  # the copy may be under way, and our stream does not wait
        return address

    def open(self, folder: str) -> None:
        """Load a prepared kernel: images, launch facts, the original; raises when it is not right here."""
        from sassafras.core import Buffer, Case
        from sassafras.cuda.driver import call
        from sassafras.cuda.params import ParameterBlock, values
        from sassafras.evaluate.gpu.protocol import kernel_from_facts

        place = Path(folder)
        facts = json.loads((place / "case.json").read_text())
        gpu, layout_bytes = self.gpu, int(facts["nbytes"])
        self.kernel = kernel = kernel_from_facts(facts["kernel"], (place / "original.cubin").read_bytes())
        if self._tools is None:
            tools = (place / "checker.cubin").read_bytes()
            shared = gpu.load((place / "shared.cubin").read_bytes(), "fill_shared", SHARED_BYTES)
            self._tools = (gpu.load(tools, "sassafras_compare"), gpu.load(tools, "sassafras_scrub"), shared)
            self._slot = self._upload(bytes(64))
            self._host = gpu.pinned(2)
        else:
            for address in self._allocated:
                call(gpu.driver.cuMemFree, address)
        compare, scrub, shared = self._tools
        self._live = int(call(gpu.driver.cuMemAlloc, layout_bytes))
        images = [
            tuple(self._upload((place / f"{kind}{seed}").read_bytes()) for kind in ("pristine", "expected"))
            for seed in range(2)
        ]
        self._allocated = [self._live, *(address for pair in images for address in pair)]
        self._nbytes = layout_bytes
        self._wide = gpu.config((4 * gpu.multiprocessors, 1, 1), 256)
        self._each = gpu.config((gpu.multiprocessors, 1, 1), 256)
        self._smem = gpu.config((gpu.multiprocessors, 1, 1), 256, SHARED_BYTES)
        self._config = gpu.config(facts["grid"], kernel.threads, kernel.shared_bytes, kernel.cluster)
        args = {
            name: Buffer(a["dtype"], tuple(a["shape"]), a["role"]) if isinstance(a, dict) else a
            for name, a in facts["args"].items()
        }
        case = Case(facts["case"], tuple(facts["grid"]), args)
        addresses = {name: self._live + offset for name, offset in facts["offsets"].items()}
        self._own = gpu.load_kernel(kernel)
        self._params = ParameterBlock(values(kernel, case, addresses, 0), self._own.sizes)
        self._images = [pristine for pristine, _ in images]
        self._compares = [
            ParameterBlock(
                [
                    ("a", self._live, "*"),
                    ("b", e, "*"),
                    ("n", layout_bytes // 16, "u64"),
                    ("s", self._slot, "*"),
                ],
                compare.sizes,
            )
            for _, e in images
        ]
        sink = self._slot + 32
        self._scrubs = [
            (
                ParameterBlock(
                    [("p", p, "u32"), ("m", m, "u32"), ("r", 0, "u32"), ("s", sink, "*")], scrub.sizes
                ),
                ParameterBlock(
                    [("w", SHARED_BYTES // 4, "u32"), ("p", p, "u32"), ("m", m, "u32"), ("s", sink, "*")],
                    shared.sizes,
                ),
            )
            for p, m in ((NAN, NAN_MASK), (SMALL, 0))
        ]
        if not self.original_is_right():
            raise RuntimeError(f"the original of {place.name} is not right in a lean process")

    def original_is_right(self) -> bool:
        """The unmodified kernel leaves what it left when the images were made, under both patterns."""
        return all(self._right(self._own, image, image) for image in range(2))

    def _right(self, function: Any, image: int, pattern: int) -> bool:
        gpu = self.gpu
        compare, scrub, shared = self._tools
        registers, memory = self._scrubs[pattern]
        gpu.clear(self._slot, 16)
        gpu.copy(self._live, self._images[image], self._nbytes)
        gpu.launch(self._smem, shared, memory.address)
        gpu.launch(self._each, scrub, registers.address)
        gpu.launch(self._config, function, self._params.address)
        gpu.launch(self._wide, compare, self._compares[image].address)
        gpu.read_back(ctypes.addressof(self._host), self._slot, 16)
        gpu.sync()
        return not self._host[0]

    def run(self, cubin: bytes, approved: bool) -> tuple[str, str, bool]:
        """(outcome, detail, whether this process is lost) of a mutant."""
        from sassafras.cuda.driver import CudaError

        kernel = self.kernel
        try:
            function = self.gpu.load(cubin, kernel.name, kernel.shared_bytes, kernel.cluster)
        except CudaError as error:
            return ("refused", str(error), error.sticky)
        try:
            order = ((0, 0), (1, 1)) if approved else ((1, 1), (0, 0))
            right = all(self._right(function, image, pattern) for image, pattern in order)
            self.gpu.unload(function)
            # a stray write may have hit our own images
            return ("right", "", False) if right else ("wrong", "", not self.original_is_right())
        except CudaError as error:
            return ("crashed", str(error), True)


class Pretend:
    """For trying the harness without a GPU: outcomes by the mutant's digest, faults and hangs included."""

    window = False

    def __init__(self, window: bool) -> None:
        time.sleep(0.05)

    def open(self, folder: str) -> None:
        """Needs what `prepare_pretended` wrote."""
        json.loads((Path(folder) / "case.json").read_text())

    def original_is_right(self) -> bool:
        """Always."""
        return True

    def run(self, cubin: bytes, approved: bool) -> tuple[str, str, bool]:
        """Right when approved; else by the digest's first byte: 3 in 256 hang, 12 crash, 4 die."""
        import hashlib

        if approved:
            return ("right", "", False)
        first = hashlib.sha256(cubin).digest()[0]
        if first < 3:
            time.sleep(60)
        if first < 15:
            return ("crashed", "pretended", True)
        if first < 19:
            os._exit(1)
        return ("wrong", "", False) if first < 128 else ("right", "", False)


def serve(pipe: Any, device: int, window: bool, pretend: bool) -> None:
    """Answer ``open FOLDER``, ``check`` and ``run CUBIN APPROVED`` until told to end or lost."""
    use_gpu(device)
    try:
        bench: Any = (Pretend if pretend else Bench)(window)
        pipe.send(("ready", "", bench.window))
        while (request := pipe.recv()) is not None:
            what, *rest = request
            if what == "open":
                bench.open(*rest)
                pipe.send(("opened", "", False))
            elif what == "check":
                pipe.send(("right" if bench.original_is_right() else "wrong", "", False))
            else:
                answer = bench.run(*rest)
                pipe.send(answer)
                if answer[2]:
                    return
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        try:
            pipe.send(("failed", f"{type(error).__name__}: {error}", True))
        except OSError:
            return


def prepare(plans: list[str], folder: str, device: int) -> None:
    """Inputs and the original's outputs of kernels, as files that lean processes load. Needs torch."""
    use_gpu(device)
    import base64

    import torch

    from sassafras.core import Buffer
    from sassafras.cuda.compile import compile_cuda
    from sassafras.cuda.driver import Gpu
    from sassafras.evaluate.gpu.case_on_gpu import CaseOnGpu
    from sassafras.evaluate.gpu.compare import Checker
    from sassafras.evaluate.gpu.guarded_buffers import BufferLayout
    from sassafras.evaluate.gpu.protocol import kernel_from_facts
    from sassafras.targets import load

    from .plan import read

    torch.zeros(1, device="cuda")
    gpu = Gpu()
    checker = Checker(gpu)
    shared = compile_cuda(SHARED, "sm_90a")
    for path in plans:
        plan = read(Path(path))
        place = Path(folder, plan["kernel"])
        try:
            place.mkdir(parents=True, exist_ok=True)
            cubin = base64.b64decode(plan["cubin"])
            facts = plan["facts"]
            workload = load(f"suite:{plan['kernel']}")
            case = workload.case(plan["case"])
            grid = small_grid(list(case.grid), facts["cluster"])
            kernel = kernel_from_facts({**facts, "launch": {"grid": grid}}, cubin)
            # no reference: with a part of the grid, outputs are only partly written, by mutants too
            scene = CaseOnGpu(gpu, checker, case, None, workload.tolerance)
            function = gpu.load_kernel(kernel)
            for seed in range(2):
                image = scene.add_image(kernel, function, seed=100 + seed, poison=(0xFF, 0xA5)[seed])
                (place / f"pristine{seed}").write_bytes(image.pristine.cpu().numpy().tobytes())
                (place / f"expected{seed}").write_bytes(image.expected.cpu().numpy().tobytes())
            torch.cuda.synchronize()
            if not scene.exact:
                raise RuntimeError("it differs from itself, and cannot be compared bitwise")
            (place / "checker.cubin").write_bytes(checker.cubin)
            (place / "shared.cubin").write_bytes(shared)
            (place / "original.cubin").write_bytes(cubin)
            layout = BufferLayout.of(case)
            described = {
                "kernel": facts, "case": case.name, "grid": list(grid), "nbytes": layout.nbytes,
                "offsets": {s.name: s.offset for s in layout.segments},
                "args": {
                    name: {"dtype": arg.dtype, "shape": list(arg.shape), "role": arg.role}
                    if isinstance(arg, Buffer) else arg
                    for name, arg in case.args.items()
                },
            }  # fmt: skip
            gpu.unload(function)
            del scene, image
            torch.cuda.empty_cache()
            _finish(place, "case.json", json.dumps(described))
        except Exception as error:
            _finish(place, "failed", f"{type(error).__name__}: {error}")


def prepare_pretended(plans: list[str], folder: str, device: int) -> None:
    """The same without a GPU, for `Pretend`."""
    from .plan import read

    for path in plans:
        place = Path(folder, read(Path(path))["kernel"])
        place.mkdir(parents=True, exist_ok=True)
        _finish(place, "case.json", "{}")


def _finish(place: Path, name: str, text: str) -> None:
    temporary = place / f"{name}.tmp"
    temporary.write_text(text)
    temporary.replace(place / name)
